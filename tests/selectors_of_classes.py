"""Evaluates the selectors of DeviceClasses, as far as the shipped ones go: a small part of CEL.

In: the text of an expression, and a device as it is published. Out: whether it selects the device.
Rules: names of attributes without a domain have that of the driver; what a device lacks is an error
(KeyError), unless it is asked for by `.?`; `&&`, `||` and `?:` evaluate no more than they need.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dra_driver.devices.names import DRIVER_NAME

Value = Callable[[Mapping[str, Any]], Any]
"""An expression: what it is worth with these variables."""

_TOKENS = re.compile(r"\s*('[^']*'|\w+|\.\?|&&|\|\||==|!=|[!?:()\[\].,])")


def selects(expression: str, device: Mapping[str, Any]) -> bool:
    """Tell whether an expression holds for a device. Raises KeyError for what the device lacks."""
    parser = _Parser(_tokens(expression))
    found = parser.choice()
    assert parser.at is None, parser.at
    result = found({"device": _variable(device)})
    assert isinstance(result, bool)
    return result


def _variable(device: Mapping[str, Any]) -> dict[str, Any]:
    attributes: dict[str, dict[str, Any]] = {DRIVER_NAME: {}}
    for qualified, value in device["attributes"].items():
        domain, _, name = qualified.rpartition("/")
        attributes.setdefault(domain or DRIVER_NAME, {})[name] = next(iter(value.values()))
    return {
        "driver": DRIVER_NAME,
        "attributes": attributes,
        "allowMultipleAllocations": device.get("allowMultipleAllocations", False),
    }


def _tokens(expression: str) -> Iterator[str]:
    at = 0
    while expression[at:].strip():
        match = _TOKENS.match(expression, at)
        assert match, f"cannot read {expression[at:]!r}"
        yield match[1]
        at = match.end()


@dataclass(frozen=True)
class _Optional:
    values: tuple[Any, ...]


class _Parser:
    def __init__(self, tokens: Iterator[str]) -> None:
        self._rest = tokens
        self.at = next(tokens, None)

    def _take(self, *wanted: str) -> str | None:
        """Return the next token and go on, if it is one of these."""
        found = self.at
        if found is None or (wanted and found not in wanted):
            return None
        self.at = next(self._rest, None)
        return found

    def _need(self, wanted: str) -> None:
        assert self._take(wanted), f"{wanted} is wanted, and there is {self.at}"

    def choice(self) -> Value:
        condition = self._any()
        if not self._take("?"):
            return condition
        yes = self.choice()
        self._need(":")
        no = self.choice()
        return lambda names: yes(names) if condition(names) else no(names)

    def _any(self) -> Value:
        parts = [self._all()]
        while self._take("||"):
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else lambda names: any(one(names) for one in parts)

    def _all(self) -> Value:
        parts = [self._relation()]
        while self._take("&&"):
            parts.append(self._relation())
        return parts[0] if len(parts) == 1 else lambda names: all(one(names) for one in parts)

    def _relation(self) -> Value:
        left = self._not()
        operator = self._take("==", "!=", "in")
        if operator is None:
            return left
        right = self._not()
        relations: dict[str, Value] = {
            "==": lambda names: left(names) == right(names),
            "!=": lambda names: left(names) != right(names),
            "in": lambda names: left(names) in right(names),
        }
        return relations[operator]

    def _not(self) -> Value:
        if not self._take("!"):
            return self._member()
        inner = self._not()
        return lambda names: not inner(names)

    def _member(self) -> Value:
        found = self._literal()
        while operator := self._take(".", ".?", "["):
            found = self._part(found, operator)
        return found

    def _part(self, of: Value, operator: str) -> Value:
        if operator == "[":
            key = self.choice()
            self._need("]")
            return lambda names: of(names)[key(names)]
        name = self._take() or ""
        if operator == ".?":
            return lambda names: _Optional((of(names)[name],) if name in of(names) else ())
        if name == "orValue":
            self._need("(")
            other = self.choice()
            self._need(")")
            return lambda names: [*of(names).values, *([] if of(names).values else [other(names)])][
                0
            ]
        return lambda names: of(names)[name]

    def _literal(self) -> Value:
        if self._take("("):
            inner = self.choice()
            self._need(")")
            return inner
        token = self._take() or ""
        if token.startswith("'"):
            return lambda _: token[1:-1]
        if token.isdecimal():
            return lambda _: int(token)
        return lambda names: names[token]
