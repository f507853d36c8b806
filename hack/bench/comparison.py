"""Columns of figures side by side, each with its ratio to the baseline column. Pure."""

from collections.abc import Mapping

Figures = Mapping[str, float]
"""Numbers by name."""


def ratios(columns: Mapping[str, Figures], baseline: str) -> dict[str, dict[str, float]]:
    """Return each column's figures ÷ the baseline's, without those missing or zero there."""
    if baseline not in columns:
        return {}
    base = columns[baseline]
    return {
        name: {
            figure: round(value / base[figure], 2)
            for figure, value in figures.items()
            if base.get(figure)
        }
        for name, figures in columns.items()
        if name != baseline
    }


def rows(columns: Mapping[str, Figures], baseline: str) -> list[tuple[str, ...]]:
    """Return a row for each figure under a row of the columns' names; ratios in parentheses.

    The order of the figures is that of the fullest column.
    """
    compared = ratios(columns, baseline)
    table: list[tuple[str, ...]] = [("", *columns)]
    fullest_first = sorted(columns.values(), key=len, reverse=True)
    for figure in dict.fromkeys(name for figures in fullest_first for name in figures):
        cells = (_cell(figure, columns[name], compared.get(name, {})) for name in columns)
        table.append((figure, *cells))
    return table


def _cell(figure: str, values: Figures, compared: Figures) -> str:
    if figure not in values:
        return "-"
    ratio = f" ({compared[figure]:g})" if figure in compared else ""
    return f"{_short(values[figure])}{ratio}"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
