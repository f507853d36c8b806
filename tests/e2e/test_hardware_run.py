"""`make hardware` with containers of runc, on a simulated card: what tests/contract leaves out."""

from pathlib import Path

import pytest
from testbed.containers import Containers

from dra_driver.errors import SetupError
from dra_driver.simulator.device_nodes import NodeKind
from dra_driver.simulator.driver_root import Options
from dra_driver.simulator.machine import Machine
from e2e.needs import cannot_run
from worlds.hardware_run import Tried

pytestmark = [pytest.mark.e2e, pytest.mark.stream("two")]


@pytest.fixture
def tried(containers: Containers, tmp_path: Path) -> Tried:
    """A machine on which containers can be made."""
    options = Options(userspace="real", nodes=NodeKind.DEVICE)
    try:
        machine = Machine.create(tmp_path / "machine", "h100x8", options)
    except SetupError as error:
        cannot_run(str(error))
    return Tried(machine, tmp_path, ALLOW="mps,compute-mode")


def test_containers_get_the_card_of_their_claim(tried: Tried) -> None:
    tried.run("container")
    tried.check_as_before()
    assert tried.outcomes()["container"] == "passed"
    for test in tried.found()["tests"][1:]:
        assert test["reason"].endswith("nothing computes on a simulated GPU; a context was made"), (
            "the program ran in its container and found the driver's library"
        )
