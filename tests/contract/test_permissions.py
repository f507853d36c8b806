"""What the driver may do in a cluster is what it does: each verb of its role is one it calls."""

import ast
from collections.abc import Iterator
from pathlib import Path

import yaml

from dra_driver.kube import resource
from dra_driver.kube.resource import Resource

REPOSITORY = Path(__file__).resolve().parents[2]
VERBS = {"get", "list", "watch", "create", "update", "patch", "delete"}
WATCHED = {"list", "watch"}  # what a watch of a kind asks for


def test_the_role_grants_what_the_driver_calls_and_nothing_more() -> None:
    assert granted() == set(called())


def granted() -> set[tuple[str, str]]:
    documents = yaml.safe_load_all((REPOSITORY / "manifests" / "rbac.yaml").read_text())
    (role,) = (one for one in documents if one["kind"] == "ClusterRole")
    return {
        (verb, f"{plural}.{group}" if group else plural)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for plural in rule["resources"]
        for verb in rule["verbs"]
    }


def called() -> Iterator[tuple[str, str]]:
    """Every call in the driver's source with an argument that names a kind."""
    for path in sorted((REPOSITORY / "dra_driver").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            for argument in node.args:
                name = argument.id if isinstance(argument, ast.Name) else ""
                kind = getattr(resource, name, None)
                if isinstance(kind, Resource):
                    for verb in verbs_of(node.func):
                        yield verb, str(kind)


def verbs_of(function: ast.expr) -> set[str]:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return {name} if name in VERBS else WATCHED
