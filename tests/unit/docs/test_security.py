"""docs/security.md says why the manifests ask for each right, and what tenants can do.

Each row of these tables names tests.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).parents[3]
PAGE = (REPOSITORY / "docs" / "security.md").read_text()
PODS = {
    "dra-driver": "driver",
    "dra-driver-mps-supervisor": "supervisor",
    "dra-driver-cleanup": "cleanup",
}
CLEANUP = (REPOSITORY / "manifests" / "cleanup.yaml").read_text()
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")

Right = tuple[str, str]


def objects(kind: str, file: str = "install.yaml") -> Iterator[dict[str, Any]]:
    for one in yaml.safe_load_all((REPOSITORY / "manifests" / file).read_text()):
        if one["kind"] == kind:
            yield one


def rights_of_pods(file: str = "install.yaml") -> Iterator[Right]:
    """Whose it is, and what: a setting, a folder of the host, or how a folder is mounted."""
    for one in objects("DaemonSet", file):
        whose, pod = PODS[one["metadata"]["name"]], one["spec"]["template"]["spec"]
        yield from ((whose, field) for field in pod if field.startswith(("host", "share")))
        paths = {each["name"]: each.get("hostPath", {}).get("path") for each in pod["volumes"]}
        yield from ((whose, path) for path in paths.values() if path)
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            yield from ((whose, right) for right in rights_of(container, paths))


def rights_of(container: dict[str, Any], paths: dict[str, str]) -> Iterator[str]:
    context = container["securityContext"]
    yield from (name for name, on in context.items() if on and name == "privileged")
    yield from context.get("capabilities", {}).get("add", ())
    for mount in container.get("volumeMounts", ()):
        if "mountPropagation" in mount:
            yield f"{paths[mount['name']]} {mount['mountPropagation']}"


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


@cache
def functions(path: str) -> set[str]:
    tree = ast.parse((REPOSITORY / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def check_tests(cell: str) -> None:
    """Fail unless a cell names tests and nothing else, and all of them exist."""
    assert re.sub(TEST, "", cell).strip(" |,") == "", cell
    named = TEST.findall(cell)
    assert named, cell
    assert [f"{path}::{name}" for path, name in named if name not in functions(path)] == []


def test_every_row_says_why_and_names_a_test_that_there_is() -> None:
    for right, row in rows().items():
        why, _, tests = row.partition(" | ")
        assert len(why.split()) > 3, right
        check_tests(tests)


@pytest.mark.parametrize(
    "title", ["## From a container", "### Shares under MPS", "## A user with the role `edit`"]
)
def test_every_row_about_tenants_names_tests_that_there_are(title: str) -> None:
    section = PAGE.partition(f"\n{title}\n")[2].partition("\n##")[0]
    head, line, *about = (row for row in section.splitlines() if row.startswith("|"))
    assert head.endswith("| test |")
    assert len(about) > 4
    for row in about:
        assert row.count(" | ") == line.count("|") - 2, row
        check_tests(row.rpartition(" | ")[2])


def test_the_cleanup_has_the_rights_of_both_and_no_others() -> None:
    both = {right for _, right in rights_of_pods()}
    assert {right for _, right in rights_of_pods("cleanup.yaml")} == both - {
        # What it mounts there is seen by the host, and the other way round.
        "/var/lib/kubelet/plugins HostToContainer",
        "/var/lib/kubelet/pod-resources",
    }
    kinds = {one["kind"] for one in yaml.safe_load_all(CLEANUP)}
    assert kinds == {"Namespace", "ServiceAccount", "DaemonSet"}
    (daemons,) = objects("DaemonSet", "cleanup.yaml")
    pod = daemons["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    (stays,) = pod["containers"]
    assert "volumeMounts" not in stays
    assert stays["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "runAsUser": 65534,
    }
