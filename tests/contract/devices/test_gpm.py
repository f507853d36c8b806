"""What GPM counts, through NVML in the driver and in a benchmark's tenant."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.bench.tenant.card import CardNvml
from dra_driver.devices.nvml.gpm import GpmCount, GpmUsage
from dra_driver.simulator.machine import Machine
from dra_driver.simulator.processes import Activity

MIB = 1 << 20
NO_PERMISSION, UNKNOWN = 4, 999


@pytest.fixture
def h100(tmp_path: Path) -> Machine:
    return Machine.create(tmp_path / "root", "h100x8")


@pytest.fixture
def divided(h100: Machine) -> list[str]:
    """Two MIG devices of GPU 0; the first is busy."""
    gpu = h100.find("0").uuid
    h100.set_mig_mode(gpu, enabled=True)
    devices = [h100.create_mig(gpu, "1g.10gb") for _ in range(2)]
    h100.hold_instance(devices[0], pid=21, memory=MIB)
    h100.let_do(21, Activity(sm=60, memory_access=30))
    return devices


@pytest.fixture
def cards() -> Iterator[list[CardNvml]]:
    opened: list[CardNvml] = []
    yield opened
    for nvml in opened:
        nvml.close()


def usage(machine: Machine, cards: list[CardNvml], visible: str = "") -> GpmUsage | None:
    """What was used of GPU 0 during a moment."""
    cards.append(CardNvml(machine.driver_root))
    count = cards[-1].count(visible)
    if count is None:
        return None
    assert isinstance(count, GpmCount)
    count.start()
    time.sleep(0.12)
    return count.stop()


def test_in_mig_mode_metrics_are_of_the_tenants_device(
    h100: Machine, divided: list[str], cards: list[CardNvml]
) -> None:
    busy, idle = divided
    assert usage(h100, cards, busy) == GpmUsage(busy_sms=60.0, bandwidth=30.0)
    assert usage(h100, cards, idle) == GpmUsage(busy_sms=0.0, bandwidth=0.0)
    assert usage(h100, cards) is None  # there are two, and nobody says which


@pytest.mark.parametrize("code", [NO_PERMISSION, UNKNOWN])
@pytest.mark.parametrize("function", ["nvmlGpmSampleGet", "nvmlGpmMetricsGet"])
def test_refused_metrics_are_left_out(
    function: str, code: int, h100: Machine, cards: list[CardNvml]
) -> None:
    h100.fail_call(function, code)
    assert usage(h100, cards) == GpmUsage()


def test_an_older_card_has_none(tmp_path: Path, cards: list[CardNvml]) -> None:
    assert usage(Machine.create(tmp_path / "root", "a100x8"), cards) == GpmUsage()


def mig_container_dev(folder: Path, minor: int, gpu_instance: int) -> Path:
    """Make /dev of a container with one MIG device, of the GPU with this minor; return it.

    Its capabilities are those of the instance and of its one compute instance.
    """
    first = 3 + (minor * 15 + gpu_instance) * 9
    dev = folder / "dev"
    (dev / "nvidia-caps").mkdir(parents=True)
    for name in ("nvidiactl", f"nvidia{minor}"):
        (dev / name).touch()
    for capability in (first, first + 1):
        (dev / "nvidia-caps" / f"nvidia-cap{capability}").touch()
    return dev


def test_in_a_container_with_one_mig_device_the_card_and_its_part_are_known(
    h100: Machine,
    divided: list[str],
    cards: list[CardNvml],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = h100.find("0")
    mine = h100.mig_devices(gpu.uuid)[0].gpu_instance
    dev = mig_container_dev(tmp_path, gpu.minor, mine)
    monkeypatch.setenv("NVML_SIMULATOR_DEV", str(dev))
    assert usage(h100, cards) == GpmUsage(busy_sms=60.0, bandwidth=30.0)
    # The memory of all instances is told to no container that has one of them.
    assert (cards[-1].card().name, cards[-1].card().memory_mib) == ("NVIDIA H100 80GB HBM3", None)
    assert cards[-1].busy().memory_used_bytes is None
    # Nor may it list them, which is the reason, and not that there are none.
    assert "may not list MIG devices" in cards[-1].mig_problem
