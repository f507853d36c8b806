"""What can be wrong with a GPU: the words for it, and how NVML reports it.

Sources: NVIDIA's catalog of XIDs ("Analyzing Xid Errors with the Xid Catalog"), and nvml.h for the
rest. An error that a bug in an application can cause says nothing about the GPU, so it is only in
`APPLICATION_XIDS`: otherwise a tenant could take GPUs away from others. Those XIDs, and those that
the node's admin ignores (gpu-operator#1065), are at most remarks, for which NVIDIA's DRA driver has
a taint without effect. Remarks are never kept on disk, because the same number could be another
finding once the admin no longer ignores it. docs/health.md has the same tables.
"""

from collections.abc import Set as AbstractSet
from enum import StrEnum
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.devices.model import SickGpu, Vitals
from dra_driver.errors import ConfigError


class Severity(StrEnum):
    """What a finding means for users of the GPU, from the least to the gravest."""

    REMARK = "remark"
    """The GPU works, and what was noticed says nothing about it: a program failed on it."""

    WARNING = "warning"
    """The GPU works; someone should look at it when there is time."""

    FAULT = "fault"
    """New work on the GPU fails or may be wrong; work that is running may continue."""

    LOSS = "loss"
    """The GPU does not work at all: work that was running on it has failed already."""

    @property
    def rank(self) -> int:
        """The place in the order of gravity."""
        return tuple(Severity).index(self)


class Remedy(StrEnum):
    """What to do about a finding; `words` is for people, the value for the record on disk."""

    NONE = "none"
    DRAIN = "drain"
    RESET = "reset"
    REBOOT = "reboot"
    REPLACE = "replace"

    @property
    def words(self) -> str:
        """What to do, for people."""
        return _REMEDIES[self]


_REMEDIES = MappingProxyType(
    {
        Remedy.NONE: "none, it passes by itself",
        Remedy.DRAIN: "drain the GPU's peer-to-peer work: end the pods that use it",
        Remedy.RESET: "a reset of the GPU, as `dra-driver health` explains",
        Remedy.REBOOT: "a reboot of the node",
        Remedy.REPLACE: "a new card",
    }
)


class Cause(StrEnum):
    """What kind of fact a finding is: the part of a taint's key after the slash."""

    XID = "xid"
    RECOVERY = "recovery-action"
    ROW_REMAP = "row-remap"
    ECC = "ecc"
    SLOWDOWN = "slowdown"
    FABRIC = "fabric"
    LOST = "gpu-lost"
    SILENT = "unresponsive"
    REFUSED = "refused"


class Finding(Struct, frozen=True):
    """One thing that is wrong with a GPU.

    Attributes:
        value: which finding of its cause it is, such as `79`; empty if there is only one.
        remedy: what to do about it.
        reason: what is wrong, for people, without the remedy.
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
        """The finding in words for people."""
        return f"{self.reason}; remedy: {self.remedy.words}"


WARNING, FAULT, LOSS = Severity.WARNING, Severity.FAULT, Severity.LOSS

APPLICATION_XIDS = frozenset(
    {13, 31, 32, 43, 45, 68, 69, 94, 109}
    | {*range(39, 42), *range(70, 73), *range(75, 78), *range(82, 87), 88, 89}
    | {*range(96, 106), *range(126, 136), 139}
)
"""Errors caused by, or limited to, the program that ran: the GPU is as good as before."""

INFORMATIVE_XIDS = frozenset(
    {37, 38, 44, 63, 66, 67, 106, 107, 121, 137, 141, 154, 157, 160, 161, 171, 172}
)
"""XIDs that only add to something else, or say what each look reads: 154 says that the recovery
action has changed, 63 that memory is to be replaced, 171 and 172 where an error of 48 or 95 was."""


def _xid(number: int, severity: Severity, remedy: Remedy, reason: str) -> Finding:
    return Finding(Cause.XID, str(number), severity, remedy, f"XID {number}: {reason}")


_NVLINK = "an NVLink has failed"

XIDS = MappingProxyType(
    {
        int(finding.value): finding
        for finding in (
            _xid(46, FAULT, Remedy.RESET, "the GPU stopped processing"),
            _xid(48, FAULT, Remedy.RESET, "an error of its memory could not be corrected"),
            _xid(62, FAULT, Remedy.RESET, "its power management unit halted"),
            _xid(64, FAULT, Remedy.RESET, "bad memory could not be put out of use"),
            _xid(74, FAULT, Remedy.RESET, _NVLINK),
            _xid(79, LOSS, Remedy.REBOOT, "the GPU has fallen off the bus"),
            _xid(92, WARNING, Remedy.NONE, "many errors of its memory had to be corrected"),
            _xid(95, FAULT, Remedy.RESET, "an error of its memory was not contained"),
            _xid(110, FAULT, Remedy.RESET, "a security fault of the GPU"),
            _xid(119, FAULT, Remedy.RESET, "its GSP firmware does not answer"),
            _xid(120, FAULT, Remedy.RESET, "its GSP firmware failed"),
            _xid(136, FAULT, Remedy.RESET, "link training failed"),
            _xid(140, FAULT, Remedy.RESET, "an ECC error was not recovered"),
            _xid(143, FAULT, Remedy.RESET, "the GPU could not be initialised"),
            *(_xid(number, FAULT, Remedy.RESET, _NVLINK) for number in range(144, 151)),
            _xid(151, FAULT, Remedy.REBOOT, "a key could not be rotated"),
            _xid(155, FAULT, Remedy.RESET, "an NVLink software fault"),
            _xid(156, FAULT, Remedy.RESET, "a resource was retired"),
            _xid(158, FAULT, Remedy.RESET, "a fatal timeout inside the GPU"),
            _xid(167, LOSS, Remedy.REBOOT, "a fatal PCIe timeout"),
        )
    }
)
"""Findings by number. Any other XID is a fault that is not known (`of_xid`)."""


def remark(number: int, *, is_ignored: bool) -> Finding:
    """Return a remark about an XID that says nothing about the GPU."""
    why = "this node's settings ignore it" if is_ignored else "a program failed on the GPU"
    return _xid(number, Severity.REMARK, Remedy.NONE, why)


def _action(value: str, severity: Severity, remedy: Remedy, wanted: str) -> Finding:
    return Finding(Cause.RECOVERY, value, severity, remedy, f"the GPU driver wants {wanted}")


RECOVERY_ACTIONS = MappingProxyType(
    {
        1: _action("gpu-reset", FAULT, Remedy.RESET, "the GPU to be reset"),
        2: _action("node-reboot", FAULT, Remedy.REBOOT, "the node to be rebooted"),
        3: _action("drain-p2p", FAULT, Remedy.DRAIN, "peer-to-peer work on the GPU to be ended"),
        4: _action("drain-and-reset", FAULT, Remedy.RESET, "the GPU to be drained and reset"),
        5: _action("recover-imex-domain", WARNING, Remedy.NONE, "its IMEX domain to be recovered"),
        6: _action("bus-reset", FAULT, Remedy.REBOOT, "the GPU's bus to be reset"),
        7: _action("system-reboot", FAULT, Remedy.REBOOT, "the whole system to be rebooted"),
    }
)
"""Findings by NVML_GPU_RECOVERY_ACTION_*; 0 means that there is none."""

UNKNOWN_ACTION = _action("unknown", FAULT, Remedy.REBOOT, "something this driver does not know")

ROWS_FAILED = Finding(
    Cause.ROW_REMAP,
    "failed",
    FAULT,
    Remedy.REPLACE,
    "bad memory of the GPU could not be replaced by spare memory",
)
ROWS_PENDING = Finding(
    Cause.ROW_REMAP,
    "pending",
    WARNING,
    Remedy.RESET,
    "bad memory of the GPU is put out of use, and is replaced at its next reset",
)
UNCORRECTED = Finding(
    Cause.ECC,
    "uncorrected",
    WARNING,
    Remedy.RESET,
    "errors of its memory could not be corrected since the GPU driver was loaded",
)


def _slowdown(value: str, reason: str) -> Finding:
    reason = f"the GPU is slowed down: {reason}"
    return Finding(Cause.SLOWDOWN, value, WARNING, Remedy.NONE, reason, has_to_last=True)


SLOWDOWNS = MappingProxyType(
    {
        0x40: _slowdown("thermal", "it is too hot; check its cooling"),
        0x80: _slowdown("power-brake", "the power supply asks for it; check the node's power"),
    }
)
"""Findings by bits of nvmlClocksEventReason*, without slowdowns by software, which are normal."""


def _fabric(value: str, remedy: Remedy, reason: str) -> Finding:
    reason = f"the GPU has not joined its NVLink fabric, so CUDA cannot start on it: {reason}"
    return Finding(Cause.FABRIC, value, FAULT, remedy, reason, has_to_last=True)


FABRIC_STATES = MappingProxyType(
    {
        1: _fabric("not-started", Remedy.NONE, "it has not started to; check Fabric Manager"),
        2: _fabric("in-progress", Remedy.NONE, "it is still trying; check Fabric Manager"),
    }
)
"""Findings by NVML_GPU_FABRIC_STATE_*; 0 means no fabric, 3 that joining it is over."""

FABRIC_DONE = 3
FABRIC_FAILED = _fabric("failed", Remedy.RESET, "it tried and failed; check Fabric Manager's log")

LOST = Finding(Cause.LOST, "", LOSS, Remedy.REBOOT, "the GPU is out of reach")
SILENT = Finding(Cause.SILENT, "", FAULT, Remedy.REBOOT, "the GPU does not answer NVML")
REFUSED = Finding(Cause.REFUSED, "", FAULT, Remedy.RESET, "NVML cannot describe the GPU")

POLLED = frozenset({Cause.RECOVERY, Cause.ROW_REMAP, Cause.ECC, Cause.SLOWDOWN, Cause.FABRIC})
"""The causes that each look can find for a GPU that answers."""

UNREACHED = frozenset({Cause.LOST, Cause.SILENT, Cause.REFUSED})
"""The causes that a look can find for a GPU that NVML cannot describe."""


class Examination(Struct, frozen=True, kw_only=True):
    """What one look found out about a GPU.

    Attributes:
        unanswered: causes about which the look says neither yes nor no.
        answered: NVML described the GPU.
        says_well: the GPU driver says that nothing has to be done about the GPU.
    """

    findings: tuple[Finding, ...] = ()
    unanswered: frozenset[Cause] = frozenset()
    answered: bool = True
    says_well: bool = False


def examined(vitals: Vitals) -> Examination:
    """Return what is wrong with a GPU that answers."""
    findings: list[Finding] = []
    if vitals.recovery_action:
        findings.append(RECOVERY_ACTIONS.get(vitals.recovery_action, UNKNOWN_ACTION))
    if vitals.rows_failed:
        findings.append(ROWS_FAILED)
    if vitals.rows_pending:
        findings.append(ROWS_PENDING)
    if vitals.uncorrected:
        findings.append(UNCORRECTED)
    bits = vitals.slowdown or 0
    findings += [slowdown for bit, slowdown in SLOWDOWNS.items() if bits & bit]
    fabric = vitals.fabric
    if fabric is not None and (joining := FABRIC_STATES.get(fabric.state)):
        findings.append(joining)
    elif fabric is not None and fabric.state == FABRIC_DONE and fabric.status:
        findings.append(FABRIC_FAILED)
    return Examination(
        findings=tuple(findings),
        unanswered=_unanswered(vitals),
        says_well=vitals.recovery_action == 0,
    )


def out_of_reach(sick: SickGpu) -> Examination:
    """Return what is wrong with a GPU that NVML counts but cannot describe."""
    what = LOST if sick.is_lost else SILENT if sick.is_silent else REFUSED
    return Examination(
        findings=(replace(what, reason=f"{what.reason} ({sick.reason})"),),
        unanswered=POLLED,
        answered=False,
    )


def of_xid(
    number: int, ignored: AbstractSet[int] = frozenset(), *, remarks: bool = False
) -> Finding | None:
    """Return what an XID says about the GPU; None if it says nothing.

    `ignored` are XIDs that the node's admin wants ignored as well. With `remarks`, these XIDs and
    those of programs give a remark instead of None.
    """
    if number in APPLICATION_XIDS | ignored:
        return remark(number, is_ignored=number in ignored) if remarks else None
    if number in INFORMATIVE_XIDS:
        return None
    # An XID in no table is a fault, until the card itself says it is well.
    unknown = "an error of the GPU that this driver does not know"
    return XIDS.get(number) or _xid(number, FAULT, Remedy.RESET, unknown)


def parse_xids(text: str) -> frozenset[int]:
    """Return the XIDs of a list such as `94,119`. Raises ConfigError for anything else."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    wrong = [word for word in words if not (word.isascii() and word.isdecimal())]
    if wrong:
        raise ConfigError(f"{wrong[0]!r} is not an XID: give numbers, separated by commas")
    return frozenset(map(int, words))


def _unanswered(vitals: Vitals) -> frozenset[Cause]:
    said = {
        Cause.RECOVERY: vitals.recovery_action is not None,
        Cause.ROW_REMAP: None not in (vitals.rows_pending, vitals.rows_failed),
        Cause.ECC: vitals.uncorrected is not None,
        Cause.SLOWDOWN: vitals.slowdown is not None,
        Cause.FABRIC: vitals.fabric is not None,
    }
    return frozenset(cause for cause, is_said in said.items() if not is_said)
