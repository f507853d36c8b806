"""docs/compatibility.md says of versions and feature gates what the code knows of them."""

import re
from pathlib import Path

import pytest

from dra_driver.admin.doctor.checks import cluster_checks, runtime_checks
from dra_driver.admin.doctor.facts.cluster_facts import Feature
from dra_driver.devices.nvml.memory_limits import FIRST_DRIVER
from dra_driver.feature_gates import FEATURE_GATES, KNOWN_FEATURE_GATES, Meaning
from dra_driver.slices.offer.mig import CHEAP_COUNTERS

REPOSITORY = Path(__file__).parents[3]
PAGE = (REPOSITORY / "docs" / "compatibility.md").read_text()
OF_LOGS_AND_STAGES = {
    *("ContextualLogging", "LoggingAlphaOptions", "LoggingBetaOptions"),
    *("AllAlpha", "AllBeta"),
}
"""Gates of NVIDIA's driver that are no features of GPUs."""


def table(last: str) -> list[list[str]]:
    """The rows of the table whose last column is called so, cell by cell."""
    found, inside = [], False
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if not cells:
            inside = False
        elif cells[-1] == last:
            inside = True
        elif inside and set(cells[0]) != {"-"}:
            found.append(cells)
    return found


def spelled(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


NEEDS = {row[0]: row[1:] for row in table("GPU, and what else")}
FIRST = spelled(cluster_checks.FIRST_KUBERNETES)
ON = spelled(cluster_checks.ALL_FEATURES_ON)


def test_the_first_row_has_the_least_versions_that_doctor_accepts() -> None:
    kubernetes, _, runtime, _ = NEEDS["whole GPUs by claim"]
    assert kubernetes == FIRST
    switched_on = spelled(runtime_checks.CDI_SWITCHED_ON)
    known = spelled(runtime_checks.CDI_KNOWN)
    assert runtime == f"containerd {switched_on}; {known} with `enable_cdi = true`; CRI-O 1.34"


def test_the_containerd_from_which_cdi_has_groups_is_the_one_doctor_asks_for() -> None:
    first = spelled(runtime_checks.CDI_GROUPS)
    assert f"| containerd {first} and newer |" in PAGE


def test_every_other_kubernetes_is_the_one_with_all_features_on_or_with_cheap_counters() -> None:
    others = {row[0].partition(";")[0] for row in NEEDS.values()} - {"", FIRST}
    assert others == {ON, spelled(CHEAP_COUNTERS)}
    by_default = NEEDS["[MIG on demand](mig.md)"][0].partition(";")[0]
    assert by_default == spelled(CHEAP_COUNTERS)


def test_memory_limits_need_the_driver_that_the_code_asks_for() -> None:
    (row,) = (row for name, row in NEEDS.items() if "memory limits by control group" in name)
    assert row[1] == f"R{FIRST_DRIVER}"


def test_each_feature_of_the_api_server_has_a_row_that_says_what_doctor_says() -> None:
    rows = {row[0].strip("`"): row[1:] for row in table("without it")}
    assert rows.keys() == set(Feature)
    for feature, (on, by_gate, without) in rows.items():
        assert on == ON
        assert by_gate == spelled(cluster_checks.GATE_FROM[Feature(feature)])
        assert without.replace("`", "") == cluster_checks.WITHOUT[Feature(feature)]


def test_every_gate_of_nvidias_releases_has_a_row() -> None:
    named = {gate for row in table("its gate") for gate in re.findall(r"`(\w+)`", row[-1])}
    released = {one.name for one in FEATURE_GATES if not one.source.startswith("#")}
    assert named == released - OF_LOGS_AND_STAGES


@pytest.mark.parametrize("row", [row for row in table("its gate") if row[-1]])
def test_the_page_says_of_a_gate_what_the_settings_say(row: list[str]) -> None:
    gates = [KNOWN_FEATURE_GATES[name] for name in re.findall(r"`(\w+)`", row[-1])]
    (is_missing,) = {gate.meaning is Meaning.NOT_HERE for gate in gates}
    assert row[1].startswith("**no**" if is_missing else "yes")
