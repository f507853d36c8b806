"""Claims whose MPS daemon NVIDIA's DRA driver runs, as this driver goes on with them."""

from msgspec.structs import replace

import make
from dra_driver.sharing.nvidia_mps import NvidiaMps
from dra_driver.sharing.steps import NvidiaMpsDaemon

ONE, TWO, MIG = make.gpu(1), make.gpu(2), make.mig_device(3)
STEP = NvidiaMpsDaemon(
    devices=(make.device(ONE), make.device(MIG)), daemon="uid-abc", folder="/run/mps/uid-abc"
)


class Modes:
    """Compute modes of GPUs: what is set."""

    def __init__(self, modes: dict[str, int]) -> None:
        self.modes = modes

    def compute_mode(self, uuid: str) -> int | None:
        return self.modes[uuid]

    def set_compute_mode(self, uuid: str, mode: int) -> None:
        self.modes[uuid] = mode


def test_the_deployment_is_named() -> None:
    said = STEP.describe(make.device(ONE))
    assert STEP.deployment == "mps-control-daemon-uid-abc"
    assert said.settings == {"deployment": "mps-control-daemon-uid-abc"}
    assert said.words == ("Deployment mps-control-daemon-uid-abc",)


def test_only_exclusive_gpus_are_restored_at_the_end() -> None:
    step = replace(STEP, devices=(*STEP.devices, make.device(TWO)))
    modes = Modes({ONE.uuid: 3, TWO.uuid: 2, MIG.parent: 3})
    NvidiaMps(modes).undo(step, 0.0)
    assert modes.modes == {ONE.uuid: 0, TWO.uuid: 2, MIG.parent: 3}
    assert step.gpus == (ONE.uuid, TWO.uuid)
