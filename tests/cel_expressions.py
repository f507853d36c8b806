"""Made-up selectors, by type, so that most of them compile: questions for who evaluates CEL.

In: a seed. Out: the text of an expression over the device of tests/cel_cases.py. Attributes have no
type at compile time, so that wrong types, missing attributes and errors beside what decides all
come up.
"""

import random
from collections.abc import Callable

OWN = "device.attributes['gpu.nvidia.com']"
NAMES = ("type", "productName", "index", "ok", "driverVersion", "pre", "rare")


def expression(seed: int) -> str:
    """An expression that is the same for the same seed."""
    return _Maker(random.Random(seed)).truth(3)  # noqa: S311 (cases, no secrets)


class _Maker:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def _one(self, *makers: Callable[[], str]) -> str:
        return self._chance.choice(makers)()

    def _any(self) -> str:
        """An attribute, of whichever type it is."""
        name = self._chance.choice(NAMES)
        return self._chance.choice([f"{OWN}.{name}", f"{OWN}['{name}']"])

    def truth(self, depth: int) -> str:
        """An expression that is true or false, or fails."""
        if depth == 0:
            return self._one(lambda: "true", lambda: "false", self._any, self._presence)
        down = depth - 1
        return self._one(
            lambda: f"({self.truth(down)} && {self.truth(down)})",
            lambda: f"({self.truth(down)} || {self.truth(down)})",
            lambda: f"!{self.truth(down)}",
            lambda: f"({self.truth(down)} ? {self.truth(down)} : {self.truth(down)})",
            lambda: f"({self._any()} {self._relation()} {self._number(down)})",
            lambda: f"({self._number(down)} {self._relation()} {self._number(down)})",
            lambda: f"({self._text(down)} {self._relation()} {self._text(down)})",
            lambda: f"({self._any()} == {self._any()})",
            lambda: f"({self._any()} in [{self._number(0)}, {self._number(0)}])",
            lambda: f"({self._text(down)} in ['gpu', {self._text(0)}])",
            lambda: f"{self._version(down)}.isGreaterThan({self._version(down)})",
            lambda: f"({self._version(down)} == {self._version(down)})",
            lambda: f"({self._version(down)}.compareTo({self._version(down)}) < 1)",
            lambda: f"{self._quantity(down)}.isLessThan({self._quantity(down)})",
            lambda: f"{self._text(down)}.{self._test()}",
            self._presence,
            lambda: f"({self._maybe()} == {self._text(0)})",
            lambda: self._list(down),
        )

    def _relation(self) -> str:
        return self._chance.choice(["==", "!=", "<", "<=", ">", ">="])

    def _presence(self) -> str:
        name = self._chance.choice(NAMES)
        return self._chance.choice(
            [
                f"has({OWN}.{name})",
                f"('{name}' in {OWN})",
                f"{OWN}.?{name}.hasValue()",
                f"has(device.attributes['other'].{name})",
            ]
        )

    def _maybe(self) -> str:
        name = self._chance.choice(NAMES)
        fallback = self._one(lambda: self._text(0), lambda: self._number(0))
        return f"{OWN}.?{name}.orValue({fallback})"

    def _number(self, depth: int) -> str:
        if depth == 0:
            return self._chance.choice(["0", "1", "3", "-2", "7"])
        down = depth - 1
        sign = self._chance.choice(["+", "-", "*", "/", "%"])
        return self._one(
            lambda: self._number(0),
            lambda: f"({self._number(down)} {sign} {self._number(down)})",
            lambda: f"({self._any()} {sign} {self._number(down)})",
            lambda: f"{self._text(down)}.size()",
            lambda: f"{self._version(down)}.{self._chance.choice(['major', 'minor', 'patch'])}()",
            lambda: f"{self._text(down)}.indexOf({self._text(0)})",
            lambda: f"{self._quantity(down)}.asInteger()",
        )

    def _text(self, depth: int) -> str:
        if depth == 0:
            return self._chance.choice(["'gpu'", "'H100'", "''", "' '", "'NVIDIA H100 80GB'"])
        down = depth - 1
        return self._one(
            lambda: self._text(0),
            lambda: (
                f"string({self._any()})" if self._chance.random() < 0.1 else f"{OWN}.productName"
            ),
            lambda: f"({self._text(down)} + {self._text(down)})",
            lambda: f"{self._text(down)}.lowerAscii()",
            lambda: f"{self._text(down)}.substring({self._number(0)})",
            lambda: f"{self._text(down)}.replace({self._text(0)}, {self._text(0)})",
            lambda: f"{self._text(down)}.split({self._text(0)})[{self._number(0)}]",
        )

    def _test(self) -> str:
        test = self._chance.choice(["contains", "startsWith", "endsWith", "matches"])
        if test == "matches":
            patterns = ["'^gpu$'", "'H[0-9]+'", "'(a|b)*'", "'^\\\\w+ '", "'.{3,5}$'"]
            return f"matches({self._chance.choice(patterns)})"
        return f"{test}({self._text(0)})"

    def _version(self, depth: int) -> str:
        texts = ["'1.2.3'", "'570.86.15'", "'1.2.3-rc.1'", "'1.2'"]
        made = f"semver({self._chance.choice(texts)})"
        return (
            made
            if depth == 0
            else self._one(lambda: made, lambda: f"{OWN}.driverVersion", self._any)
        )

    def _quantity(self, depth: int) -> str:
        texts = ["'1'", "'80Gi'", "'1500m'", "'x'"]
        made = f"quantity({self._chance.choice(texts)})"
        if depth == 0:
            return made
        capacity = "device.capacity['gpu.nvidia.com']"
        return self._one(
            lambda: made,
            lambda: f"{capacity}.{self._chance.choice(['memory', 'cores', 'rare'])}",
        )

    def _list(self, depth: int) -> str:
        kind = self._chance.choice(["all", "exists", "exists_one"])
        listed = self._chance.choice(["[0, 1, 3]", "[1, 2]", "[0]"])
        test = self._one(
            lambda: f"one == {self._any()}",
            lambda: f"3 / one == {self._number(depth)}",
            lambda: f"one > 0 && {self.truth(depth)}",
        )
        return f"{listed}.{kind}(one, {test})"
