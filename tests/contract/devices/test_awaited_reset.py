"""A GPU whose MIG mode changes by a reset can be reset while the driver runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from testbed.commands import TestbedError, run
from testbed.machine import DRIVER

from dra_driver.devices.mig.making import MigInstances
from dra_driver.devices.mig.partitions import partition_named
from dra_driver.devices.model import MigMode
from dra_driver.devices.session import DriverSession
from dra_driver.errors import DeviceError
from dra_driver.simulator import sysfs
from dra_driver.simulator.machine import Machine
from worlds.session import session_on


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine.create(tmp_path / "machine", "a100x8")


@pytest.fixture
def session(machine: Machine) -> Iterator[DriverSession]:
    """A session that has looked once, and so has all GPUs open."""
    session = session_on(machine)
    session.look()
    yield session
    session.close()


def reset(machine: Machine, index: int = 0) -> None:
    """Reset a GPU from another process, which the driver's is in the way of."""
    run((DRIVER, "simulate", "reset", "--gpu", str(index), "--root", machine.driver_root))


def check_held(machine: Machine) -> None:
    """Check that the driver has its GPUs open, so that none can be reset."""
    with pytest.raises(TestbedError, match="another process has NVML open"):
        reset(machine)


def modes(session: DriverSession) -> list[MigMode]:
    return [gpu.mig_mode for gpu in session.look().gpus]


ON, OFF = MigMode.ENABLED, MigMode.DISABLED
UNKNOWN = 999


@pytest.mark.parametrize(("before", "after"), [(OFF, ON), (ON, OFF)])
def test_gpus_are_closed_while_one_waits_for_its_reset(
    machine: Machine, session: DriverSession, before: MigMode, after: MigMode
) -> None:
    gpu = session.look().gpus[0]
    machine.set_mig_mode(gpu.uuid, enabled=before is ON)
    machine.reset_gpu(gpu.uuid)
    assert modes(session)[0] is before
    check_held(machine)

    machine.set_mig_mode(gpu.uuid, enabled=after is ON)
    assert modes(session)[0] is before
    reset(machine)

    assert modes(session) == [after, *[OFF] * 7]
    check_held(machine)


def test_claims_are_served_meanwhile(machine: Machine, session: DriverSession) -> None:
    divided, waiting = session.look().gpus[:2]
    machine.set_mig_mode(divided.uuid, enabled=True)
    machine.reset_gpu(divided.uuid)
    machine.set_mig_mode(waiting.uuid, enabled=True)
    wanted = partition_named(session.look().gpus[0], 19, 0)
    assert wanted is not None

    made = MigInstances(session.mig).make(wanted).instance
    assert made is not None
    assert [device.uuid for device in machine.mig_devices(divided.uuid)] == [made.uuid]
    session.look()
    session.set_compute_mode(waiting.uuid, 3)
    assert session.compute_mode(waiting.uuid) == 3

    session.look()
    reset(machine, 1)
    assert modes(session)[:2] == [ON, ON]


def test_a_library_on_loan_stays_open(machine: Machine, session: DriverSession) -> None:
    machine.set_mig_mode(session.look().gpus[0].uuid, enabled=True)
    with session.mig():
        session.look()
        check_held(machine)
    session.look()
    reset(machine)
    assert modes(session)[0] is ON


def test_a_driver_that_goes_meanwhile_is_found_again(
    machine: Machine, session: DriverSession
) -> None:
    uuid = session.look().gpus[0].uuid
    machine.set_mig_mode(uuid, enabled=True)
    session.look()
    machine.unload_driver()
    with pytest.raises(DeviceError):
        session.look()
    machine.load_driver()
    assert uuid in [gpu.uuid for gpu in session.look().gpus]


def test_a_gpu_unbound_from_the_driver_is_closed(machine: Machine, session: DriverSession) -> None:
    """The link to the driver disappears first, and then the kernel waits for all who have it."""
    (gpu, *_) = session.look().gpus
    check_held(machine)
    machine.fail_call("nvmlInitWithFlags", UNKNOWN, times=2)  # so that it is not open again at once
    sysfs.set_driver(machine.sys_root, gpu.pci_address, None)
    with pytest.raises(DeviceError):
        session.look()
    reset(machine)
