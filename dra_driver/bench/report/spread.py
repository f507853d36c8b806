"""How much repetitions vary: a mean, and the interval in which the true one is. Pure.

The interval is that of Student's t with a confidence of 95 %, as wide as the number of repetitions
makes it. It says nothing about what all repetitions have in common, such as the card.
"""

import math
import statistics
from collections.abc import Iterable, Sequence

from msgspec import Struct

# Two-sided 95 % quantiles of Student's t, for 1 degree of freedom and more.
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_T_OF_MANY = 1.98
"""For 100 degrees of freedom; used from 31 on, where it is at most 3 % too small."""


class Spread(Struct, frozen=True, kw_only=True):
    """A figure of all repetitions, with half of its interval; None for a single one."""

    mean: float
    half: float | None
    values: Sequence[float]

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.mean - (self.half or 0.0)

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.mean + (self.half or 0.0)

    def is_apart_from(self, other: "Spread") -> bool:
        """Whether the intervals do not overlap; single values never tell by themselves."""
        return self.low > other.high or other.low > self.high


def spread(values: Iterable[float | None]) -> Spread | None:
    """Return mean and interval of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    mean = statistics.fmean(known)
    if len(known) == 1:
        return Spread(mean=mean, half=None, values=known)
    freedom = len(known) - 1
    quantile = _T[freedom - 1] if freedom <= len(_T) else _T_OF_MANY
    half = quantile * statistics.stdev(known) / math.sqrt(len(known))
    return Spread(mean=mean, half=half, values=known)
