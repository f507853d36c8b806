"""A process that has NVML open holds the GPUs that it sees, until it shuts down or dies."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from contract.simulator.conftest import MakeMachine
from dra_driver.errors import SetupError
from dra_driver.simulator.machine import Machine

Nvml = Callable[..., object]
SUCCESS, UNINITIALIZED, NO_PERMISSION, IN_USE = 0, 1, 4, 19
CLIENT = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    print(getattr(library, line.strip())(), flush=True)
"""


class Client:
    """Another process with the machine's NVML."""

    def __init__(self, machine: Machine) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(machine.library)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def call(self, function: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{function}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "0\n"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=30)


@pytest.fixture
def hopper(make_machine: MakeMachine) -> Machine:
    return make_machine("h100x8")


@pytest.fixture
def client(hopper: Machine) -> Iterator[Client]:
    client = Client(hopper)
    yield client
    client.kill()


def switch(machine: Machine, *, on: bool) -> int:
    """What NVML says to a change of the MIG mode, from this process."""
    handle = pynvml.nvmlDeviceGetHandleByUUID(machine.gpus[0].uuid)
    return int(pynvml.nvmlDeviceSetMigMode(handle, int(on)))


def test_a_mode_is_not_changed_while_another_process_has_the_gpu_open(
    hopper: Machine, nvml: Nvml, client: Client
) -> None:
    with nvml(hopper):  # type: ignore[attr-defined]
        assert switch(hopper, on=True) == SUCCESS
        client.call("nvmlInit_v2")
        client.call("nvmlInit_v2")
        assert switch(hopper, on=False) == IN_USE
        client.call("nvmlShutdown")
        assert switch(hopper, on=False) == IN_USE
        client.call("nvmlShutdown")
        assert switch(hopper, on=False) == SUCCESS


def test_a_gpu_that_is_open_elsewhere_is_not_reset(hopper: Machine, client: Client) -> None:
    client.call("nvmlInit_v2")
    with pytest.raises(SetupError, match="another process has NVML open"):
        hopper.reset_gpu(hopper.gpus[0].uuid)
    with pytest.raises(SetupError, match="another process has NVML open"):
        hopper.set_mig_mode(hopper.gpus[0].uuid, enabled=True)
    client.call("nvmlShutdown")
    hopper.reset_gpu(hopper.gpus[0].uuid)


AS_NOBODY = """
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1])
os.setgid(65534); os.setuid(65534)
count = ctypes.c_uint()
print(library.nvmlInit_v2(), library.nvmlDeviceGetCount_v2(ctypes.byref(count)), count.value)
"""


@pytest.mark.usefixtures("needs_root")  # it makes device nodes and becomes someone else
@pytest.mark.parametrize(
    ("denied", "said"), [("nvidia3", [0, 0, 7]), ("nvidiactl", [NO_PERMISSION, UNINITIALIZED, 0])]
)
def test_a_node_that_may_not_be_opened_shows_no_gpu(denied: str, said: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # the other user must get this far
        machine = Machine.create(Path(folder) / "gpus", "h100x8")
        nodes = Path(folder) / "nodes"
        nodes.mkdir()
        minors = {f"nvidia{gpu.minor}": gpu.minor for gpu in machine.gpus}
        for name, minor in {"nvidiactl": 255, **minors}.items():
            os.mknod(nodes / name, 0o666 | stat.S_IFCHR, os.makedev(195, minor))
            (nodes / name).chmod(0o600 if name == denied else 0o666)
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, str(machine.library)],
            env={"NVML_SIMULATOR_DEV": str(nodes)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    assert [int(word) for word in done.stdout.split()] == said
