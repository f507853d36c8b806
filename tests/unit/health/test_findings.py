"""What NVML says of a GPU, and what that means."""

import pytest

import make
from dra_driver.devices.health import findings
from dra_driver.devices.health.findings import (
    Cause,
    Examination,
    Remedy,
    Severity,
    examined,
    of_xid,
    out_of_reach,
    parse_xids,
)
from dra_driver.devices.model import Fabric, SickGpu, Vitals
from dra_driver.errors import ConfigError

WELL = make.vitals(slowdown=1)
LACKS_ALL = Vitals()


def keys(found: Examination) -> list[tuple[str, str]]:
    return [finding.key for finding in found.findings]


def test_a_healthy_gpu_has_no_findings_and_is_known_well() -> None:
    assert examined(WELL) == Examination(says_well=True)


def test_a_silent_card_has_no_findings_and_is_not_known_well() -> None:
    found = examined(LACKS_ALL)
    assert found.findings == ()
    assert not found.says_well
    assert found.unanswered == findings.POLLED


@pytest.mark.parametrize("number", [*sorted(findings.APPLICATION_XIDS), 119, 92])
def test_xids_of_programs_are_optional_remarks(number: int) -> None:
    ignored = frozenset({92, 119})
    assert of_xid(number, ignored) is None
    found = of_xid(number, ignored, remarks=True)
    assert found is not None
    assert (found.cause, found.value, found.severity, found.remedy) == (
        Cause.XID,
        str(number),
        Severity.REMARK,
        Remedy.NONE,
    )
    why = "this node's settings ignore it" if number in ignored else "a program failed on the GPU"
    assert found.reason == f"XID {number}: {why}"


@pytest.mark.parametrize("number", sorted(findings.INFORMATIVE_XIDS))
def test_an_accompanying_xid_is_no_remark(number: int) -> None:
    assert of_xid(number, remarks=True) is None


@pytest.mark.parametrize("number", sorted(findings.XIDS))
def test_remarks_do_not_change_real_findings(number: int) -> None:
    assert of_xid(number, remarks=True) == of_xid(number) == findings.XIDS[number]


@pytest.mark.parametrize(
    ("vitals", "value", "severity", "remedy"),
    [
        (Vitals(recovery_action=1), "gpu-reset", Severity.FAULT, Remedy.RESET),
        (Vitals(recovery_action=2), "node-reboot", Severity.FAULT, Remedy.REBOOT),
        (Vitals(recovery_action=3), "drain-p2p", Severity.FAULT, Remedy.DRAIN),
        (Vitals(recovery_action=4), "drain-and-reset", Severity.FAULT, Remedy.RESET),
        (Vitals(recovery_action=5), "recover-imex-domain", Severity.WARNING, Remedy.NONE),
        (Vitals(recovery_action=6), "bus-reset", Severity.FAULT, Remedy.REBOOT),
        (Vitals(recovery_action=7), "system-reboot", Severity.FAULT, Remedy.REBOOT),
        (Vitals(recovery_action=99), "unknown", Severity.FAULT, Remedy.REBOOT),
        (Vitals(rows_failed=True), "failed", Severity.FAULT, Remedy.REPLACE),
        (Vitals(rows_pending=True), "pending", Severity.WARNING, Remedy.RESET),
        (Vitals(uncorrected=1), "uncorrected", Severity.WARNING, Remedy.RESET),
        (Vitals(slowdown=0x40 | 0x8), "thermal", Severity.WARNING, Remedy.NONE),
        (Vitals(slowdown=0x80), "power-brake", Severity.WARNING, Remedy.NONE),
        (Vitals(fabric=Fabric(state=1, status=0)), "not-started", Severity.FAULT, Remedy.NONE),
        (Vitals(fabric=Fabric(state=2, status=0)), "in-progress", Severity.FAULT, Remedy.NONE),
        (Vitals(fabric=Fabric(state=3, status=999)), "failed", Severity.FAULT, Remedy.RESET),
    ],
)
def test_each_fact_that_is_read_has_its_finding(
    vitals: Vitals, value: str, severity: Severity, remedy: Remedy
) -> None:
    (finding,) = examined(vitals).findings
    assert (finding.value, finding.severity, finding.remedy) == (value, severity, remedy)
    assert not examined(vitals).says_well


@pytest.mark.parametrize("bits", [0x1, 0x2, 0x4, 0x8, 0x20, 0x100])
def test_normal_clock_changes_are_no_finding(bits: int) -> None:
    assert examined(Vitals(slowdown=bits)).findings == ()


def test_several_facts_are_several_findings() -> None:
    assert keys(examined(Vitals(rows_failed=True, rows_pending=True, recovery_action=1))) == [
        (Cause.RECOVERY, "gpu-reset"),
        (Cause.ROW_REMAP, "failed"),
        (Cause.ROW_REMAP, "pending"),
    ]


@pytest.mark.parametrize(
    ("sick", "cause"),
    [
        (SickGpu(index=3, reason="no bus", is_lost=True), Cause.LOST),
        (SickGpu(index=3, reason="no word", is_silent=True), Cause.SILENT),
        (SickGpu(index=3, reason="no way"), Cause.REFUSED),
    ],
)
def test_a_gpu_out_of_reach_has_nvmls_reason_and_nothing_else_is_known(
    sick: SickGpu, cause: Cause
) -> None:
    found = out_of_reach(sick)
    (finding,) = found.findings
    assert finding.cause is cause
    assert sick.reason in finding.reason
    assert found.unanswered == findings.POLLED
    assert not found.answered


@pytest.mark.parametrize("number", sorted(findings.APPLICATION_XIDS | findings.INFORMATIVE_XIDS))
def test_program_and_accompanying_xids_are_no_finding(number: int) -> None:
    assert of_xid(number) is None


@pytest.mark.parametrize("number", [13, 31, 43, 45, 68, 109])
def test_the_xids_that_nvidias_driver_ignores_are_of_applications(number: int) -> None:
    assert of_xid(number) is None


@pytest.mark.parametrize("number", sorted(findings.XIDS))
def test_each_xid_of_the_table_is_a_finding_with_its_number(number: int) -> None:
    finding = of_xid(number)
    assert finding is not None
    assert finding.key == (Cause.XID, str(number))
    assert finding.reason.startswith(f"XID {number}: ")
    assert of_xid(number, frozenset({number})) is None


def test_no_xid_is_in_two_tables() -> None:
    assert not findings.XIDS.keys() & (findings.APPLICATION_XIDS | findings.INFORMATIVE_XIDS)
    assert not findings.APPLICATION_XIDS & findings.INFORMATIVE_XIDS


def test_an_unknown_xid_is_a_fault() -> None:
    finding = of_xid(999)
    assert finding is not None
    assert (finding.severity, finding.remedy) == (Severity.FAULT, Remedy.RESET)
    assert finding.key == (Cause.XID, "999")
    assert finding.reason == "XID 999: an error of the GPU that this driver does not know"


@pytest.mark.parametrize(
    ("text", "xids"), [("", set()), ("94", {94}), (" 94, 119 ,", {94, 119}), ("0", {0})]
)
def test_a_list_of_xids_is_read(text: str, xids: set[int]) -> None:
    assert parse_xids(text) == xids


@pytest.mark.parametrize("text", ["ninety", "94;95", "-1", "9.5", "\u0663"])
def test_a_list_with_something_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an XID"):
        parse_xids(text)
