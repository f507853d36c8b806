"""Numbers and strings as CEL writes them, to values. Pure."""

import re

from dra_driver.admin.cel.values import Double, NotUnderstoodError, Uint

_ESCAPES = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
}
_ESCAPE = re.compile(
    r"\\(?:[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))", re.DOTALL
)


def number_of(text: str) -> int | float:
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


def string_of(text: str) -> str:
    """Return the value of a string literal."""
    prefix, body = _split(text)
    if "r" in prefix:
        return body
    return _ESCAPE.sub(_character, body)


def bytes_of(text: str) -> bytes:
    """Return the value of a bytes literal; none with an escape, which stands for a byte there."""
    prefix, body = _split(text)
    if "r" not in prefix and "\\" in body:
        raise NotUnderstoodError("escapes in bytes")
    return body.encode()


def _split(text: str) -> tuple[str, str]:
    start = min(at for at in (text.find("'"), text.find('"')) if at >= 0)
    quotes = 3 if text[start : start + 3] in ("'''", '"""') and len(text) - start >= 6 else 1
    return text[:start].lower(), text[start + quotes : -quotes]


def _character(match: re.Match[str]) -> str:
    for digits, base in ((match[1], 16), (match[2], 16), (match[3], 16), (match[4], 8)):
        if digits:
            return chr(int(digits, base))
    return _ESCAPES.get(match[5], match[5])
