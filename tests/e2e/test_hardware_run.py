"""`make hardware` with containers of runc, on a simulated card: what tests/contract leaves out."""

from pathlib import Path

import pytest

from containers import Containers
from dra_driver.errors import SetupError
from dra_driver.simulator.device_nodes import NodeKind
from dra_driver.simulator.driver_root import Options
from dra_driver.simulator.machine import Machine
from e2e.needs import cannot_run
from worlds.hardware_run import Tried

pytestmark = pytest.mark.e2e

ONLY = "container,container-computes,container-mps"


def test_containers_get_the_card_of_their_claim(containers: Containers, tmp_path: Path) -> None:
    options = Options(userspace="real", nodes=NodeKind.DEVICE)
    try:
        machine = Machine.create(tmp_path / "machine", "h100x8", options)
    except SetupError as error:
        cannot_run(str(error))
    tried = Tried(machine, tmp_path)
    tried.run("--allow", "mps,compute-mode", "--only", ONLY)
    tried.check_as_before()
    steps = {one["name"]: one for one in tried.found()["steps"]}
    assert steps["container"]["verdict"] == "passed"
    for name in ("container-computes", "container-mps"):
        assert steps[name]["reason"] == (
            "nothing computes on a simulated GPU; a context was made"
        ), "the program ran in its container and found the driver's library"
