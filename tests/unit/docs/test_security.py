"""docs/security.md says why the manifests ask for each right, and names a test of it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).parents[3]
PAGE = (REPOSITORY / "docs" / "security.md").read_text()
PODS = {"dra-driver": "driver", "dra-driver-mps-supervisor": "supervisor"}
TAKEN_AWAY = re.compile("without_|only_with_|only_a_privileged_")
"""In the name of a test that takes a right away."""

TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")

Right = tuple[str, str]


def objects(kind: str) -> Iterator[dict[str, Any]]:
    for one in yaml.safe_load_all((REPOSITORY / "manifests" / "install.yaml").read_text()):
        if one["kind"] == kind:
            yield one


def rights_of_pods() -> Iterator[Right]:
    """Whose it is, and what: a setting, a folder of the host, or how a folder is mounted."""
    for one in objects("DaemonSet"):
        whose, pod = PODS[one["metadata"]["name"]], one["spec"]["template"]["spec"]
        yield from ((whose, field) for field in pod if field.startswith(("host", "share")))
        paths = {each["name"]: each.get("hostPath", {}).get("path") for each in pod["volumes"]}
        yield from ((whose, path) for path in paths.values() if path)
        (container,) = pod["containers"]
        context = container["securityContext"]
        yield from ((whose, name) for name, on in context.items() if on and name == "privileged")
        yield from ((whose, name) for name in context.get("capabilities", {}).get("add", ()))
        for mount in container["volumeMounts"]:
            if "mountPropagation" in mount:
                yield whose, f"{paths[mount['name']]} {mount['mountPropagation']}"


def rights_in_the_cluster() -> Iterator[Right]:
    for role in objects("ClusterRole"):
        for rule in role["rules"]:
            for plural in rule["resources"]:
                yield from (("driver", f"{verb} {plural}") for verb in rule["verbs"])


def rows() -> dict[Right, str]:
    """The rest of each row, by whose the right is and by each right that the row is about."""
    section = PAGE.partition("\n## What the pods may do")[2].partition("\n## ")[0]
    found = {}
    for line in section.splitlines():
        whose, _, rest = line.removeprefix("| ").partition(" | ")
        rights, _, why = rest.partition(" | ")
        if whose in PODS.values():
            for right in re.findall(r"`([^`]+)`", rights):
                assert (whose, right) not in found
                found[whose, right] = why
    return found


def test_every_right_has_a_row_and_no_row_is_about_another() -> None:
    assert set(rows()) == {*rights_of_pods(), *rights_in_the_cluster()}


def test_every_row_says_why_and_names_a_test_that_there_is() -> None:
    for right, row in rows().items():
        why, _, tests = row.partition(" | ")
        assert len(why.split()) > 3, right
        named = TEST.findall(tests)
        assert named, right
        for path, function in named:
            tree = ast.parse((REPOSITORY / path).read_text())
            assert function in {
                node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
            }, f"{path}::{function}"


def test_each_right_of_the_supervisor_is_taken_away_by_a_test() -> None:
    for (whose, right), row in rows().items():
        if whose == "supervisor":
            named = [function for _, function in TEST.findall(row)]
            assert any(map(TAKEN_AWAY.search, named)), right
