"""The forms in which commands print, the same for all: a table for people, JSON and YAML.

In: `--output`, and rows, or a document as JSON. Out: their text.
"""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from dra_driver.commands.command_line import option
from resource_nvidia_com.printable import printable

if TYPE_CHECKING:
    import yaml

Output = Literal["table", "json", "yaml"]
OUTPUT = option(default="table", short="o", help="Output format; json and yaml for programs.")
WideOutput = Literal["table", "wide", "json", "yaml"]
WIDE_OUTPUT = option(
    default="table",
    short="o",
    help="Output format; wide: more columns; json and yaml: for programs.",
)


def is_for_programs(output: WideOutput) -> bool:
    """Whether the output is meant for programs."""
    return output in ("json", "yaml")


def aligned(rows: Sequence[Iterable[str]]) -> list[str]:
    """Return one line for each row, with every column as wide as its widest cell."""
    cells = [tuple(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def for_programs(document: str, output: WideOutput) -> str:
    """Return a JSON document as JSON or YAML."""
    if output == "json":
        return printable(document, keep="\n")
    return yaml_text(json.loads(document), width=100)


def yaml_text(value: object, *, width: int, dumper: "type[yaml.SafeDumper] | None" = None) -> str:
    """Return a value as YAML that a terminal can show.

    If it cannot show a character, all but ASCII is escaped; PyYAML escapes only control characters.
    """
    import yaml  # noqa: PLC0415 (a table needs none)

    def dumped(*, allow_unicode: bool) -> str:
        return str(
            yaml.dump(
                value,
                Dumper=dumper or yaml.SafeDumper,
                sort_keys=False,
                width=width,
                allow_unicode=allow_unicode,
            )
        )

    text = dumped(allow_unicode=True)
    return text if printable(text, keep="\n") == text else dumped(allow_unicode=False)
