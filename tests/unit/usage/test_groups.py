"""Paths of control groups, as kubelets and container runtimes make them, and as others might."""

import pytest

from dra_driver.usage.processes import PodProcess, pod_process

UID = "0b9c4c6e-0d2a-4c55-8f3c-7f2b0a1d9e11"
OTHER = "ffffffff-0d2a-4c55-8f3c-7f2b0a1d9e11"
FLAT = UID.replace("-", "_")
ID = "ab" * 32
STRANGER = "cd" * 32
BURST = "/kubepods.slice/kubepods-burstable.slice"
FOUND = PodProcess(pod_uid=UID, container_id=ID)


@pytest.mark.parametrize(
    "path",
    [
        f"/kubepods/pod{UID}/{ID}",
        f"/kubepods/burstable/pod{UID}/{ID}",
        f"/kubepods/besteffort/pod{UID}/{ID}",
        f"/kubepods/besteffort/pod{UID}/crio-{ID}",
        f"/kubepods.slice/kubepods-pod{FLAT}.slice/cri-containerd-{ID}.scope",
        f"{BURST}/kubepods-burstable-pod{FLAT}.slice/cri-containerd-{ID}.scope",
        f"{BURST}/kubepods-burstable-pod{FLAT}.slice/crio-{ID}.scope",
        f"{BURST}/kubepods-burstable-pod{FLAT}.slice/crio-{ID}.scope/container",
        f"{BURST}/kubepods-burstable-pod{FLAT}.slice/docker-{ID}.scope",
        # A kubelet in a container, as in kind, and one with --cgroup-root.
        f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{FLAT}.slice/cri-containerd-{ID}.scope",
        f"/docker/{STRANGER}/kubelet/kubepods/besteffort/pod{UID}/{ID}",
        # A runtime that does not know of systemd below a kubelet that does.
        f"/system.slice/containerd.service/kubepods-besteffort-pod{FLAT}.slice:cri-containerd:{ID}",
        # What a container makes below itself changes nothing, whatever it is called.
        f"/kubepods/pod{UID}/{ID}/kubepods/pod{OTHER}/{STRANGER}",
        f"/kubepods/pod{UID}/{ID}/kubepods.slice/kubepods-pod{OTHER}.slice/cri-containerd-{STRANGER}.scope",
        f"{BURST}/kubepods-burstable-pod{FLAT}.slice/cri-containerd-{ID}.scope/user.slice/pod{OTHER}",
    ],
)
@pytest.mark.parametrize("line", ["0::{}", "4:memory:{}", "1:name=systemd:{}"])
def test_a_container_is_known_by_its_path(path: str, line: str) -> None:
    assert pod_process(line.format(path) + "\n") == FOUND


@pytest.mark.parametrize("sign", ["\x0b", "\x0c", "\r", "\x1c", "\x85", "\u2028"])
def test_only_the_kernels_end_of_a_line_is_one(sign: str) -> None:
    """A group may have any sign in its name but that one."""
    path = f"/kubepods/pod{UID}/{ID}/x{sign}0::/kubepods/pod{OTHER}/{STRANGER}"
    assert pod_process(f"0::{path}\n") == FOUND


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        "/init.scope",
        "/system.slice/kubelet.service",
        "/dra-driver-mps",
        "/kubepods",
        f"/kubepods/pod{UID[:-1]}/{ID}",
        f"/kubepods/pod{UID}x/{ID}",
        f"/kubepods/x/pod{UID}/{ID}",
        f"/pod{UID}/{ID}",
        f"/kubepods.slice/kubepods-burstable-pod{FLAT}.slice/cri-containerd-{ID}.scope",
        f"{BURST}/other-pod{FLAT}.slice/cri-containerd-{ID}.scope",
        f"/other.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{FLAT}.slice/cri-containerd-{ID}.scope",
        # Users of the node may make groups here.
        f"/user.slice/user-1000.slice/user@1000.service/kubepods/pod{UID}/{ID}",
        f"/machine.slice/x.scope/kubepods/pod{UID}/{ID}",
        # Seen from a namespace of control groups, where the rest of the path is not known.
        f"/../kubepods/pod{UID}/{ID}",
        f"/../../pod{UID}/{ID}",
        f"kubepods/pod{UID}/{ID}",
    ],
)
def test_other_paths_belong_to_no_pod(path: str) -> None:
    assert pod_process(f"0::{path}\n") is None


@pytest.mark.parametrize(
    "name", ["", f"/crio-conmon-{ID}.scope", f"/{ID[:-1]}", f"/{ID.upper()}", "/nested"]
)
def test_a_pods_process_may_be_in_no_container(name: str) -> None:
    path = f"{BURST}/kubepods-burstable-pod{FLAT}.slice{name}"
    assert pod_process(f"0::{path}") == PodProcess(pod_uid=UID, container_id=None)


def test_the_uid_of_a_static_pod_is_a_hash() -> None:
    assert pod_process(f"0::/kubepods/pod{'0a' * 16}/{ID}") == PodProcess(
        pod_uid="0a" * 16, container_id=ID
    )


def test_several_hierarchies_have_to_agree() -> None:
    mine = f"4:memory:/kubepods/pod{UID}/{ID}"
    assert pod_process(f"{mine}\n3:cpu,cpuacct:/kubepods/pod{UID}/{ID}\n0::/\n") == FOUND
    assert pod_process(f"{mine}\n0::/kubepods/pod{OTHER}/{ID}\n") is None
    assert pod_process(f"{mine}\n0::/kubepods/pod{UID}/{STRANGER}\n") == PodProcess(
        pod_uid=UID, container_id=None
    )
