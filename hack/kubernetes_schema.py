"""Writes admin/validate/kubernetes.json: Kubernetes' schemas of what `validate` checks.

In: kubectl, and an API server of hack/cluster with its /openapi/v3. Out: the schemas of claims,
templates, DeviceClasses and pods, and of their parts, without descriptions and status.
An end-to-end test compares the file with the API server of its version.

    python3 hack/cluster up
    eval "$(python3 hack/cluster env)" && python3 hack/kubernetes_schema.py
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

FILE = Path("dra_driver/admin/validate/kubernetes.json")
DOCUMENTS = ("/openapi/v3/apis/resource.k8s.io/v1", "/openapi/v3/api/v1")
ROOTS = (
    "resource.v1.ResourceClaim",
    "resource.v1.ResourceClaimTemplate",
    "resource.v1.DeviceClass",
    "core.v1.Pod",
    "core.v1.PodTemplateSpec",
)
_PREFIX = "#/components/schemas/"
_KEPT = ("type", "enum", "required")
_FORMATS = {"Quantity": {"format": "quantity"}, "IntOrString": {"format": "int-or-string"}}


def pruned(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the schemas of ROOTS and of all that they refer to, by short names."""
    known = {
        _short(name): schema
        for document in documents
        for name, schema in document["components"]["schemas"].items()
    }
    kept: dict[str, Any] = {}
    left = list(ROOTS)
    while left:
        name = left.pop()
        if name not in kept:
            kept[name] = _FORMATS.get(name.rpartition(".")[2]) or _cleaned(known[name], left)
    return dict(sorted(kept.items()))


def text(version: str, schemas: dict[str, Any]) -> str:
    """Return the file: a line for each schema."""
    lines = ",\n".join(
        f"{json.dumps(k)}: {json.dumps(v, sort_keys=True)}" for k, v in schemas.items()
    )
    head = f'"written by": "hack/kubernetes_schema.py",\n"kubernetes": {json.dumps(version)}'
    return f'{{\n{head},\n"schemas": {{\n{lines}\n}}\n}}\n'


def _cleaned(schema: dict[str, Any], left: list[str]) -> dict[str, Any]:
    if "allOf" in schema:
        (schema,) = schema["allOf"]
    if "$ref" in schema:
        name = _short(schema["$ref"].removeprefix(_PREFIX))
        left.append(name)
        return {"$ref": name}
    kept = {key: schema[key] for key in _KEPT if key in schema}
    for key in ("items", "additionalProperties"):
        if key in schema:
            kept[key] = _cleaned(schema[key], left)
    if properties := schema.get("properties"):
        status = {"status": {"type": "object"}} if "status" in properties else {}
        cleaned = {k: _cleaned(v, left) for k, v in (properties | status).items()}
        kept["properties"] = cleaned
    return kept


def _short(name: str) -> str:
    """`io.k8s.api.core.v1.Pod` to `core.v1.Pod`."""
    for prefix in ("io.k8s.api.", "io.k8s.apimachinery.pkg.apis.", "io.k8s.apimachinery.pkg."):
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def main() -> None:
    def get(path: str) -> dict[str, Any]:
        command = [os.environ.get("KUBECTL", "kubectl"), "get", "--raw", path]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return dict(json.loads(done.stdout))

    version = get("/version")["gitVersion"].removeprefix("v")
    FILE.write_text(text(version, pruned([get(path) for path in DOCUMENTS])), encoding="utf-8")


if __name__ == "__main__":
    main()
