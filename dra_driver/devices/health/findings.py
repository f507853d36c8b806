"""The words of health: what can be wrong with a GPU, how grave it is, and what makes it pass.

A `Finding` is a fact in these words; devices/health/tables.py says which facts there are. Nothing
here knows of Kubernetes or NVML.
"""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """What a finding means to who wants the GPU, from the least to the gravest."""

    REMARK = "remark"
    """It works, and what was noticed says nothing of it: a program failed on it."""

    WARNING = "warning"
    """It works; someone should look after it when there is time."""

    FAULT = "fault"
    """New work on it fails or may be wrong; what runs may go on."""

    LOSS = "loss"
    """It does not work at all: what runs on it has failed already."""

    @property
    def rank(self) -> int:
        """Return its place in the order of gravity."""
        return tuple(Severity).index(self)


class Remedy(StrEnum):
    """What makes it pass, in a person's words."""

    NONE = "nothing: it passes by itself"
    DRAIN = "drain the GPU's peer-to-peer work: end the pods that use it"
    RESET = "a reset of the GPU"
    REBOOT = "a reboot of the node"
    REPLACE = "a new card"


class Cause(StrEnum):
    """What kind of fact it is: the part of a taint's key after the slash."""

    XID = "xid"
    RECOVERY = "recovery-action"
    ROW_REMAP = "row-remap"
    ECC = "ecc"
    SLOWDOWN = "slowdown"
    FABRIC = "fabric"
    LOST = "gpu-lost"
    SILENT = "unresponsive"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong with a GPU.

    Attributes:
        cause: the kind of fact.
        value: which one of that kind, such as `79`; empty where there is only one.
        severity: how grave it is.
        remedy: what makes it pass.
        reason: what it is, for people, without the remedy.
        has_to_last: it counts only once it has lasted for a while.
    """

    cause: Cause
    value: str
    severity: Severity
    remedy: Remedy
    reason: str
    has_to_last: bool = False

    @property
    def key(self) -> tuple[Cause, str]:
        """What makes two findings the same."""
        return self.cause, self.value

    @property
    def text(self) -> str:
        """Return it for people: what it is, and what makes it pass."""
        return f"{self.reason}; what makes it pass: {self.remedy}"
