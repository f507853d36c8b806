"""The stand-in for libcuda: as far as a program goes that makes a context and gives it back."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.simulator.machine import Machine

NO_DEVICE = 100
PROGRAM = """
import ctypes, sys
cuda = ctypes.CDLL(sys.argv[1])
device, context = ctypes.c_int(), ctypes.c_void_p()
for call in (
    lambda: cuda.cuInit(0),
    lambda: cuda.cuDeviceGet(ctypes.byref(device), int(sys.argv[2])),
    lambda: cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device),
    lambda: cuda.cuCtxDestroy_v2(context),
):
    print(call())
"""


def results(machine: Machine, *, ordinal: int = 0, **environment: str) -> list[int]:
    """The results of the four calls in a program of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, machine.library_folder / "libcuda.so.1", str(ordinal)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return [int(line) for line in done.stdout.split()]


@pytest.fixture
def pipes(tmp_path: Path) -> Path:
    """A pipe directory in which something listens, which answers nothing."""
    folder = tmp_path / "pipe"
    folder.mkdir()
    return folder


def listen(folder: Path) -> socket.socket:
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    inside = os.open(folder, os.O_PATH)
    try:
        end.bind(f"/proc/self/fd/{inside}/control")
    finally:
        os.close(inside)
    end.listen(8)
    return end


def test_devices_are_those_that_are_named_by_uuid(machine: Machine) -> None:
    second = machine.gpus[1].uuid
    assert results(machine, CUDA_VISIBLE_DEVICES=second) == [0, 0, 0, 0]
    assert results(machine, CUDA_VISIBLE_DEVICES=second, ordinal=1)[1] == 101
    assert results(machine, CUDA_VISIBLE_DEVICES="GPU-unknown")[0] == NO_DEVICE


def test_faults_are_injected_by_a_functions_name_and_a_gpu(machine: Machine) -> None:
    first, second = (gpu.uuid for gpu in machine.gpus[:2])
    machine.fail_call("cuCtxCreate_v2", 2, uuid=first, times=1)
    assert results(machine, CUDA_VISIBLE_DEVICES=second) == [0, 0, 0, 0]
    assert results(machine, CUDA_VISIBLE_DEVICES=first)[2] == 2
    assert results(machine, CUDA_VISIBLE_DEVICES=first) == [0, 0, 0, 0]


def test_only_a_client_of_mps_waits_for_its_server(machine: Machine, pipes: Path) -> None:
    machine.fail_call("cuInit", 807)
    assert results(machine, CUDA_MPS_PIPE_DIRECTORY=str(pipes))[0] == 0
    with listen(pipes):
        inside = os.open(pipes, os.O_PATH)
        path = f"/proc/{os.getpid()}/fd/{inside}"  # short, whatever the folder's own is
        assert results(machine, CUDA_MPS_PIPE_DIRECTORY=path)[0] == 807
        os.close(inside)
