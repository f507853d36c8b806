"""The admission policies of an installation, as an API server evaluates them, by our own CEL."""

from collections.abc import Iterable, Mapping
from typing import Any

from testbed import manifests

from dra_driver.admin.cel.evaluate import value_of
from dra_driver.admin.cel.parser import parsed
from dra_driver.admin.cel.values import Double

Object = Any

POLICIES: Mapping[str, Object] = {
    one["metadata"]["name"].removeprefix("dra-driver-"): one["spec"]
    for one in manifests.installed("ValidatingAdmissionPolicy")
}

NODE_OF_TOKEN = "authentication.kubernetes.io/node-name"  # noqa: S105 (a key of userInfo.extra)
ACCOUNT = "system:serviceaccount:dra-driver:dra-driver"
"""The driver's user name."""


class _Variables(dict[str, object]):
    """A policy's variables, each evaluated when it is first read, as the API server does."""

    def __init__(self, spec: Object, names: Mapping[str, object]) -> None:
        super().__init__()
        self._texts = {one["name"]: one["expression"] for one in spec["variables"]}
        self._names = names

    def __contains__(self, name: object) -> bool:
        return name in self._texts

    def __missing__(self, name: str) -> object:
        self[name] = value_of(parsed(self._texts[name]), {**self._names, "variables": self})
        return self[name]


def _read(value: Object) -> Object:
    """A value of JSON as CEL has it."""
    match value:
        case dict():
            return {key: _read(one) for key, one in value.items()}
        case list():
            return [_read(one) for one in value]
        case float():
            return Double(value)
    return value


def user(name: str = ACCOUNT, *, node: str = "", groups: Iterable[str] = ()) -> Object:
    """Who asks; a token bound to a node names it."""
    extra = {NODE_OF_TOKEN: [node]} if node else {}
    return {"username": name, "groups": list(groups), "extra": extra}


def refusal(
    policy: str, new: Object, old: Object = None, *, without: int | None = None, **request: Object
) -> str | None:
    """What a policy says to a request, or None if it says nothing.

    `without` leaves out one validation. `new` and `old` are the object after and before. An
    expression that has no value, for which `failurePolicy` would decide, is an EvaluationError.
    """
    spec = POLICIES[policy]
    operation = "DELETE" if new is None else "CREATE" if old is None else "UPDATE"
    asked = {"operation": operation, "userInfo": user(), **request}
    names: dict[str, object] = {"object": _read(new), "oldObject": _read(old), "request": asked}
    rules = spec["matchConstraints"]["resourceRules"]
    if not any(asked["operation"] in rule["operations"] for rule in rules):
        return None
    if not all(value_of(parsed(one["expression"]), names) for one in spec["matchConditions"]):
        return None
    names["variables"] = _Variables(spec, names)
    for index, one in enumerate(spec["validations"]):
        if index != without and not value_of(parsed(one["expression"]), names):
            text = one.get("messageExpression")
            return str(value_of(parsed(text), names) if text else one["message"])
    return None


def unneeded(policy: str, refused: Iterable[Mapping[str, Object]]) -> list[str]:
    """The validations without which every one of some requests would be refused as well."""
    asked = list(refused)
    return [
        one["expression"]
        for index, one in enumerate(POLICIES[policy]["validations"])
        if all(refusal(policy, **each, without=index) is not None for each in asked)
    ]
