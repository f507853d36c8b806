"""Which pods have claims, asked of a kubelet's PodResources on its socket."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.claims.model.claim import ClaimRef, ClaimUid, ConsumerPod
from dra_driver.errors import TransientError
from dra_driver.kubelet.pod_resources import PodResources
from worlds.kubelet_pods import note_pod, serving_pods

ONE, TWO = ClaimUid("uid-1"), ClaimUid("uid-2")
TOLD = {
    ("team-a", "train-0"): ["k8s.gpu.nvidia.com/claim=uid-1-gpu-0", "vendor.com/nic=nic-0"],
    ("team-a", "train-1"): ["k8s.gpu.nvidia.com/claim=uid-1-gpu-0"],
    ("team-b", "other"): ["k8s.gpu.nvidia.com/claim=uid-11-gpu-0", "vendor.com/claim=uid-2-gpu-0"],
    ("team-b", "forgotten"): [],
}

Ask = Callable[..., PodResources]


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
def said() -> list[str]:
    """Why pods were not known."""
    return []


@pytest.fixture
def ask(tmp_path: Path, now: list[float], said: list[str]) -> Ask:
    def make() -> PodResources:
        return PodResources(
            tmp_path / "plugins",
            [tmp_path / "host"],
            clock=lambda: now[0],
            on_problem=said.append,
        )

    return make


def names(resources: PodResources, *uids: ClaimUid) -> dict[str, list[str]]:
    return {uid: [str(pod) for pod in pods] for uid, pods in resources.names(uids).items()}


def test_pods_are_found_by_the_uid_in_the_names_of_their_devices(ask: Ask, tmp_path: Path) -> None:
    with serving_pods(tmp_path / "plugins", TOLD):
        assert names(ask(), ONE, TWO) == {"uid-1": ["team-a/train-0", "team-a/train-1"]}


def test_claims_have_their_names_from_pods(ask: Ask, tmp_path: Path) -> None:
    with serving_pods(tmp_path / "plugins", TOLD):
        found = ask().claims([ONE, TWO])
    assert found == {ONE: ClaimRef(uid=ONE, namespace="team-a", name="train-1")}, "the last one's"


def test_pod_uids_come_from_the_folders_of_logs(ask: Ask, tmp_path: Path) -> None:
    host = tmp_path / "host"
    note_pod(host, "team-a", "train-0", "uid-a")
    note_pod(host, "team-a", "train-0", "uid-of-the-former")
    note_pod(host, "team-b", "train-1", "uid-b")
    (host / "var/log/pods/lost+found").mkdir()
    with serving_pods(tmp_path / "plugins", TOLD):
        found = ask().pods([ONE, TWO])
    assert {(pod.name, pod.uid) for pod in found[ONE]} == {
        ("train-0", "uid-a"),
        ("train-0", "uid-of-the-former"),
    }
    assert all(isinstance(pod, ConsumerPod) for pod in found[ONE])


def test_an_answer_is_used_for_two_seconds(ask: Ask, tmp_path: Path, now: list[float]) -> None:
    resources = ask()
    with serving_pods(tmp_path / "plugins", TOLD) as kubelet:
        assert names(resources, ONE)
        kubelet.told = {}
        now[0] += 1.9
        assert names(resources, ONE)
        assert kubelet.asked == 1
        now[0] += 0.2
        assert not names(resources, ONE)


def test_a_socket_that_is_not_mounted_is_found_below_the_hosts_root(tmp_path: Path) -> None:
    resources = PodResources(Path("/k/plugins"), [tmp_path / "none", tmp_path])
    (tmp_path / "k").mkdir()
    with serving_pods(tmp_path / "k/plugins", TOLD):
        assert names(resources, ONE)


def test_an_answer_may_be_longer_than_grpc_takes_by_default(ask: Ask, tmp_path: Path) -> None:
    many = {("team", f"pod-{n}"): [f"vendor.com/claim=uid-{n}-{'x' * 4000}"] for n in range(1200)}
    with serving_pods(tmp_path / "plugins", TOLD | many):
        assert names(ask(), ONE)


@pytest.mark.parametrize("trouble", ["no socket", "nobody listens", "no logs"])
def test_a_missing_answer_is_explained_once(
    ask: Ask, tmp_path: Path, said: list[str], trouble: str
) -> None:
    folder = tmp_path / "pod-resources"
    folder.mkdir()
    resources = ask()
    match trouble:
        case "no socket":
            expected = f"is not at {folder}/kubelet.sock: mount that folder"
        case "nobody listens":
            with socket.socket(socket.AF_UNIX) as left:
                left.bind(str(folder / "kubelet.sock"))
            expected = f"the kubelet does not say at {folder}/kubelet.sock"
        case _:
            expected = "var/log/pods, is not below"
            with serving_pods(tmp_path / "plugins", TOLD):
                assert resources.pods([ONE]) == {}
    assert resources.pods([ONE]) == {}
    assert len(said) == 1
    assert expected in said[0]
    if trouble != "no logs":
        with pytest.raises(TransientError, match=expected):
            resources.names([ONE])
