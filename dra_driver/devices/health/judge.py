"""From what NVML says to findings, by the tables of devices/health/tables.py. Pure."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from dra_driver.devices.health import tables
from dra_driver.devices.health.findings import Cause, Finding
from dra_driver.devices.model import SickGpu
from dra_driver.devices.vitals import Vitals
from dra_driver.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What one look found of a GPU.

    Attributes:
        findings: what is wrong.
        unanswered: causes of which the look says neither yes nor no.
        answered: the GPU was described.
        says_well: the NVIDIA driver says that nothing has to be done about it.
    """

    findings: tuple[Finding, ...] = ()
    unanswered: frozenset[Cause] = frozenset()
    answered: bool = True
    says_well: bool = False


def examined(vitals: Vitals) -> Examination:
    """Return what is wrong with a GPU that answers."""
    found: list[Finding] = []
    if vitals.recovery_action:
        action = tables.RECOVERY_ACTIONS.get(vitals.recovery_action, tables.UNKNOWN_ACTION)
        found.append(action)
    if vitals.rows_failed:
        found.append(tables.ROWS_FAILED)
    if vitals.rows_pending:
        found.append(tables.ROWS_PENDING)
    if vitals.uncorrected:
        found.append(tables.UNCORRECTED)
    bits = vitals.slowdown or 0
    found += [one for bit, one in tables.SLOWDOWNS.items() if bits & bit]
    if joining := tables.FABRIC_STATES.get(vitals.fabric_state or 0):
        found.append(joining)
    elif vitals.fabric_state == tables.FABRIC_DONE and vitals.fabric_status:
        found.append(tables.FABRIC_FAILED)
    return Examination(
        findings=tuple(found),
        unanswered=_unanswered(vitals),
        says_well=vitals.recovery_action == 0,
    )


def out_of_reach(sick: SickGpu) -> Examination:
    """Return what is wrong with a GPU that NVML counts and cannot describe."""
    if sick.is_lost:
        what = tables.LOST
    elif sick.is_silent:
        what = tables.SILENT
    else:
        what = tables.REFUSED
    return Examination(
        findings=(replace(what, reason=f"{what.reason} ({sick.reason})"),),
        unanswered=tables.POLLED,
        answered=False,
    )


def of_xid(
    number: int, ignored: AbstractSet[int] = frozenset(), *, remarks: bool = False
) -> Finding | None:
    """Return what an XID says of the GPU; None if it says nothing.

    Args:
        number: the XID.
        ignored: XIDs that this node's admin wants to be ignored too.
        remarks: XIDs of programs, and those that are ignored, are a remark instead of nothing.
    """
    if number in tables.APPLICATION_XIDS | ignored:
        return tables.remark(number, is_ignored=number in ignored) if remarks else None
    if number in tables.INFORMATIVE_XIDS:
        return None
    return tables.XIDS.get(number) or tables.unknown_xid(number)


def asks_for_look(number: int) -> bool:
    """Tell whether an XID is a reason to look at the GPU at once: not what programs can cause."""
    return number not in tables.APPLICATION_XIDS


def parse_xids(text: str) -> frozenset[int]:
    """Return the XIDs of a list such as `94,119`.

    Raises:
        ConfigError: it holds something else.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    wrong = [word for word in words if not (word.isascii() and word.isdecimal())]
    if wrong:
        raise ConfigError(f"{wrong[0]!r} is no XID: give numbers, separated by commas")
    return frozenset(map(int, words))


def _unanswered(vitals: Vitals) -> frozenset[Cause]:
    said = {
        Cause.RECOVERY: vitals.recovery_action is not None,
        Cause.ROW_REMAP: None not in (vitals.rows_pending, vitals.rows_failed),
        Cause.ECC: vitals.uncorrected is not None,
        Cause.SLOWDOWN: vitals.slowdown is not None,
        Cause.FABRIC: vitals.fabric_state is not None,
    }
    return frozenset(cause for cause, is_said in said.items() if not is_said)
