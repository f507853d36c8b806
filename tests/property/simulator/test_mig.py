"""Any sequence of cutting and destroying goes as a naive model of a card says it must."""

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pynvml
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mig_calls
from dra_driver.simulator import profile as profiles
from dra_driver.simulator.machine import Machine
from dra_driver.simulator.profile import MigProfile
from sampling import examples

CARDS = ("a100x8", "a30x4", "h100x8", "rtxpro6000x8")
ENGINES = ("multiprocessors", "copy_engines", "decoders", "encoders", "jpeg_engines", "ofa_engines")


@dataclass
class Model:
    """A card as a list of what is on it: every rule spelt out, nothing clever."""

    profiles: list[MigProfile]
    made: dict[int, tuple[MigProfile, int]] = field(default_factory=dict)

    def code(self, profile: MigProfile, start: int) -> int:
        """What NVML answers to an instance of that profile there."""
        if start not in profile.starts:
            return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        taken = {
            place
            for other, begin in self.made.values()
            for place in range(begin, begin + other.size)
        }
        if taken & set(range(start, start + profile.size)):
            return int(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
        same = sum(other.id == profile.id for other, _ in self.made.values())
        enough = all(self._enough(profile, engine) for engine in ENGINES)
        if same == profile.instances or not enough:
            return int(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
        return int(pynvml.NVML_SUCCESS)

    def _enough(self, profile: MigProfile, engine: str) -> bool:
        total = max(getattr(other, engine) for other in self.profiles)
        used = sum(getattr(other, engine) for other, _ in self.made.values())
        return used + int(getattr(profile, engine)) <= total or not getattr(profile, engine)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Machine]:
    folder = tmp_path_factory.mktemp("machines")
    return {name: cuttable(folder, name) for name in CARDS}


def cuttable(folder: Path, name: str) -> Machine:
    """A machine whose first GPU is in MIG mode."""
    at_once = profiles.load(name).model_copy(update={"mig_change_ms": 0})
    machine = Machine.create(folder / name, at_once)
    if not machine.set_mig_mode(machine.gpus[0].uuid, enabled=True):
        machine.reset_gpu(machine.gpus[0].uuid)
    return machine


@contextlib.contextmanager
def device_of(machine: Machine) -> Iterator[object]:
    pynvml.nvmlLib = ctypes.CDLL(str(machine.library))
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlInit()
    try:
        machine.reset_gpu(machine.gpus[0].uuid)
        yield pynvml.nvmlDeviceGetHandleByUUID(machine.gpus[0].uuid)
    finally:
        pynvml.nvmlShutdown()
        pynvml.nvmlLib = None
        pynvml._nvmlGetFunctionPointer_cache.clear()


def create(device: object, profile: MigProfile, start: int) -> tuple[int, int]:
    """Make an instance; NVML's return code and, on success, the instance's id."""
    try:
        made, _ = mig_calls.create_both(device, profile.id, start, profile.size)
    except pynvml.NVMLError as error:
        return int(error.value), -1
    return 0, int(pynvml.nvmlGpuInstanceGetInfo(made).id)


def destroy(device: object, number: int) -> None:
    instance = pynvml.nvmlDeviceGetGpuInstanceById(device, number)
    pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0))
    pynvml.nvmlGpuInstanceDestroy(instance)


def check(machine: Machine, device: object, model: Model) -> None:
    """What NVML lists, what it has room for, and the files agree with the model."""
    devices = machine.mig_devices(machine.gpus[0].uuid)
    assert {(d.gpu_instance, d.profile_id, d.start) for d in devices} == {
        (number, profile.id, start) for number, (profile, start) in model.made.items()
    }
    assert len({d.uuid for d in devices}) == len({d.index for d in devices}) == len(devices)
    assert sorted(mig_calls.mig_devices(device)) == [d.index for d in devices]
    for profile in model.profiles:
        left = pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device, profile.id)
        possible = any(model.code(profile, start) == 0 for start in profile.starts)
        assert (left > 0) == possible
    minor = machine.gpus[0].minor
    folder = machine.proc_root / f"driver/nvidia/capabilities/gpu{minor}/mig"
    assert {path.name for path in folder.iterdir()} == {f"gi{number}" for number in model.made}
    nodes = list((machine.dev_root / "dev/nvidia-caps").iterdir())
    assert len(nodes) == 2 + 2 * len(model.made)


@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
@pytest.mark.parametrize("name", CARDS)
def test_nvml_accepts_exactly_what_the_model_does(
    name: str, machines: dict[str, Machine], data: st.DataObject
) -> None:
    machine = machines[name]
    card = machine.gpus[0].card
    assert card.mig is not None
    model = Model(card.mig.profiles)
    with device_of(machine) as device:
        for _ in range(data.draw(st.integers(1, 25))):
            if model.made and data.draw(st.integers(0, 2)) == 0:
                number = data.draw(st.sampled_from(sorted(model.made)))
                destroy(device, number)
                del model.made[number]
            else:
                profile = data.draw(st.sampled_from(card.mig.profiles))
                start = data.draw(
                    st.sampled_from(profile.starts) | st.integers(0, card.mig.memory_slices)
                )
                code, number = create(device, profile, start)
                assert code == model.code(profile, start)
                if code == 0:
                    assert number not in model.made
                    model.made[number] = (profile, start)
        check(machine, device, model)
