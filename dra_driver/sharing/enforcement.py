"""Which backend keeps the tenants of devices to their memory. Pure.

The backends, best first: control groups (sharing/memory_groups.py), which no program gets round;
limits of MPS, which its daemon enforces and which need nothing here; else nothing. Which one a
device gets is chosen in sharing/share_memory.py, and stands in each step of shares as its
`MemoryPart` (sharing/steps.py), so that to undo takes nothing but the record.
"""

from msgspec import Struct

from dra_driver.sharing.steps import Backend

LIMITS_SINCE = (7, 0)
"""Compute capability of Volta, the first whose MPS clients have limits of their own."""


class Choice(Struct, frozen=True, kw_only=True):
    """What enforces memory. `why` is the reason for nothing better; empty for the best."""

    by: Backend
    why: str = ""

    def with_condition(self) -> str | None:
        """Return the backend and what its limits depend on; None for nothing.

        Programs can lift MPS's limit by their environment, the daemon's too (docs/hardware.md).
        """
        words = self.by.words()
        if self.by is Backend.MPS:
            return f"{words}, while programs leave its variables alone"
        return words
