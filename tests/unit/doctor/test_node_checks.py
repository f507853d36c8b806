"""What facts of a node mean: good, bad and unknown ones."""

from collections.abc import Iterable
from pathlib import Path

import pytest

import make
from doctored import ERROR, INFO, OK, UNKNOWN, WARNING, severities
from dra_driver.admin.doctor.checks import node_checks
from dra_driver.admin.doctor.checks.finding import Seen, Severity
from dra_driver.admin.doctor.facts.gone_claims import GoneFacts
from dra_driver.admin.doctor.facts.node_facts import (
    DriverFacts,
    GroupFacts,
    HolderFacts,
    NodeFiles,
    OtherFacts,
    SocketFacts,
    SpecFacts,
)
from dra_driver.admin.takeover.nvidia_checkpoint import UnreadClaim
from dra_driver.admin.takeover.peer_claims import PeerClaims
from dra_driver.devices.exclusion import without_excluded
from dra_driver.devices.holders import Holder
from dra_driver.devices.model import MigMode

FOLDER = Path("/run/folder")


def told(seen: Iterable[Seen]) -> list[Seen]:
    """What is to be done something about; all of it says what."""
    found = [one for one in seen if one.severity in {WARNING, ERROR}]
    assert all(one.advice for one in found)
    return found


@pytest.mark.parametrize(
    ("version", "gpus", "severity"),
    [
        ("570.86.15", 8, OK),
        ("570.86.15", None, OK),
        (None, 2, ERROR),
        (None, 0, INFO),
        (None, None, INFO),
    ],
)
def test_a_node_with_gpus_and_no_kernel_driver_is_an_error(
    version: str | None, gpus: int | None, severity: Severity
) -> None:
    facts = DriverFacts(version=version, gpus_on_pci=gpus)
    assert severities(node_checks.kernel_driver(facts)) == [severity]


def test_a_driver_without_a_gpu_is_an_error() -> None:
    assert severities(told(node_checks.gpus(make.inventory(gpus=())))) == [ERROR]


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        ({0: True, 1: True}, [OK]),
        ({0: True, 1: False}, [WARNING]),
        ({0: None}, [UNKNOWN]),
        ({0: None, 1: False}, [WARNING, UNKNOWN]),
    ],
)
def test_gpus_without_persistence_mode_are_named(
    modes: dict[int, bool | None], expected: list[Severity]
) -> None:
    gpus = [make.gpu(minor, is_persistent=mode) for minor, mode in modes.items()]
    seen = list(node_checks.persistence(make.inventory(*gpus)))
    assert severities(seen) == expected
    named = " ".join(one.text for one in seen)
    assert all((f"gpu-{minor}" in named) == (mode is not True) for minor, mode in modes.items())


def test_holders_of_a_gpu_are_named() -> None:
    held = HolderFacts(sees_node=True, holders={0: (), 1: (Holder(pid=7, name="dcgm"),)})
    (seen,) = node_checks.holders(held)
    assert (seen.severity, "/dev/nvidia1" in seen.text, "dcgm (PID 7)" in seen.text) == (
        INFO,
        True,
        True,
    )
    assert severities(node_checks.holders(HolderFacts(sees_node=True, holders={0: ()}))) == [OK]
    assert severities(node_checks.holders(HolderFacts(sees_node=False))) == [UNKNOWN]


@pytest.mark.parametrize(
    ("present", "numbered", "expected"),
    [
        ({"nvidiactl", "nvidia-uvm"}, set(), [OK]),
        ({"nvidiactl"}, {"nvidia-uvm"}, [OK]),
        ({"nvidiactl"}, set(), [WARNING]),
        ({"nvidia-uvm"}, set(), [ERROR]),
        (set(), set(), [ERROR, WARNING]),
    ],
)
def test_nodes_that_cuda_needs_are_missed(
    present: set[str], numbered: set[str], expected: list[Severity]
) -> None:
    facts = NodeFiles(folder="/dev", present=frozenset(present), numbered=frozenset(numbered))
    assert severities(node_checks.device_nodes(facts)) == expected


def test_control_groups_of_version_2_are_missed() -> None:
    usual = GroupFacts(hierarchy=Path("/sys/fs/cgroup"))
    beside = GroupFacts(hierarchy=Path("/sys/fs/cgroup/unified"), kernel_counts_gpus=True)
    assert severities(node_checks.control_groups(usual)) == [OK]
    assert severities(node_checks.control_groups(beside)) == [INFO, INFO]
    assert severities(told(node_checks.control_groups(GroupFacts(hierarchy=None)))) == [WARNING]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (SpecFacts(folder=FOLDER, is_folder=True, of_claims=3), [OK]),
        (SpecFacts(folder=FOLDER, is_folder=False), [WARNING]),
        (SpecFacts(folder=FOLDER, is_folder=True, of_others=("a.yaml",)), [WARNING]),
        (SpecFacts(folder=FOLDER, is_folder=True, unreadable=("a.json: bad",)), [WARNING]),
    ],
)
def test_specs_that_stand_in_the_way_are_named(facts: SpecFacts, expected: list[Severity]) -> None:
    seen = list(node_checks.specs(facts))
    assert severities(seen) == expected
    assert all(name in seen[0].text for name in (*facts.of_others, *facts.unreadable))


def test_claims_whose_files_are_gone_are_named() -> None:
    (one,) = node_checks.missing({"/lib/a.so": ["ns/a"]})
    assert one.text.startswith("claim ns/a mounts /lib/a.so, which does not exist")
    (two,) = told(node_checks.missing({"/lib/a.so": ["ns/a", "ns/b"]}))
    assert two.text.startswith("claims ns/a, ns/b mount /lib/a.so")
    assert severities([one, two, *node_checks.missing({})]) == [ERROR, ERROR, OK]


@pytest.mark.parametrize(
    ("live", "dead", "expected"),
    [
        (("a",), (), [OK]),
        ((), (), [ERROR]),
        (("a", "b"), (), [WARNING]),
        (("a",), ("b",), [OK, WARNING]),
    ],
)
def test_one_driver_listens_for_the_kubelet(
    live: tuple[str, ...], dead: tuple[str, ...], expected: list[Severity]
) -> None:
    facts = SocketFacts(folder=FOLDER, is_folder=True, live=live, dead=dead)
    assert severities(node_checks.sockets(facts)) == expected


def test_a_node_without_the_kubelets_folder_is_an_error() -> None:
    facts = SocketFacts(folder=FOLDER, is_folder=False)
    assert severities(told(node_checks.sockets(facts))) == [ERROR]


def test_others_that_give_out_gpus_on_the_node_are_named() -> None:
    assert severities(node_checks.others(OtherFacts())) == [OK]
    plugin = OtherFacts(device_plugins=("nvidia-gpu.sock",))
    assert severities(told(node_checks.others(plugin))) == [WARNING]
    peer = OtherFacts(peer=PeerClaims(file=Path("/p/checkpoint.json")))
    assert severities(node_checks.others(peer)) == [INFO]


def test_remaining_claims_of_nvidias_driver_are_named_with_pods() -> None:
    file = Path("/p/checkpoint.json")
    odd = UnreadClaim(uid="uid-1", reason="it is in state 'Paused'", pods=("train-0",))
    (seen,) = told(node_checks.others(OtherFacts(peer=PeerClaims(file=file, unread=(odd,)))))
    assert seen.severity is WARNING
    assert "claim UID uid-1 (pod train-0), which is not taken over: it is in state" in seen.text
    assert "dra-driver cleanup" in seen.advice
    damaged = PeerClaims(file=file, problem="the checksum of its part v2 does not match")
    (seen,) = told(node_checks.others(OtherFacts(peer=damaged)))
    assert (seen.severity, "/p/checkpoint.json: the checksum" in seen.text) == (WARNING, True)
    old = PeerClaims(file=file, unread=(odd,), is_of_this_boot=False)
    assert severities(node_checks.others(OtherFacts(peer=old))) == [INFO]


def test_a_gpu_node_without_label_gets_the_command() -> None:
    facts = DriverFacts(version="570.86.15", gpus_on_pci=4)
    (seen,) = told(node_checks.labelled(facts, [], "node-1"))
    assert f"kubectl label node node-1 {node_checks.NODE_LABEL}" in seen.advice
    assert not list(node_checks.labelled(facts, ["nvidia.com/gpu.present"], "node-1"))
    assert not list(node_checks.labelled(DriverFacts(version=None, gpus_on_pci=0), [], "node-1"))


def test_an_empty_gpu_in_mig_mode_is_reported_before_1_37() -> None:
    on = make.gpu(0, mig_mode=MigMode.ENABLED, mig=make.mig(pending_mode=MigMode.ENABLED))
    (seen,) = node_checks.mig_modes(make.inventory(on), (1, 36))
    assert seen.severity is WARNING
    for way in ("nvidia-smi mig", "mig-parted", "-mig 0", "--mig on-demand", "1.1 pods a second"):
        assert way in (seen.advice or "")
    assert severities(node_checks.mig_modes(make.inventory(on), (1, 37))) == [OK]
    assert severities(node_checks.mig_modes(make.inventory(on), None)) == [WARNING]
    divided = make.gpu(0, mig_mode=MigMode.ENABLED, mig=make.mig(make.mig_device(0)))
    assert severities(node_checks.mig_modes(make.inventory(divided), (1, 36))) == [OK]
    assert severities(node_checks.mig_modes(make.inventory(make.gpu(0)), (1, 36))) == [OK]


def test_an_excluded_gpu_is_reported_but_no_fault() -> None:
    left = without_excluded(make.inventory(), ("0", "1"))

    assert severities(node_checks.gpus(left)) == []
    first, second = node_checks.excluded(left)
    assert (first.severity, second.severity) == (INFO, INFO)
    assert first.text.endswith('is not offered: it is left out by "0" of --exclude-gpus')


@pytest.mark.parametrize(
    ("facts", "severities_seen", "words"),
    [
        (GoneFacts(why_unknown=None), [OK], "no prepared claim"),
        (
            GoneFacts(why_unknown=None, kept={"a/b no longer exists": "pod a/c has it"}),
            [WARNING],
            "claim a/b no longer exists, but pod a/c has it: it keeps its devices",
        ),
        (
            GoneFacts(why_unknown=None, ended=("a/b, which no longer exists",)),
            [INFO],
            "nothing uses claim a/b, which no longer exists: the driver will unprepare it soon",
        ),
        (
            GoneFacts(why_unknown="nobody says", kept={"a/b no longer exists": "nobody says"}),
            [WARNING],
            "claims that are gone stay prepared: nobody says",
        ),
    ],
)
def test_gone_claims_are_reported_with_what_still_runs(
    facts: GoneFacts, severities_seen: list[Severity], words: str
) -> None:
    seen = list(node_checks.gone(facts))
    assert severities(seen) == severities_seen
    assert words in seen[0].text
    assert len(told(seen)) == severities_seen.count(WARNING)
