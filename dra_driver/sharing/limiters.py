"""What limits the memory of a share: one table, and the function that reads it. Pure.

In: what the node and the GPU can do, how the device is shared, whether its shares have a size, and
what limits its present tenants. Out: the best that there is, and why nothing better is. Each row of
the table is carried out by a module of its own:

    CONTROL_GROUPS  sharing/memory_groups.py; claims/memory/watch.py sets lost limits again
    MPS             the daemon (sharing/shares.py gives it the limits)
    OVER_LIMIT      usage/watch.py

docs/shares.md has the table for admins.
"""

from collections.abc import Collection
from enum import StrEnum

from msgspec import Struct

from dra_driver.devices.model import Gpu
from dra_driver.devices.shares import LIMITS_SINCE, ShareStrategy

UNSEEN = (
    "this container has its own PID namespace, so NVML does not list other containers' processes: "
    "set the chart's usage.enabled (hostPID)"
)
"""Why it is not seen how much memory the processes of containers have."""
_CAUTION = (
    "persistence mode is off: the GPU driver forgets memory limits when no process has the GPU "
    "open, so pods that start while this driver restarts may have none; run nvidia-persistenced on "
    "the node"
)
_EARLIER = "earlier claims are limited like this; it changes when they end"


class Limiter(StrEnum):
    """What limits the memory of a share, best first."""

    CONTROL_GROUPS = "ControlGroups"
    MPS = "MPS"
    OVER_LIMIT = "OverLimit"
    """Containers that take more are found afterwards."""
    NOTHING = "Nothing"

    def words(self) -> str | None:
        """Return its name for people; None for NOTHING."""
        return _WORDS.get(self)


_WORDS = {
    Limiter.CONTROL_GROUPS: "control groups (NVML)",
    Limiter.MPS: "MPS",
    Limiter.OVER_LIMIT: "--over-limit, afterwards",
}
_OF_EACH_CLAIM = {Limiter.OVER_LIMIT, Limiter.NOTHING}
"""Those that can differ between the tenants of one device; an MPS daemon has one set of limits."""


class Limited(Struct, frozen=True, kw_only=True):
    """What limits memory. `why` says why nothing better does; empty for the best.

    `caution` is what may end the limits; empty for nothing.
    """

    by: Limiter
    why: str = ""
    caution: str = ""

    def with_condition(self) -> str | None:
        """Return the limiter's name, with what its limits depend on; None if nothing limits.

        Programs can remove MPS's limit by their environment, even the daemon's (docs/hardware.md).
        """
        words = self.by.words()
        if self.by is Limiter.MPS:
            return f"{words}, unless a program changes MPS's environment variables"
        return words


def limited(
    gpu: Gpu,
    strategy: ShareStrategy,
    *,
    has_size: bool,
    why_no_groups: str | None,
    sees_processes: bool,
    tenants: Collection[Limiter] = (),
) -> Limited:
    """Return what limits the memory of shares of a GPU, or of one of its MIG devices.

    `has_size`: it is known how much memory a share has. `why_no_groups` is why control groups
    cannot limit it, None if they can; `sees_processes` is whether the driver can see how much
    memory containers have. `tenants` are the limiters of the device's present tenants: a later one
    gets the same.
    """
    why_not = {
        Limiter.CONTROL_GROUPS: why_no_groups,
        Limiter.MPS: _why_no_mps(gpu, strategy),
        Limiter.OVER_LIMIT: _why_not_watched(has_size=has_size, sees_processes=sees_processes),
        Limiter.NOTHING: None,
    }
    best = next(limiter for limiter in Limiter if why_not[limiter] is None)
    present = min(tenants, key=list(Limiter).index, default=best)
    by = best if {present, best} <= _OF_EACH_CLAIM else present
    better = list(Limiter)[: list(Limiter).index(by)]
    reasons = [_EARLIER if why_not[each] is None else why_not[each] for each in better]
    may_end = by is Limiter.CONTROL_GROUPS and gpu.is_persistent is False
    return Limited(
        by=by,
        why="; ".join(dict.fromkeys(filter(None, reasons))),
        caution=_CAUTION if may_end else "",
    )


def _why_no_mps(gpu: Gpu, strategy: ShareStrategy) -> str | None:
    if strategy is not ShareStrategy.MPS:
        return "time-slicing divides no memory"
    if gpu.cuda_compute_capability < LIMITS_SINCE:
        return f"MPS limits nothing on {gpu.product_name}, which is older than Volta"
    return None


def _why_not_watched(*, has_size: bool, sees_processes: bool) -> str | None:
    if not has_size:
        return "it is not set how much memory a share has"
    return None if sees_processes else UNSEEN
