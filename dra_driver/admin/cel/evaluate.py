"""The value of an expression.

`&&` and `||` evaluate their terms in order, and an error counts only if no other term decides; `?:`
evaluates only one branch; a field of an optional value is optional, too. As in the scheduler, an
evaluation has a limited number of steps. Pure.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TypeVar, assert_never, cast

from dra_driver.admin.cel import functions, syntax
from dra_driver.admin.cel.values import (
    NONE,
    TYPES,
    AbortError,
    Double,
    EvaluationError,
    NotUnderstoodError,
    Optional,
    Semver,
    TypeOf,
    Uint,
    equal,
    is_number,
    no_overload,
)
from resource_nvidia_com.quantity import Quantity

_MOST_STEPS = 100_000
"""Steps of an evaluation. Reading or making a list or string takes as many as it has parts."""

_MATCH = 20
"""Steps for each character that is matched with a regular expression."""

Variables = Mapping[str, object]
T = TypeVar("T")


def value_of(node: syntax.Node, variables: Variables) -> object:
    """Return an expression's value. Raises EvaluationError, as CEL does, or NotUnderstoodError."""
    try:
        return _Evaluation().value(node, variables)
    except RecursionError:
        raise NotUnderstoodError("an expression nested so deeply") from None


class _Evaluation:
    """One evaluation, which counts its steps."""

    def __init__(self) -> None:
        self._left = _MOST_STEPS

    def value(self, node: syntax.Node, names: Variables) -> object:  # noqa: C901, PLR0911, PLR0912 (one per kind)
        self._left -= 1
        if self._left < 0:
            raise NotUnderstoodError("an expression of so many steps")
        match node:
            case syntax.Constant():
                return node.value
            case syntax.Name():
                if node.name not in names and node.name not in TYPES:
                    raise NotUnderstoodError(f"the name {node.name}")
                return names.get(node.name, TypeOf(node.name))
            case syntax.Select():
                return _selected(self.value(node.operand, names), node.field, node.optional)
            case syntax.Index():
                operand, key = self.value(node.operand, names), self.value(node.key, names)
                return _selected(operand, key, node.optional)
            case syntax.Has():
                return self._has(node, names)
            case syntax.Call():
                return self._call(node, names)
            case syntax.ListOf():
                return self._counted([self.value(item, names) for item in node.items])
            case syntax.MapOf():
                return self._counted(
                    {self.value(key, names): self.value(item, names) for key, item in node.entries}
                )
            case syntax.Unary():
                return _unary(node.operator, self.value(node.operand, names))
            case syntax.Binary():
                left, right = self.value(node.left, names), self.value(node.right, names)
                if isinstance(left, Semver) and _is_set(node):
                    raise AbortError("hash of unhashable type")
                self._counted(left)
                self._counted(right)
                return _binary(node.operator, left, right)
            case syntax.Logic():
                return self._logic(node, names)
            case syntax.Choice():
                condition = _truth(self.value(node.condition, names))
                return self.value(node.then if condition else node.otherwise, names)
            case syntax.Comprehension():
                return self._comprehension(node, names)
            case syntax.Bind():
                value = self.value(node.value, names)
                return self.value(node.body, {**names, node.variable: value})
            case syntax.OptionalMap():
                return self._optional_map(node, names)
            case _:
                raise AssertionError(node)

    def _counted(self, value: T, *, times: int = 1) -> T:
        """Return a value after counting its parts as steps."""
        rest: list[object] = [value]
        while rest:
            part = rest.pop()
            self._left -= times
            if isinstance(part, str):
                self._left -= len(part) * times
            elif isinstance(part, list):
                rest += part
            elif isinstance(part, dict):
                rest += part.values()
            if self._left < 0:
                raise NotUnderstoodError("an expression of so many steps")
        return value

    def _has(self, node: syntax.Has, names: Variables) -> bool:
        field = _selected(self.value(node.operand, names), node.field, optional=True)
        return isinstance(field, Optional) and field.is_there

    def _call(self, node: syntax.Call, names: Variables) -> object:
        target = node.target
        if target is None:
            return functions.call(node.function, self._values(node, names), is_member=False)
        if (
            isinstance(target, syntax.Name)
            and target.name == "optional"
            and "optional" not in names
        ):
            name = f"optional.{node.function}"
            return functions.call(name, self._values(node, names), is_member=False)
        holder = self.value(target, names)
        if node.function in ("or", "orValue") and len(node.arguments) == 1:
            if not isinstance(holder, Optional):
                raise no_overload()
            if holder.is_there:
                return holder if node.function == "or" else holder.value
            return self.value(node.arguments[0], names)
        self._counted(holder, times=_MATCH if node.function == "matches" else 1)
        answer = functions.call(node.function, (holder, *self._values(node, names)), is_member=True)
        return self._counted(answer)

    def _values(self, node: syntax.Call, names: Variables) -> tuple[object, ...]:
        times = _MATCH if node.function == "matches" else 1
        return tuple(
            self._counted(self.value(argument, names), times=times) for argument in node.arguments
        )

    def _logic(self, node: syntax.Logic, names: Variables) -> bool:
        terms = (partial(self._truth_of, term, names) for term in node.terms)
        return _first_decisive(terms, decisive=node.operator == "||")

    def _comprehension(self, node: syntax.Comprehension, names: Variables) -> object:
        over = self.value(node.over, names)
        if not isinstance(over, list | dict):
            raise no_overload()
        scopes = [{**names, node.variable: element} for element in over]
        match node.kind:
            case "all" | "exists":
                return self._quantified(node, scopes)
            case "exists_one":
                return sum(self._holds(node, scope) for scope in scopes) == 1
            case "filter":
                return [scope[node.variable] for scope in scopes if self._holds(node, scope)]
            case "map":
                result = cast("syntax.Node", node.result)
                return self._counted(
                    [self.value(result, own) for own in scopes if self._holds(node, own)]
                )
            case _:
                assert_never(node.kind)

    def _quantified(self, node: syntax.Comprehension, scopes: list[dict[str, object]]) -> bool:
        terms = (partial(self._holds, node, scope) for scope in scopes)
        return _first_decisive(terms, decisive=node.kind == "exists")

    def _holds(self, node: syntax.Comprehension, names: Variables) -> bool:
        return node.predicate is None or self._truth_of(node.predicate, names)

    def _truth_of(self, node: syntax.Node, names: Variables) -> bool:
        return _truth(self.value(node, names))

    def _optional_map(self, node: syntax.OptionalMap, names: Variables) -> Optional:
        target = self.value(node.target, names)
        if not isinstance(target, Optional):
            raise no_overload()
        if not target.is_there:
            return NONE
        result = self.value(node.result, {**names, node.variable: target.value})
        if not node.flat:
            return Optional(result, is_there=True)
        if not isinstance(result, Optional):
            raise no_overload()
        return result


def _selected(operand: object, key: object, optional: bool) -> object:
    if isinstance(operand, Optional):
        if not operand.is_there:
            return NONE
        operand, optional = operand.value, True
    selected = functions.field_of(operand, key)
    if optional:
        return selected
    if selected.is_there:
        return selected.value
    if isinstance(operand, list):
        raise EvaluationError(f"index out of bounds: {key}")
    raise EvaluationError(f"no such key: {key}")


def _is_set(node: syntax.Binary) -> bool:
    """Tell whether this is `in` a list of constants, which is a set of hashes in cel-go.

    A version has no hash, so not even `x in ['a']` has a value for one.
    """
    return (
        node.operator == "in"
        and isinstance(node.right, syntax.ListOf)
        and bool(node.right.items)
        and all(isinstance(item, syntax.Constant) for item in node.right.items)
    )


def _first_decisive(terms: Iterable[Callable[[], bool]], *, decisive: bool) -> bool:
    """Return the value of `||` or `&&`; errors count only if no term decides."""
    error: EvaluationError | None = None
    for term in terms:
        try:
            if term() is decisive:
                return decisive
        except AbortError:
            raise
        except EvaluationError as fault:
            error = error or fault
    if error is not None:
        raise error
    return not decisive


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise no_overload()
    return value


def _unary(operator: str, value: object) -> object:
    if operator == "!":
        return not _truth(value)
    if not is_number(value) or isinstance(value, Uint):
        raise no_overload()
    if isinstance(value, float):
        return Double(-value)
    return functions.checked(-value)  # type: ignore[operator]  # a whole number, as seen above


def _binary(operator: str, left: object, right: object) -> object:
    match operator:
        case "==":
            return equal(left, right)
        case "!=":
            # Values that cannot be compared are not equal.
            with suppress(EvaluationError):
                return not equal(left, right)
            return True
        case "in":
            return functions.contains(right, left)
        case "<" | "<=" | ">" | ">=":
            if isinstance(left, Quantity | Semver):
                raise no_overload()
            order = functions.compare(left, right)
            return {"<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[operator]
        case _:
            return _arithmetic(operator, left, right)


def _arithmetic(operator: str, left: object, right: object) -> object:
    if type(left) is not type(right):
        raise no_overload()
    if operator == "+" and isinstance(left, str | list):
        return left + right  # type: ignore[operator]  # of one type, as seen above
    if not is_number(left):
        raise no_overload()
    kind = type(left)
    a, b = cast("float", left), cast("float", right)
    if kind is Double:
        if operator == "%":
            raise no_overload()
        if operator == "/" and b == 0:
            raise NotUnderstoodError("a division of a double by zero")
        return Double({"+": a + b, "-": a - b, "*": a * b}[operator] if operator != "/" else a / b)
    whole = _whole(operator, int(a), int(b))
    return functions.checked(Uint(whole) if kind is Uint else whole)


def _whole(operator: str, left: int, right: int) -> int:
    if operator in ("/", "%") and right == 0:
        raise EvaluationError("division by zero" if operator == "/" else "modulus by zero")
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case _:
            quotient = abs(left) // abs(right)
            quotient = quotient if (left < 0) == (right < 0) else -quotient
            return quotient if operator == "/" else left - quotient * right
