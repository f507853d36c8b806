"""Tables on a terminal, for people."""

from collections.abc import Iterable, Sequence


def aligned(rows: Sequence[Iterable[str]]) -> list[str]:
    """Return one line for each row, with every column as wide as its widest cell."""
    cells = [tuple(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
