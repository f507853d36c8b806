"""The driver's own reading of Kubernetes' schemas says what the library jsonschema says."""

import copy
from typing import Any

import jsonschema
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.admin.validate import schema
from resource_nvidia_com.quantity import Quantity
from sampling import examples

OBJECT = yaml.safe_load("""\
apiVersion: v1
kind: Pod
metadata: {name: p, labels: {a: b}, generation: 1}
spec:
  hostNetwork: true
  nodeSelector: {a: b}
  tolerations: [{key: a, operator: Exists, effect: NoSchedule, tolerationSeconds: 3}]
  resourceClaims: [{name: gpu, resourceClaimName: c}]
  volumes: [{name: v, emptyDir: {sizeLimit: 1Gi}}, {name: w, projected: {sources: []}}]
  containers:
  - name: c
    image: i
    ports: [{containerPort: 80}]
    readinessProbe: {httpGet: {port: http}, periodSeconds: 2}
    env: [{name: A, valueFrom: {fieldRef: {fieldPath: a}}}]
    resources: {claims: [{name: gpu}], limits: {nvidia.com/gpu: 1, memory: 1Gi}}
""")


def _json_schema(value: Any) -> Any:
    """Kubernetes' words as JSON Schema has them: closed objects, and null for what is not set."""
    if "$ref" in value:
        return {"$ref": f"#/$defs/{value['$ref']}"}
    form = value.get("format")
    if form == "quantity":
        return {"type": ["string", "number", "null"], "format": "quantity"}
    if form == "int-or-string":
        return {"type": ["string", "number", "null"]}
    found = dict(value)
    if "type" in found:
        found["type"] = [found["type"], "null"]
    if "enum" in found:
        found["enum"] = [*found["enum"], "", None]
    if "properties" in found:
        found["properties"] = {k: _json_schema(v) for k, v in found["properties"].items()}
        found["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(found.get(key), dict):
            found[key] = _json_schema(found[key])
    return found


def _validator() -> Any:
    checker = jsonschema.FormatChecker(())

    @checker.checks("quantity", raises=ValueError)
    def _quantity(value: object) -> bool:
        return value is None or bool(Quantity.parse(str(value)))

    definitions = {name: _json_schema(one) for name, one in schema.schemas().items()}
    root = {"$ref": "#/$defs/core.v1.Pod", "$defs": definitions}
    return jsonschema.Draft202012Validator(root, format_checker=checker)


VALIDATOR = _validator()


def _paths(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if not isinstance(value, dict | list):
        return [path]
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    return [path, *(one for key, part in inner for one in _paths(part, (*path, key)))]


PLACES = [path for path in _paths(OBJECT) if path]
VALUES = st.sampled_from(
    [
        "text",
        "",
        1,
        1.5,
        True,
        None,
        [],
        ["a"],
        {},
        {"a": "b"},
        [{}],
        [None],
        [{"name": "n"}],
        "1Gi",
    ]
)


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PLACES), VALUES, st.booleans()), max_size=3))
def test_both_refuse_the_same_pods(changes: list[tuple[tuple[Any, ...], object, bool]]) -> None:
    pod = copy.deepcopy(OBJECT)
    for path, value, beside in changes:
        new, parent = copy.deepcopy(value), pod
        for part in path[:-1]:
            parent = parent[part] if _has(parent, part) else {}
        if isinstance(parent, dict):
            parent[f"x-{path[-1]}" if beside else path[-1]] = 1 if beside and new is None else new
        elif isinstance(parent, list) and _has(parent, path[-1]):
            parent[path[-1]] = new
    own = [
        problem.text
        for problem in schema.problems(pod, "core.v1.Pod")
        if "exactly one of" not in problem.text
    ]
    others = [error.message for error in VALIDATOR.iter_errors(_without_null(pod))]
    assert bool(own) == bool(others), (own, others)


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_null(part) for key, part in value.items() if part is not None}
    return [_without_null(part) for part in value] if isinstance(value, list) else value


def _has(value: object, key: Any) -> bool:
    if isinstance(value, list):
        return isinstance(key, int) and key < len(value)
    return isinstance(value, dict) and key in value
