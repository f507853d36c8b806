"""What is found on a node, from folders that look like one."""

import os
import socket
from pathlib import Path

import pytest

import make
from dra_driver.admin.doctor.facts.node_facts import (
    driver_facts,
    holder_facts,
    missing_of_claims,
    node_files,
    other_facts,
    socket_facts,
    spec_facts,
)
from dra_driver.admin.doctor.facts.places import Places, host_root
from dra_driver.cdi.model import Edits, Hook, Mount, Spec
from dra_driver.cdi.roots import Roots
from dra_driver.cdi.store import SpecStore
from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.claims.state.ledger import Ledger
from worlds.nvidia_files import Left

KIND = "k8s.gpu.nvidia.com/claim"


@pytest.fixture
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    """A node's folders, all of them empty."""
    tmp_path = tmp_path_factory.mktemp("n")  # a socket's path may have 107 bytes
    roots = Roots(
        driver=tmp_path / "driver",
        driver_on_host="/",
        dev=tmp_path / "driver/dev",
        dev_on_host="/dev",
        proc=tmp_path / "proc",
        sys=tmp_path / "sys",
    )
    made = Places(
        roots=roots,
        host=tmp_path / "driver",
        plugins=tmp_path / "kubelet/plugins",
        registrar=tmp_path / "kubelet/registry",
        cdi_root=tmp_path / "cdi",
    )
    for folder in (roots.dev, roots.proc, made.plugins, made.registrar, made.cdi_root):
        folder.mkdir(parents=True)
    return made


def listening(path: Path) -> socket.socket:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    made.listen()
    return made


def test_gpus_are_counted_on_pci(places: Places) -> None:
    assert driver_facts(places).gpus_on_pci is None
    devices = places.roots.sys / "bus/pci/devices"
    for name, vendor, kind in (
        ("a", "0x10de", "0x030200"),
        ("b", "0x10de", "0x030000"),
        ("audio", "0x10de", "0x040300"),
        ("other", "0x8086", "0x030000"),
    ):
        (devices / name).mkdir(parents=True)
        (devices / name / "vendor").write_text(f"{vendor}\n")
        (devices / name / "class").write_text(f"{kind}\n")
    (devices / "empty").mkdir()
    facts = driver_facts(places)
    assert (facts.version, facts.gpus_on_pci) == (None, 2)


def test_nodes_are_known_by_file_or_by_number(places: Places) -> None:
    (places.roots.dev / "nvidiactl").touch()
    (places.roots.proc / "devices").write_text("Character devices:\n511 nvidia-uvm\n")
    facts = node_files(places)
    assert facts.present == {"nvidiactl"}
    assert facts.numbered == {"nvidia-uvm"}


def test_specs_are_distinguished_by_kind_and_name(places: Places) -> None:
    root = places.cdi_root
    (root / "ours.json").write_text(f'{{"cdiVersion":"0.5.0","kind":"{KIND}","devices":[]}}')
    (root / "theirs.yaml").write_text(f"cdiVersion: 0.5.0\nkind: {KIND}\n")
    (root / "nvidia.yaml").write_text("---\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\n")
    (root / "torn.json").write_text("{")
    (root / "ignored.txt").write_text("x")
    os.mkfifo(root / "pipe.json")
    facts = spec_facts(places)
    assert facts.of_claims == 1
    assert facts.of_others == ("theirs.yaml",)
    assert [one.partition(":")[0] for one in facts.unreadable] == ["pipe.json", "torn.json"]


def ref(uid: str) -> ClaimRef:
    return ClaimRef(uid=ClaimUid(uid), namespace="default", name=uid)


def test_claims_whose_files_are_gone_are_named_with_the_first_file(places: Places) -> None:
    ledger = Ledger(places.plugins / "gpu.nvidia.com", boot_id="b")
    for uid, mounts, hooks in (
        ("a", ("/lib/here.so", "/lib/gone.so", "/lib/other.so"), ()),
        ("b", ("/lib/here.so",), ("/usr/bin/gone-hook",)),
        ("c", ("/lib/here.so",), ()),
        ("d", (), ()),
    ):
        ledger.write(make.record(ref=ref(uid)))
        edits = Edits(
            env=("A=b",),
            mounts=tuple(Mount(host_path=path, container_path=path) for path in mounts),
            hooks=tuple(Hook(hook_name="createContainer", path=path) for path in hooks),
        )
        SpecStore(places.cdi_root).write(uid, Spec(devices={uid: edits}))
    (places.cdi_root / "k8s.gpu.nvidia.com-claim_d.json").write_text("{")
    library = places.roots.driver / "lib/here.so"
    library.parent.mkdir()
    library.touch()
    assert missing_of_claims(places) == {
        "/lib/gone.so": ["default/a"],
        "/usr/bin/gone-hook": ["default/b"],
    }


def test_live_sockets_are_distinguished_from_dead_ones(places: Places) -> None:
    live = listening(places.registrar / "gpu.nvidia.com-uid-reg.sock")
    listening(places.registrar / "gpu.nvidia.com-reg.sock").close()
    listening(places.registrar / "net.example.com-reg.sock").close()
    facts = socket_facts(places)
    live.close()
    assert facts.live == ("gpu.nvidia.com-uid-reg.sock",)
    assert facts.dead == ("gpu.nvidia.com-reg.sock",)


def test_files_of_others_on_the_node_are_found(places: Places) -> None:
    assert other_facts(places).peer.file is None
    plugin = listening(places.plugins.parent / "device-plugins/nvidia-gpu.sock")
    checkpoint = places.plugins / "gpu.nvidia.com/checkpoint.json"
    checkpoint.parent.mkdir()
    checkpoint.write_bytes(Left("dynamic-mig").checkpoint)
    facts = other_facts(places)
    plugin.close()
    assert facts.device_plugins == ("nvidia-gpu.sock",)
    assert facts.peer.file == checkpoint
    pods = {pod for claim in facts.peer.claims for pod in claim.pods}
    assert pods == {"whole", "mig1", "mig3", "sliced"}
    checkpoint.write_bytes(b"")
    assert other_facts(places).peer.problem is not None


def test_processes_are_seen_in_the_nodes_own_procfs_alone(places: Places) -> None:
    one = make.inventory(make.gpu(0))
    assert not holder_facts(places, one, in_a_pod=True).sees_node
    proc = places.roots.driver / "proc"
    (proc / "7/fd").mkdir(parents=True)
    (proc / "self").symlink_to("1")
    (proc / "7/comm").write_text("dcgm\n")
    (proc / "7/fd/3").symlink_to("/dev/nvidia0")
    facts = holder_facts(places, one, in_a_pod=True)
    assert [str(holder) for holder in facts.holders[0]] == ["dcgm (PID 7)"]


def test_the_nodes_root_is_where_a_pod_has_it_mounted(places: Places) -> None:
    roots = places.roots
    assert host_root(None, roots, in_a_pod=True) == roots.driver
    assert host_root(None, roots, in_a_pod=False) == Path("/")
    assert host_root(Path("/host"), roots, in_a_pod=True) == Path("/host")
    contained = Roots(
        driver=roots.driver, driver_on_host="/run/nvidia/driver", dev=roots.dev, dev_on_host="/dev"
    )
    assert host_root(None, contained, in_a_pod=True) is None
