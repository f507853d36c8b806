"""What nvidia-smi says of time-slices, and what is made of it; the program is a script here."""

import os
from contextlib import suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from dra_driver.errors import DeviceError
from dra_driver.sharing.nvidia_smi import SEARCHED, NvidiaSmi

GPU = "GPU-00000000-0000-4000-8000-000000000000"


MISMATCH = (
    "nvidia-smi and libnvidia-ml.so.1 are of different versions: complete the driver's upgrade, or "
    "reboot the node"
)


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A driver root whose nvidia-smi a test writes."""
    (tmp_path / "root/usr/bin").mkdir(parents=True)
    return tmp_path / "root"


@pytest.fixture
def smi(root: Path, tmp_path: Path, clock: Clock) -> NvidiaSmi:
    made = NvidiaSmi(root, tmp_path / "proc", clock)
    made._found = None, (root / "usr/bin/nvidia-smi",)  # a script can do without NVML's library
    return made


def says(root: Path, text: str, status: int = 0) -> None:
    program = root / "usr/bin/nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{text}'\nexit {status}\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("text", "number"),
    [("Default", 0), ("Short", 1), ("Medium", 2), ("LONG", 3), ("Endless", None)],
)
def test_a_time_slice_is_read_by_its_name(
    root: Path, smi: NvidiaSmi, clock: Clock, text: str, number: int | None
) -> None:
    says(root, f"|  0  Timeslice  {text}  |")
    assert smi.time_slice(GPU, clock.now + 5) == number


def test_settings_are_cached_for_half_a_minute(root: Path, smi: NvidiaSmi, clock: Clock) -> None:
    assert smi.recent(GPU) is None
    says(root, "|  0  Timeslice  Long  |")
    smi.time_slice(GPU, clock.now + 5)
    clock.now += 29.9
    assert smi.recent(GPU) == 3
    assert smi.set_time_slice(GPU, 1, clock.now + 5)
    clock.now += 29.9
    assert smi.recent(GPU) == 1
    clock.now += 0.1
    assert smi.recent(GPU) is None


@pytest.mark.parametrize(
    ("text", "status", "warnings"), [("broken", 9, 1), ("Not Supported", 9, 0), ("", 3, 0)]
)
def test_an_unreadable_setting_warns_once(
    root: Path, smi: NvidiaSmi, clock: Clock, text: str, status: int, warnings: int
) -> None:
    says(root, text, status)
    with capture_logs() as logs:
        assert [smi.time_slice(GPU, clock.now + 5) for _ in range(2)] == [None, None]
    assert len([log for log in logs if log["log_level"] == "warning"]) == warnings


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (4, "run the driver's container privileged"),
        (8, "check the power cables of the GPU"),
        (9, "load the GPU driver (modprobe nvidia); if that fails, see dmesg"),
        (10, "see dmesg; the firmware settings of the server may have to change"),
        (12, "install the part of the GPU driver that holds libnvidia-ml.so.1"),
        (13, MISMATCH),
        (14, "have the GPU replaced"),
        (15, "see dmesg for NVRM and Xid lines; the node has to be rebooted"),
        (77, "see dmesg for NVRM lines, and whether nvidia-smi works on the node"),
    ],
)
def test_each_status_comes_with_what_to_do(
    root: Path, smi: NvidiaSmi, clock: Clock, status: int, advice: str
) -> None:
    says(root, "no", status)
    with pytest.raises(DeviceError) as caught:
        smi.set_time_slice(GPU, 1, clock.now + 5)
    assert str(caught.value) == (
        f"nvidia-smi cannot set the time-slice of {GPU} (status {status}: no); {advice}"
    )
    assert smi.recent(GPU) is None


def test_it_runs_in_english_and_any_output_is_shown(
    root: Path, smi: NvidiaSmi, clock: Clock
) -> None:
    program = root / "usr/bin/nvidia-smi"
    program.write_text(
        "#!/bin/sh\nprintf '%s ' \"$LC_ALL\" \"$(cat)\"\nprintf 'bad \\377' >&2\nexit 77\n"
    )
    program.chmod(0o755)
    with pytest.raises(DeviceError, match=r"\(status 77: C bad \ufffd\)"):
        smi.set_time_slice(GPU, 1, clock.now + 5)


def test_it_runs_with_the_library_of_the_driver_that_runs_now(
    root: Path, tmp_path: Path, clock: Clock
) -> None:
    says(root, "no", 77)
    smi = NvidiaSmi(root, tmp_path / "proc", clock)
    told = tmp_path / "proc/driver/nvidia/version"
    told.parent.mkdir(parents=True)
    (root / "usr/lib64").mkdir()
    for version in ("535.1", "580.1"):
        told.write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  now")
        (root / f"usr/lib64/libnvidia-ml.so.{version}").touch()
        with pytest.raises(DeviceError, match=rf"libnvidia-ml\.so\.{version}' from LD_PRELOAD"):
            smi.set_time_slice(GPU, 1, clock.now + 5)


def open_descriptors() -> set[int]:
    found = set()
    for number in range(1024):
        with suppress(OSError):
            os.fstat(number)
            found.add(number)
    return found


def test_a_program_that_does_not_answer_is_ended_and_leaves_nothing_open(
    root: Path, smi: NvidiaSmi, clock: Clock
) -> None:
    program = root / "usr/bin/nvidia-smi"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    before = open_descriptors()
    with pytest.raises(DeviceError) as caught:
        smi.set_time_slice(GPU, 1, clock.now - 1)
    assert str(caught.value) == (
        f"{program} did not answer in 0 s; see dmesg for NVRM and Xid lines, and turn persistence "
        "mode on if the GPUs are slow to initialise"
    )
    assert open_descriptors() == before


def test_a_missing_program_gives_installation_advice(root: Path, smi: NvidiaSmi) -> None:
    with pytest.raises(DeviceError) as caught:
        smi.time_slice(GPU, 0.0)
    assert str(caught.value) == (
        f"nvidia-smi not found under {root} (looked in {SEARCHED}), and time-slices cannot be set "
        "without it; install the part of the GPU driver that holds it, or point "
        "--nvidia-driver-root at where it is"
    )
