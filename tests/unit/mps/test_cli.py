"""Settings of `dra-driver mps-supervisor`."""

from pathlib import Path

import pytest

import commands
from commands import variables
from dra_driver.commands.command_line import WrongSettingsError
from dra_driver.errors import SetupError
from dra_driver.mps.supervisor.command import MpsSupervisor, build


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in variables(MpsSupervisor):
        monkeypatch.delenv(name, raising=False)


def parsed(*words: str) -> MpsSupervisor:
    return commands.parsed(MpsSupervisor, *words)


def node(root: Path, *words: str) -> MpsSupervisor:
    proc = root / "proc"
    (proc / "sys/kernel/random").mkdir(parents=True)
    (proc / "sys/kernel/random/boot_id").write_text("one\n")
    plugins = f"--kubelet-plugins-directory-path={root / 'plugins'}"
    return parsed(f"--proc-root={proc}", plugins, *words)


def test_nothing_is_required() -> None:
    settings = parsed()
    assert settings.kubelet_plugins_directory_path == Path("/var/lib/kubelet/plugins")
    assert settings.compute_mode
    assert settings.cgroup_root is None


def test_compute_modes_can_be_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not parsed("--no-compute-mode").compute_mode
    monkeypatch.setenv("COMPUTE_MODE", "false")
    assert not parsed().compute_mode


def test_replacing_can_be_switched_off() -> None:
    assert parsed().replace_after == 60.0
    assert parsed("--replace-after=0").replace_after == 0.0


def test_an_interval_of_zero_is_refused() -> None:
    with pytest.raises(WrongSettingsError):
        parsed("--check-interval=0")


def test_it_meets_the_driver_below_the_kubelets_plugins(tmp_path: Path) -> None:
    supervisor = build(node(tmp_path, "--shm-size=8Gi"))
    assert supervisor.domains() == set()
    assert supervisor._files.root == tmp_path / "plugins/gpu.nvidia.com/mps"


def test_its_workers_keep_the_times_that_were_set(tmp_path: Path) -> None:
    timing = build(node(tmp_path, "--replace-after=9", "--check-interval=10"))._timing
    assert (timing.replace_after, timing.check_interval) == (9, 10)


@pytest.mark.parametrize("size", ["much", "1", "-1Gi", "100m"])
def test_a_size_that_is_not_valid_is_refused(tmp_path: Path, size: str) -> None:
    with pytest.raises(SetupError, match="--shm-size"):
        build(node(tmp_path, f"--shm-size={size}"))


def test_a_missing_procfs_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="--proc-root"):
        build(parsed(f"--proc-root={tmp_path}"))


def test_device_nodes_are_looked_for_as_the_driver_does(tmp_path: Path) -> None:
    dev = f"--nvidia-dev-root={tmp_path}"
    assert parsed(dev).nvidia_dev_root == tmp_path
    with pytest.raises(SetupError, match="is not a folder"):
        build(node(tmp_path, f"--container-driver-root={tmp_path / 'absent'}", dev))
