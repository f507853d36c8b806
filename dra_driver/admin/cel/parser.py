"""Parses the text of a CEL expression into a tree.

Rule: the grammar of CEL's language definition, with the syntax of optional values (`.?`, `[?`). The
API server compiled the text before it stored it, so text that cannot be read here uses CEL that
this parser does not know. Pure.
"""

import re
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from dra_driver.admin.cel import syntax
from dra_driver.admin.cel.values import Double, NotCelError, NotUnderstoodError, Uint

_TOKENS = re.compile(
    r"""(?P<space>(?:[\s]|//[^\n]*)+)
    |(?P<string>[rRbB]{0,2}(?:\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''
        |"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))
    |(?P<number>0[xX][0-9a-fA-F]+[uU]?|(?:[0-9]+\.[0-9]+|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?[uU]?)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<sign>&&|\|\||==|!=|<=|>=|[-+*/%!<>?:.,()\[\]{}])""",
    re.VERBOSE | re.DOTALL,
)
_RAW = re.compile(r"[bB]?[rR][bB]?['\"]")
_RAW_STRING = re.compile(
    r"""[rRbB]{1,2}(?:\"\"\".*?\"\"\"|'''.*?'''|"[^"\n]*"|'[^'\n]*')""", re.DOTALL
)
_CONSTANTS = {"true": True, "false": False, "null": None}
_RELATIONS = frozenset({"==", "!=", "<", "<=", ">", ">=", "in"})
_COMPREHENSIONS = frozenset({"all", "exists", "exists_one", "existsOne", "filter", "map"})
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPE = re.compile(
    r"\\(?:[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))", re.DOTALL
)
_DEEPEST = 100
"""How deep expressions may nest; CEL itself goes to 250."""


def parsed(text: str) -> syntax.Node:
    """Return the tree of an expression. Raises NotUnderstoodError if it is not known CEL."""
    parser = _Parser(text)
    tree = parser.expression()
    if parser.token.text:
        raise parser.unexpected()
    return tree


class _Token(Struct, frozen=True):
    kind: str
    text: str
    start: int
    end: int


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        # In a raw string a backslash is a character like any other.
        raw = _RAW_STRING.match(text, at) if _RAW.match(text, at) else None
        match = raw or _TOKENS.match(text, at)
        if match is None:
            # Newer versions of CEL take any field's name in backquotes.
            error = NotUnderstoodError if text[at] == "`" else NotCelError
            raise error(f"the character {text[at]!r} at position {at + 1}")
        kind = "string" if raw else str(match.lastgroup)
        if kind != "space":
            yield _Token(kind, match[0], at, match.end())
        at = match.end()
    yield _Token("end", "", at, at)


class _Parser:
    """Reads an expression from left to right, one method for each rule of the grammar."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0
        self._depth = 0

    @property
    def token(self) -> _Token:
        return self._tokens[self._at]

    @property
    def _end(self) -> int:
        return self._tokens[self._at - 1].end

    def unexpected(self) -> NotCelError:
        """Return the error about the token at which parsing ended."""
        return NotCelError(f"{self.token.text or 'the end'!r} at {self.token.start + 1}")

    def expression(self) -> syntax.Node:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise NotUnderstoodError("an expression nested so deeply")
        condition = self._logic("||")
        if self._take("?"):
            then = self._logic("||")
            self._need(":")
            otherwise = self.expression()
            condition = syntax.Choice(condition.start, self._end, condition, then, otherwise)
        self._depth -= 1
        return condition

    def _logic(self, operator: Literal["&&", "||"]) -> syntax.Node:
        def next_term() -> syntax.Node:
            return self._logic("&&") if operator == "||" else self._relation()

        terms = [next_term()]
        while self._take(operator):
            terms.append(next_term())
        if len(terms) == 1:
            return terms[0]
        return syntax.Logic(terms[0].start, self._end, operator, tuple(terms))

    def _relation(self) -> syntax.Node:
        left = self._sum()
        while (operator := self.token.text) in _RELATIONS and self.token.kind != "string":
            self._at += 1
            left = self._binary(operator, left, self._sum())
        return left

    def _sum(self) -> syntax.Node:
        left = self._product()
        while self.token.kind == "sign" and (operator := self.token.text) in ("+", "-"):
            self._at += 1
            left = self._binary(operator, left, self._product())
        return left

    def _product(self) -> syntax.Node:
        left = self._unary()
        while self.token.kind == "sign" and (operator := self.token.text) in ("*", "/", "%"):
            self._at += 1
            left = self._binary(operator, left, self._unary())
        return left

    def _binary(self, operator: str, left: syntax.Node, right: syntax.Node) -> syntax.Node:
        return syntax.Binary(left.start, self._end, operator, left, right)

    def _unary(self) -> syntax.Node:
        start = self.token.start
        signs = []
        while self.token.kind == "sign" and self.token.text in ("!", "-"):
            signs.append(self.token.text)
            self._at += 1
        if signs and signs[-1] == "-" and self.token.kind == "number":
            signs.pop()
            node = self._postfix(self._number("-", self._tokens[self._at - 1].start))
        else:
            node = self._postfix(self._primary())
        for sign in reversed(signs):
            node = syntax.Unary(start, self._end, sign, node)
        return node

    def _postfix(self, node: syntax.Node) -> syntax.Node:
        while True:
            if self._take("."):
                optional = self._take("?")
                name = self._identifier()
                if not optional and self._take("("):
                    node = self._member_call(node, name)
                else:
                    node = syntax.Select(node.start, self._end, node, name, optional)
            elif self._take("["):
                optional = self._take("?")
                key = self.expression()
                self._need("]")
                node = syntax.Index(node.start, self._end, node, key, optional)
            else:
                return node

    def _primary(self) -> syntax.Node:  # noqa: PLR0911 (one for each kind)
        token = self.token
        if token.kind == "number":
            return self._number("", token.start)
        self._at += 1
        if token.kind == "string":
            return self._constant(token, _string_of(token.text))
        if token.kind == "name":
            if token.text in _CONSTANTS:
                return self._constant(token, _CONSTANTS[token.text])
            if self._take("("):
                return self._call(token)
            return syntax.Name(token.start, token.end, token.text)
        match token.text:
            case "(":
                inner = self.expression()
                self._need(")")
                return inner
            case "[":
                items = self._items("]")
                return syntax.ListOf(token.start, self._end, items)
            case "{":
                return self._map(token)
        self._at -= 1
        raise self.unexpected()

    def _number(self, sign: str, start: int) -> syntax.Node:
        token = self.token
        self._at += 1
        return syntax.Constant(start, token.end, _number_of(sign + token.text))

    def _constant(self, token: _Token, value: object) -> syntax.Node:
        return syntax.Constant(token.start, token.end, value)

    def _items(self, close: str) -> tuple[syntax.Node, ...]:
        items: list[syntax.Node] = []
        while not self._take(close):
            if items:
                self._need(",")
                if self._take(close):
                    break
            if self.token.text == "?":
                raise NotUnderstoodError("optional items of a list")
            items.append(self.expression())
        return tuple(items)

    def _map(self, opening: _Token) -> syntax.Node:
        entries: list[tuple[syntax.Node, syntax.Node]] = []
        while not self._take("}"):
            if entries:
                self._need(",")
                if self._take("}"):
                    break
            if self.token.text == "?":
                raise NotUnderstoodError("optional entries of a map")
            key = self.expression()
            self._need(":")
            entries.append((key, self.expression()))
        return syntax.MapOf(opening.start, self._end, tuple(entries))

    def _call(self, name: _Token) -> syntax.Node:
        arguments = self._items(")")
        if name.text != "has":
            return syntax.Call(name.start, self._end, name.text, None, arguments)
        match arguments:
            case (syntax.Select(operand=operand, field=field, optional=False),):
                return syntax.Has(name.start, self._end, operand, field)
            case _:
                raise NotUnderstoodError("has() of something that is not a field")

    def _member_call(self, target: syntax.Node, name: str) -> syntax.Node:
        arguments = self._items(")")
        place = target.start, self._end
        is_cel = isinstance(target, syntax.Name) and target.name == "cel"
        match name, arguments:
            case "bind", (syntax.Name(name=variable), value, body) if is_cel:
                return syntax.Bind(*place, variable, value, body)
            case (("optMap" | "optFlatMap"), (syntax.Name(name=variable), result)):
                return syntax.OptionalMap(*place, target, variable, result, name == "optFlatMap")
            case _ if name in _COMPREHENSIONS:
                return self._comprehension(target, name, arguments)
            case _:
                return syntax.Call(*place, name, target, arguments)

    def _comprehension(
        self, over: syntax.Node, name: str, arguments: tuple[syntax.Node, ...]
    ) -> syntax.Node:
        place = over.start, self._end
        match name.replace("existsOne", "exists_one"), arguments:
            case "map", (syntax.Name(name=variable), *predicate, result) if len(predicate) < 2:
                condition = predicate[0] if predicate else None
                return syntax.Comprehension(*place, "map", over, variable, condition, result)
            case ("all" | "exists" | "exists_one" | "filter") as kind, (
                syntax.Name(name=variable),
                predicate,
            ):
                return syntax.Comprehension(*place, kind, over, variable, predicate)
            case _:
                raise NotUnderstoodError(f"{name}() with {len(arguments)} arguments")

    def _identifier(self) -> str:
        token = self.token
        if token.kind != "name":
            raise self.unexpected()
        self._at += 1
        return token.text

    def _take(self, text: str) -> bool:
        if self.token.text != text or self.token.kind != "sign":
            return False
        self._at += 1
        return True

    def _need(self, text: str) -> None:
        if not self._take(text):
            raise self.unexpected()


def _number_of(text: str) -> int | float:
    """Return the value of an int, uint or double."""
    body = text.rstrip("uU")
    if body.lstrip("-")[:2].lower() == "0x":
        value: int | float = int(body, 16)
    elif re.search(r"[.eE]", body):
        value = Double(body)
    else:
        value = int(body)
    if body is not text and body != text:
        return Uint(int(value))
    if not isinstance(value, float) and not -(2**63) <= value < 2**63:
        raise NotUnderstoodError(f"the number {text}")
    return value


def _string_of(text: str) -> str:
    """Return the value of a string literal."""
    prefix, body = _unquoted(text)
    if "b" in prefix:
        raise NotUnderstoodError("bytes")
    if "r" in prefix:
        return body
    return _ESCAPE.sub(_character, body)


def _unquoted(text: str) -> tuple[str, str]:
    start = min(at for at in (text.find("'"), text.find('"')) if at >= 0)
    quotes = 3 if text[start : start + 3] in ("'''", '"""') and len(text) - start >= 6 else 1
    return text[:start].lower(), text[start + quotes : -quotes]


def _character(match: re.Match[str]) -> str:
    for digits, base in ((match[1], 16), (match[2], 16), (match[3], 16), (match[4], 8)):
        if digits:
            return chr(int(digits, base))
    return _ESCAPES.get(match[5], match[5])
