"""Claims whose MPS daemon NVIDIA's DRA driver runs, as this driver goes on with them."""

from pathlib import Path

import pytest

from dra_driver.cdi.model import Edits, Mount
from dra_driver.devices.kinds import GpuPart
from dra_driver.devices.model import GpuUuid
from dra_driver.errors import StateError
from dra_driver.sharing.base import DeviceKey, SharingPlan
from dra_driver.sharing.nvidia_mps import NvidiaMps, deployment_of, plan_of

ONE, TWO = GpuUuid("GPU-1"), GpuUuid("GPU-2")
OPTIONS = ("rw", "nosuid", "nodev", "bind")


class Modes:
    """Compute modes of two GPUs: what is set, and what was asked for."""

    def __init__(self, **modes: int) -> None:
        self.modes = {f"GPU-{name[-1]}": mode for name, mode in modes.items()}

    def compute_mode(self, uuid: str) -> int | None:
        return self.modes[uuid]

    def set_compute_mode(self, uuid: str, mode: int) -> None:
        self.modes[uuid] = mode


def plan(**changes: object) -> SharingPlan:
    made = plan_of(
        "uid-abc",
        Path("/run/mps/uid-abc"),
        gpus=[ONE, TWO],
        clients=["GPU-1", "MIG-3"],
        places=[GpuPart(gpu=ONE)],
    )
    kept = {name: one for name, one in (made.changes | changes).items() if one is not None}
    return SharingPlan(strategy=made.strategy, gpus=made.gpus, places=made.places, changes=kept)


def test_containers_are_clients_as_that_driver_has_them() -> None:
    edits = Edits(
        env=("CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps",),
        mounts=(
            Mount(host_path="/run/mps/uid-abc/shm", container_path="/dev/shm", options=OPTIONS),
            Mount(
                host_path="/run/mps/uid-abc/pipe",
                container_path="/tmp/nvidia-mps",
                options=OPTIONS,
            ),
        ),
    )
    assert NvidiaMps(Modes()).edits(plan()) == {
        DeviceKey("GPU-1"): edits,
        DeviceKey("MIG-3"): edits,
    }


def test_people_are_told_which_deployment_it_is() -> None:
    said = NvidiaMps.describe(plan(), DeviceKey("GPU-1"))
    assert deployment_of("uid-abc") == "mps-control-daemon-uid-abc"
    assert said.settings == {"deployment": "mps-control-daemon-uid-abc"}
    assert said.words == "Deployment mps-control-daemon-uid-abc"


def test_in_the_end_exclusive_gpus_are_put_back_and_no_others() -> None:
    modes = Modes(gpu1=3, gpu2=2)
    NvidiaMps(modes).undo(plan(), 0.0)
    assert modes.modes == {"GPU-1": 0, "GPU-2": 2}
    assert plan().gpus == (ONE, TWO)
    assert plan().places == (GpuPart(gpu=ONE),)


@pytest.mark.parametrize(
    ("without", "problem"), [("clients", "names no clients"), ("folder", "has no folder")]
)
def test_a_plan_without_clients_or_folder_says_so(without: str, problem: str) -> None:
    with pytest.raises(StateError, match=f"MPS of NVIDIA's DRA driver {problem}$"):
        NvidiaMps(Modes()).edits(plan(**{without: None}))


def test_a_plan_without_its_daemon_says_so() -> None:
    with pytest.raises(StateError, match="MPS of NVIDIA's DRA driver has no daemon"):
        NvidiaMps.describe(plan(daemon=None), DeviceKey("GPU-1"))
