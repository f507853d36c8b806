"""Memory limits of control groups, by the real pynvml, and what is odd about them."""

from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from dra_driver.simulator.layout import Fact
from worlds.groups import GIB, MIB, Limits, Nvml, limits_on


@pytest.fixture
def world(tmp_path: Path, nvml: Nvml) -> Iterator[Limits]:
    with limits_on(tmp_path, nvml) as made:
        yield made


def test_a_group_is_refused_by_another_path_than_that_below_the_hierarchy(world: Limits) -> None:
    world.groups.make("pod")
    elsewhere = world.groups.root.with_name("host")
    elsewhere.symlink_to(world.groups.root)

    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        world.set(elsewhere / "pod", GIB)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        world.get(elsewhere / "pod")


def test_a_limit_on_a_pod_binds_all_its_containers_together(world: Limits) -> None:
    pod = world.groups.make("pod")
    one, two = world.groups.make("pod/one"), world.groups.make("pod/two")
    world.set(pod, 10 * GIB)

    assert world.take(one, 6 * GIB, pid=1)
    assert not world.take(two, 6 * GIB, pid=2)
    assert world.take(two, 4 * GIB, pid=2)


def test_a_gpu_in_mig_mode_accepts_limits_without_effect(world: Limits) -> None:
    pod = world.groups.make("pod")
    world.machine.set_fact(world.uuid, Fact.MIG_CURRENT, 1)
    world.set(pod, 1 * GIB)

    assert world.get(pod)[1] == 1 * GIB
    assert world.take(pod, 2 * GIB)
    assert world.get(pod)[2] == 0


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("absent", pynvml.NVML_ERROR_NOT_FOUND),
        ("cgroup.procs", pynvml.NVML_ERROR_INVALID_ARGUMENT),
        ("..", pynvml.NVML_ERROR_INVALID_ARGUMENT),
        (".", pynvml.NVML_ERROR_NOT_SUPPORTED),
        ("../version1", pynvml.NVML_ERROR_NOT_SUPPORTED),
    ],
)
def test_a_folder_that_is_not_a_control_group_is_refused(
    world: Limits, place: str, error: int
) -> None:
    (world.groups.root.parent / "version1").mkdir()
    (world.groups.root.parent / "version1/tasks").touch()

    for call in (lambda path: world.set(path, GIB), world.get):
        with pytest.raises(pynvml.NVMLError) as raised:
            call(world.groups.root / place)
        assert raised.value.value == error


def test_the_nearest_group_with_a_limit_binds_alone(world: Limits) -> None:
    pod, leaf = world.groups.make("pod"), world.groups.make("pod/leaf")
    world.set(pod, 4 * GIB)
    world.set(leaf, 8 * GIB)

    assert world.take(leaf, 7 * GIB)
    assert world.get(pod) == (0, 4 * GIB, 0)


def test_a_group_without_a_limit_looks_like_a_gpu_without_support(world: Limits) -> None:
    with pytest.raises(pynvml.NVMLError_NotSupported):
        world.get(world.groups.make("pod"))


@pytest.mark.parametrize("end", ["reset", "reload", "reboot"])
def test_limits_go_with_the_gpus_initialisation(world: Limits, end: str) -> None:
    pod = world.groups.make("pod")
    world.set(pod, GIB)
    match end:
        case "reset":
            world.machine.reset_gpu(world.uuid)
        case "reload":
            world.machine.unload_driver()
            world.machine.load_driver()
        case "reboot":
            world.machine.reboot()

    with pytest.raises(pynvml.NVMLError_NotSupported):
        world.get(pod)


@pytest.mark.parametrize(
    ("kept_by", "is_kept"), [("nothing", False), ("persistence", True), ("a process", True)]
)
def test_limits_end_with_the_last_process_on_the_gpu(
    world: Limits, kept_by: str, is_kept: bool
) -> None:
    pod = world.groups.make("pod")
    world.set(pod, GIB)
    if kept_by == "persistence":
        world.machine.set_fact(world.uuid, Fact.PERSISTENCE_MODE, 1)
    if kept_by == "a process":
        world.take(pod, MIB)
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    world.handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    if is_kept:
        assert world.get(pod)[1] == GIB
    else:
        with pytest.raises(pynvml.NVMLError_NotSupported):
            world.get(pod)
