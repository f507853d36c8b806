"""`make hardware` with containers of runc, on a simulated card: what tests/contract leaves out."""

import os
import subprocess
import threading
from pathlib import Path

import pytest
from testbed.containers import Containers

from dra_driver.errors import SetupError
from dra_driver.simulator.device_nodes import NodeKind
from dra_driver.simulator.driver_root import Options
from dra_driver.simulator.machine import Machine
from e2e.needs import cannot_run
from hardware import processes
from hardware.every_step import STEPS
from worlds.hardware_run import Tried

pytestmark = [pytest.mark.e2e, pytest.mark.stream("two")]

IN_CONTAINERS = [step for step in STEPS if step.name.startswith("container")]
ALLOW = "mps,compute-mode"


@pytest.fixture
def tried(containers: Containers, tmp_path: Path) -> Tried:
    """A machine on which containers can be made."""
    options = Options(userspace="real", nodes=NodeKind.DEVICE)
    try:
        machine = Machine.create(tmp_path / "machine", "h100x8", options)
    except SetupError as error:
        cannot_run(str(error))
    return Tried(machine, tmp_path)


def test_containers_get_the_card_of_their_claim(tried: Tried) -> None:
    tried.run("--allow", ALLOW, "--only", ",".join(step.name for step in IN_CONTAINERS))
    tried.check_as_before()
    steps = {one["name"]: one for one in tried.found()["steps"]}
    assert steps["container"]["verdict"] == "passed"
    for name in ("container-computes", "container-mps"):
        assert steps[name]["reason"] == (
            "nothing computes on a simulated GPU; a context was made"
        ), "the program ran in its container and found the driver's library"


def test_a_process_of_a_container_that_is_not_started_yet_is_ended(tmp_path: Path) -> None:
    """It has the run's control group already, and not yet the environment of the container."""
    name = f"test{os.getpid()}"
    hierarchy = processes.CGROUPS
    if not (hierarchy / "cgroup.procs").exists():
        hierarchy /= "pids"  # cgroup v1
    (group := hierarchy / f"dra-{name}-container-0").mkdir()
    with subprocess.Popen(("sleep", "600")) as process:
        (group / "cgroup.procs").write_text(str(process.pid))
        assert processes.of_run(name, tmp_path) == {process.pid}
        threading.Thread(target=process.wait).start()  # or it would be a zombie
        processes.end_all(name, tmp_path)
    processes.remove_groups(name)
    assert processes.groups(name) == []
