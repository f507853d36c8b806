"""NVML with texts and numbers of any kind: a GPU is described, or is sick and says why."""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dra_driver.admin.inspect.view import table
from dra_driver.devices.device import DeviceKind, is_uuid_of
from dra_driver.devices.model import Inventory
from dra_driver.devices.session import DriverSession
from dra_driver.errors import DeviceError
from dra_driver.simulator import layout, state
from dra_driver.simulator.layout import Fact, Text
from dra_driver.simulator.machine import Machine
from dra_driver.slices.pool import build_slices
from dra_driver.slices.project import projection

GPUS = 4
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine.create(tmp_path_factory.mktemp("nvml") / "root", "t4x4")


@pytest.fixture(scope="module")
def session(machine: Machine) -> Iterator[DriverSession]:
    session = DriverSession(
        driver_root=machine.driver_root,
        dev=machine.dev_root / "dev",
        proc_root=machine.proc_root,
        sys_root=machine.sys_root,
    )
    session.look()  # NVML finds GPUs when it is initialised, by the nodes of their minors
    yield session
    session.close()


@contextlib.contextmanager
def as_it_was(machine: Machine) -> Iterator[state.State]:
    """The machine's state, to be broken; afterwards it is as before."""
    path = machine.state_file
    before = path.read_bytes()
    with state.State(path) as now:
        try:
            yield now
        finally:
            file = os.open(path, os.O_WRONLY)
            os.pwrite(file, before, 0)
            os.close(file)


def sane(inventory: Inventory) -> None:
    """Check that everything can be done with an inventory that is done with any."""
    assert len(inventory.gpus) + len(inventory.sick) == GPUS
    assert all(sick.reason for sick in inventory.sick)
    for gpu in inventory.gpus:
        assert is_uuid_of(DeviceKind.GPU, gpu.uuid)
        assert ADDRESS.fullmatch(gpu.pci_address)
        assert gpu.minor >= 0
    found = projection(inventory)
    slices = build_slices(
        found.devices, driver="gpu.nvidia.com", node_name="n", counter_sets=found.counter_sets
    )
    assert json.dumps(slices.contents, default=str)
    table(inventory, {}).encode()


hostile = st.sampled_from(
    [b"", b"\xff", b"GPU-", b"../../etc", b"a" * 95, b"\x1b[2J", b"\n", "é".encode(), b" ",
     b"GPU-00000000-0000-0000-0000-00000000000", b"nonsense:", b"zz:00:00.0", b"1", b":::",
     b"00000000:18:00.0\n", b"0000000\xff:18:00.0", b"/",
     b"GPU-11111111-2222-3333-4444-55555555555\xff"]
) | st.binary(max_size=95).map(lambda text: text.replace(b"\0", b"?"))  # fmt: skip


@given(
    slot=st.integers(0, GPUS - 1),
    text=st.sampled_from([Text.UUID, Text.NAME, Text.PCI_BUS_ID, Text.SERIAL]),
    value=hostile,
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(0, Text.NAME, b"\xff")
@example(1, Text.UUID, b"")
@example(1, Text.UUID, b"../../../etc")
@example(2, Text.PCI_BUS_ID, b"\xff:00.0")
@example(2, Text.PCI_BUS_ID, b"nonsense")
@example(3, Text.NAME, b"Tesla\nT4\x1b[2J")
def test_a_gpu_with_texts_of_any_kind_hides_no_other(
    machine: Machine, session: DriverSession, slot: int, text: Text, value: bytes
) -> None:
    with as_it_was(machine) as now:
        with now.locked() as record:
            record.gpus[slot].texts[text].value = value
        inventory = session.look()
        sane(inventory)
        assert len(inventory.gpus) >= GPUS - 1
    assert len(session.look().gpus) == GPUS


numbers = st.sampled_from([layout.ABSENT, -1, 0, 1, 2**31, 2**32 - 1, 2**63 - 1, 99])


@given(
    slot=st.integers(0, GPUS - 1),
    facts=st.dictionaries(st.sampled_from(list(Fact)), numbers, min_size=1, max_size=4),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_gpu_with_numbers_of_any_kind_hides_no_other(
    machine: Machine, session: DriverSession, slot: int, facts: dict[Fact, int]
) -> None:
    with as_it_was(machine) as now:
        with now.locked() as record:
            for fact, number in facts.items():
                record.gpus[slot].facts[fact] = number
        inventory = session.look()
        sane(inventory)
        assert len(inventory.gpus) >= GPUS - 1
    # After a sick GPU, NVML is initialised again: not while the next example has changed a minor.
    assert len(session.look().gpus) == GPUS


@given(value=hostile.map(lambda text: text[:79]))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(b"\xff")
@example(b"")
def test_a_driver_of_any_version_is_described_or_refused(
    machine: Machine, session: DriverSession, value: bytes
) -> None:
    with as_it_was(machine) as now:
        with now.locked() as record:
            record.driver_version = value
        try:
            sane(session.look())
        except DeviceError as error:
            assert "NVML" in str(error)  # noqa: PT017 (either is right)
    assert len(session.look().gpus) == GPUS


def test_the_version_file_of_the_kernel_module_may_be_no_text(
    machine: Machine, session: DriverSession
) -> None:
    version = Path(machine.proc_root / "driver/nvidia/version")
    before = version.read_bytes()
    version.write_bytes(b"\xff")
    try:
        assert len(session.look().gpus) == GPUS
    finally:
        version.write_bytes(before)
