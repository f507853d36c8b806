"""How commands print: text of strangers is shown, but cannot control the terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from resource_nvidia_com.printable import printable


class Printable:
    """A stream of text that escapes all unprintable characters except line breaks and tabs.

    `unescaped` is the stream below it, for a program's own control sequences.
    """

    def __init__(self, stream: TextIO) -> None:
        self.unescaped = stream

    def write(self, text: str) -> int:
        """Write a text; return how many characters it has."""
        self.unescaped.write(printable(text, keep="\n\t"))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unescaped, name)


def unescaped(stream: TextIO) -> TextIO:
    """Return the stream below one that escapes, or the stream itself."""
    return stream.unescaped if isinstance(stream, Printable) else stream


@contextmanager
def escaping() -> Iterator[None]:
    """Make standard output and standard error escape unprintable characters."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", Printable(unescaped(stream))) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
