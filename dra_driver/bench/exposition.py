"""Prometheus' text exposition: the samples with some names, in a text with other content.

prometheus_client's own parser reads each line; a line that begins with such a name but is not a
sample is an error, not a figure.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from dra_driver.errors import SetupError

_QUOTED = 160


class Sample(Struct, frozen=True, kw_only=True):
    """One line: its name, labels and value, and the line itself."""

    name: str
    labels: Mapping[str, str]
    value: float
    line: str


def samples(text: str, names: Sequence[str]) -> tuple[Sample, ...]:
    """Return the samples with one of these names, in their order.

    Raises SetupError for a line with such a name that cannot be read.
    """
    starts = tuple(f"{name}{end}" for name in names for end in ("{", " ", "\t"))
    return tuple(
        sample for line in text.splitlines() if line.startswith(starts) for sample in _read(line)
    )


def _read(line: str) -> Iterator[Sample]:
    try:
        for family in text_string_to_metric_families(f"{line}\n"):
            for name, labels, value, *_ in family.samples:
                yield Sample(name=name, labels=labels, value=float(value), line=line)
    except (ValueError, IndexError, KeyError) as error:
        raise SetupError(f"not a sample of Prometheus' text format: {line[:_QUOTED]!r}") from error
