"""The control group of a pod is found by its UID, wherever the kubelet makes it."""

from pathlib import Path

import pytest

from dra_driver.errors import DeviceError
from dra_driver.sharing.pod_groups import PodGroups

UID = "0f6c4f4e-1c8a-4a4e-9d6c-9f2f6a1b2c3d"
SLICE = UID.replace("-", "_")
PLACES = [
    f"kubepods/pod{UID}",
    f"kubepods/burstable/pod{UID}",
    f"kubepods/besteffort/pod{UID}",
    f"kubelet/kubepods/burstable/pod{UID}",
    f"kubepods.slice/kubepods-pod{SLICE}.slice",
    f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice",
    f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SLICE}.slice",
    f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SLICE}.slice",
    f"a.slice/a-b.slice/a-b-kubepods.slice/a-b-kubepods-pod{SLICE}.slice",
]


def made(root: Path, *places: str) -> Path:
    for place in places:
        (root / place).mkdir(parents=True)
    return root


@pytest.mark.parametrize("place", PLACES)
def test_a_pod_is_found_wherever_the_kubelet_makes_its_group(tmp_path: Path, place: str) -> None:
    made(tmp_path, place, "system.slice/ssh.service", "kubepods-other/burstable")
    assert PodGroups(tmp_path).find(UID) == tmp_path / place


@pytest.mark.parametrize(
    "container", ["cri-containerd-1f.scope", "crio-1f.scope", "1f", "hostile name\n"]
)
def test_its_containers_are_the_groups_in_it(tmp_path: Path, container: str) -> None:
    pod = PLACES[0]
    made(tmp_path, f"{pod}/{container}/inner", f"{pod}/0")
    (tmp_path / pod / "cgroup.procs").touch()
    (tmp_path / pod / "link").symlink_to(tmp_path)

    groups = PodGroups(tmp_path)
    assert groups.containers(UID) == [tmp_path / pod / "0", tmp_path / pod / container]
    assert groups.containers("other") == []


@pytest.mark.parametrize(
    "place",
    [
        f"kubepods/pod{UID}x",
        f"kubepods/pod{UID[:-1]}",
        f"kubepods/pod{SLICE}",
        f"kubepods/other/pod{UID}",
        f"system.slice/pod{UID}",
        f"system.slice/other-kubepods.slice/other-kubepods-pod{SLICE}.slice",
        f"kubepods.slice/kubepods-burstable-pod{SLICE}.slice",
        f"kubepods.slice/kubepods-pod{UID}.slice",
        f"kubepods/podother/container/pod{UID}",
        f"kubepods/podother/kubepods/pod{UID}",
        f"kubepods/podother/container/kubepods/burstable/pod{UID}",
        f"a/b/c/d/e/f/kubepods/pod{UID}",
    ],
)
def test_other_groups_are_not_pods(tmp_path: Path, place: str) -> None:
    made(tmp_path, place)
    assert PodGroups(tmp_path).find(UID) is None


def test_two_groups_of_a_pod_are_an_error_that_names_both(tmp_path: Path) -> None:
    made(tmp_path, PLACES[1], PLACES[3])
    with pytest.raises(DeviceError, match=rf"two control groups, .*{PLACES[1]} and .*{PLACES[3]}"):
        PodGroups(tmp_path).find(UID)


@pytest.mark.parametrize("linked", ["pod", "class", "top"])
def test_links_are_not_followed(tmp_path: Path, linked: str) -> None:
    elsewhere = made(tmp_path / "elsewhere", f"burstable/pod{UID}")
    root = made(tmp_path / "root", "kubepods/burstable")
    if linked == "pod":
        (root / f"kubepods/burstable/pod{UID}").symlink_to(elsewhere / f"burstable/pod{UID}")
    if linked == "class":
        (root / "kubepods/burstable").rmdir()
        (root / "kubepods/burstable").symlink_to(elsewhere / "burstable")
    if linked == "top":
        (root / "kubepods/burstable").rmdir()
        (root / "kubepods").rmdir()
        (root / "kubepods").symlink_to(elsewhere)

    assert PodGroups(root).find(UID) is None


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path)
    made(tmp_path, PLACES[0])
    assert PodGroups(tmp_path).find(UID) == tmp_path / PLACES[0]


def test_a_kubelet_that_comes_later_is_found(tmp_path: Path) -> None:
    groups = PodGroups(tmp_path)
    assert (groups.find(UID), groups.tops()) == (None, ())
    made(tmp_path, PLACES[0])
    assert groups.find(UID) is not None
    (tmp_path / PLACES[0]).rmdir()
    (tmp_path / "kubepods").rmdir()
    made(tmp_path, PLACES[5])

    assert groups.find(UID) == tmp_path / PLACES[5]
    assert groups.tops() == (tmp_path / "kubepods.slice",)


@pytest.mark.parametrize("uid", ["", "..", "../../x", "*", "a/b", "\0"])
def test_a_strange_uid_finds_nothing(tmp_path: Path, uid: str) -> None:
    made(tmp_path, *PLACES[:3])
    assert PodGroups(tmp_path).find(uid) is None
