"""What a daemon sees of the machine. The program is a script: it says what it sees, and ends."""

import os
from functools import partial
from pathlib import Path

import pytest

import driver_tree
import make
from dra_driver.cdi.roots import find_roots
from dra_driver.errors import DeviceError, SilenceError
from dra_driver.mps.daemon.control import Control, ask_daemon
from dra_driver.mps.daemon.limits import ANSWERED
from dra_driver.mps.domain import Domain, DomainDevice, DomainId
from dra_driver.mps.files import DomainPaths

SCRIPT = """#!/bin/sh
echo /dev/nvidia* >{seen}
echo /dev/sh* >>{seen}
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts and mount namespaces need root")
def test_a_daemon_sees_the_nodes_of_a_driver_container_that_came_later(tmp_path: Path) -> None:
    root, seen = tmp_path / "driver", tmp_path / "seen"
    driver_tree.driver_root(root)
    (root / "dev").rename(tmp_path / "dev")
    roots = find_roots(driver_root=Path("/run/nvidia/driver"), container_driver_root=root)
    control = Control(roots.driver, tmp_path, own_dev=roots.own_dev)
    program = root / "usr/bin/nvidia-cuda-mps-control"
    program.write_text(SCRIPT.format(seen=seen))
    program.chmod(0o755)
    (root / "dev").mkdir()
    for name in ("nvidiactl", "nvidia0", "null"):
        (root / "dev" / name).touch()
    paths = DomainPaths(folder=tmp_path / "domain")
    for folder in (paths.own, paths.shm, paths.log, paths.libraries):
        folder.mkdir(parents=True)

    device = DomainDevice(uuid=make.gpu(0).uuid)
    with pytest.raises(DeviceError, match="does not start"):
        control.start(Domain(id=DomainId("claim"), devices=(device,)), paths, "token")
    assert seen.read_text().split() == ["/dev/nvidia0", "/dev/nvidiactl", "/dev/shm"]


@pytest.mark.parametrize(
    ("commands", "is_answered"),
    [
        (["get_server_list"], False),
        (["get_server_list", ANSWERED], True),
        ([ANSWERED, "get_default_device_pinned_mem_limit 0"], True),
        (["get_server_status 41"], True),
        (["set_default_active_thread_percentage 50"], False),
    ],
)
def test_a_rejected_command_without_a_message_is_no_answer(
    tmp_path: Path, commands: list[str], is_answered: bool
) -> None:
    """As by a daemon that has another caller. What may be empty anyway cannot be told apart."""
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    ask = partial(ask_daemon, program, commands, environment={}, log=tmp_path / "log")
    if is_answered:
        with pytest.raises(SilenceError, match=r"does not answer \(it says nothing\); see .*/log"):
            ask()
    else:
        assert ask() == []
