"""The demo's output: headings with the time since the start, tables, indented text."""

import sys
import textwrap
import time
from collections.abc import Sequence

from dra_driver.admin.output import aligned


class Screen:
    """Prints to standard output immediately, without a buffer."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        # Bold only on a terminal.
        self._bold, self._plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")

    def part(self, title: str) -> None:
        """Begin a part of the demo."""
        self._print(f"\n{self._bold}== {title}{self._plain}")

    def step(self, text: str) -> None:
        """Print what was done, with the seconds since the start."""
        self._print(f"[{time.monotonic() - self._start:5.1f} s] {text}")

    def text(self, block: str, indent: str = "    ") -> None:
        """Print a block of text, indented."""
        self._print(textwrap.indent(block.rstrip(), indent))

    def line(self, text: str = "") -> None:
        """Print a line as it is."""
        self._print(text)

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print rows in aligned columns."""
        self.text("\n".join(aligned([heads, *rows])))

    def _print(self, text: str) -> None:
        print(text, flush=True)
