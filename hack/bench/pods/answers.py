"""What the driver did for a claim, and when, from its log.

In: log lines of the driver at debug level, as facts. Out: for each claim, when its prepare and its
unprepare began and ended (seconds since 1970), and how often it was refused. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from testbed.api import Object


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """From when to when, in seconds since 1970."""

    began: float
    ended: float


@dataclass(slots=True, kw_only=True)
class Answered:
    """What one claim was answered: `prepare` and `unprepare`, and how often the driver failed."""

    spans: dict[str, Span] = field(default_factory=dict)
    failures: int = 0


_FAILED = {"claim not prepared", "claim not unprepared"}


def answers(lines: Iterable[Object]) -> dict[str, Answered]:
    """Return what the claims were answered, by UID; of repeated calls the first success counts."""
    found: dict[str, Answered] = {}
    for line in lines:
        if line["event"] == "claim answered":
            ended = datetime.fromisoformat(line["timestamp"]).timestamp()
            span = Span(began=ended - line["seconds"], ended=ended)
            spans = found.setdefault(line["claim_uid"], Answered()).spans
            spans.setdefault(line["operation"], span)
        elif line["event"] in _FAILED:
            found.setdefault(line["claim_uid"], Answered()).failures += 1
    return found
