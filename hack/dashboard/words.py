"""Names of series, as Grafana makes them from a legend's format."""

import re
from collections.abc import Mapping


def legend_of(form: str, labels: Mapping[str, str]) -> str:
    """A series' name: the labels that the format asks for, or all of them."""
    if not form:
        return ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), form)
