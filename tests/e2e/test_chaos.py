"""A short campaign, the same every time, on a cluster of its own."""

import os
import re
import sys
from pathlib import Path

import pytest
from testbed.cluster import version_flags
from testbed.commands import REPOSITORY, run

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e.conftest import missing
from e2e.kubernetes import CONTAINERD, KUBERNETES, RUNTIME, needs
from e2e.needs import cannot_run

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.stream("two"),
    needs(Feature.COUNTERS, Feature.EXTENDED_RESOURCE),
]

VERSIONS = version_flags(kubernetes=KUBERNETES, containerd=CONTAINERD, runtime=RUNTIME)
SEED = 1400
ROUNDS = 9
"""Together they have every trouble at least once, share config changes among shares that are held,
and end with nothing left."""


@pytest.mark.long("tests/property/test_claims.py::TestNode", "tests/e2e/test_outages.py")
def test_everything_holds_through_a_short_campaign(tmp_path: Path) -> None:
    if reason := missing():
        cannot_run(reason)
    name = f"{os.environ.get('E2E_CLUSTER', 'e2e')[:8]}-chaos"
    words = ("--seed", str(SEED), "--rounds", str(ROUNDS), "--name", name, *VERSIONS)
    logs = ("--logs", tmp_path / "logs", "--output", tmp_path / "report.json")
    said = run((sys.executable, REPOSITORY / "hack" / "chaos", *words, *logs), timeout=850)
    assert re.search(rf"^seed {SEED}: {ROUNDS + 1} rounds, \d+ pods", said, re.MULTILINE)
    assert "VIOLATION" not in said
