"""The forms in which commands print, the same for all: a table for people, JSON and YAML.

In: `--output`, and a document as JSON. Out: its text. `wide` is the table with more columns, where
there are more.
"""

import json
from typing import Literal

from dra_driver.command_line import option

Output = Literal["table", "wide", "json", "yaml"]
OUTPUT = option(
    default="table",
    short="o",
    help="Output format: table, wide (with more columns, if there are more), or json and yaml for "
    "programs.",
)


def is_for_programs(output: Output) -> bool:
    """Whether a program reads it."""
    return output in ("json", "yaml")


def for_programs(document: str, output: Output) -> str:
    """Return a JSON document as JSON or YAML."""
    if output == "json":
        return document
    # Not above: who reads a table needs no YAML.
    import yaml  # noqa: PLC0415

    return str(yaml.safe_dump(json.loads(document), sort_keys=False, width=100, allow_unicode=True))
