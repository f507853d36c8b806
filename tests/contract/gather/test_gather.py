"""`dra-driver gather` as people run it: what is in an archive, and what never is."""

import json
import os
import resource
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from testbed.apiserver.server import ApiServer

import gathering
import make
from dra_driver.admin.gather import reading
from dra_driver.claims.model.claim import ConsumerPod
from dra_driver.claims.model.record import encode
from dra_driver.cli import main
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.host.envelope import seal, unseal
from dra_driver.shares.notes import ShareNotes, write_notes
from dra_driver.simulator import profile as profiles
from gathering import Archive, GatheredNode
from published import device, slices

SECRET = "hunter2"  # noqa: S105 (it opens nothing)
UID = "7d3c1a52-0b0e-4c55-9d3a-5d1f6a7b8c9d"
LINE = {
    "timestamp": "2026-01-02T03:04:05Z",
    "level": "error",
    "event": "claim not prepared",
    "claim": "team-a/training",
    "claim_uid": UID,
    "reason": "10.9.8.7 says Bearer hunter2hunter2 for pod trainer-0",
    "environment": f"TOKEN={SECRET}",
}
CONTAINERD = f"""version = 3
[plugins.'io.containerd.cri.v1.runtime']
enable_cdi = true
[plugins.'io.containerd.cri.v1.images'.registry.configs.'r.example'.auth]
password = '{SECRET}'
"""
KUBELET = f"""kind: KubeletConfiguration
cgroupDriver: systemd
featureGates: {{DynamicResourceAllocation: true}}
staticPodURLHeader: {{Authorization: [{SECRET}]}}
clusterDNS: [10.96.0.10]
"""


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBECONFIG", "NODE_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NGC_API_KEY", SECRET)


@pytest.fixture
def node(tmp_path: Path) -> GatheredNode:
    """A node with all that gather looks for."""
    node = gathering.node(tmp_path, "l4x2")
    write(tmp_path / "cgroup/cgroup.controllers", "cpu memory dmem\n")
    write(tmp_path / "cgroup/dmem.capacity", "nvidia/0000:3b:00.0 24152899584\n")
    host = tmp_path / "host"
    write(host / "etc/os-release", 'ID=debian\nVERSION_ID="12"\n')
    write(host / "etc/containerd/config.toml", CONTAINERD)
    write(host / "var/lib/kubelet/config.yaml", KUBELET)
    log = host / "var/log/pods/dra-driver_dra-driver-x7k2p_0a1b/kubelet-plugin/3.log"
    write(log, f"2026-01-02T03:04:05Z stdout F {json.dumps(LINE)}\nTOKEN={SECRET}\n")
    directory = node.plugins / DRIVER_NAME
    pods = (make_pod("trainer-0"),)
    record = make.record(uid=UID, pods=pods, pod_claim_name="train")
    write(directory / f"claims/{UID}.json", encode(record).decode())
    write(directory / "claims/damaged.json", f"password={SECRET}")
    write_notes(directory, ShareNotes(origin="the file shares.yaml"))
    write(
        tmp_path / f"cdi/k8s.gpu.nvidia.com-claim_{UID}.json",
        '{"kind": "k8s.gpu.nvidia.com/claim"}',
    )
    write(directory / "health.json", seal({"bootID": UID, "gpus": {}}).decode())
    return node


def make_pod(name: str) -> Any:
    return ConsumerPod(name=name, uid="5f1d9e0a-1111-4222-8333-444455556666")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def archive_of(node: GatheredNode, *more: str) -> Archive:
    return gathering.unpack(node.gathered(*more))


def everything_in(path: Path) -> str:
    with tarfile.open(path) as tar:
        contents = [tar.extractfile(member) for member in tar]
        return "".join(content.read().decode() for content in contents if content)


def test_an_archive_has_what_a_node_is(node: GatheredNode) -> None:
    found = archive_of(node)
    documents = found.documents

    assert [gpu["calls"]["nvmlDeviceGetName"]["value"] for gpu in documents["nvml.json"]["gpus"]]
    here = documents[reading.NODE]
    assert here["system"] == {"ID": "debian", "VERSION_ID": "12"}
    assert here["versions"]["gpuDriver"] == node.machine.description.driver_version
    assert here["kernelCountsGpuMemory"] is True
    assert {"nvidiactl", "nvidia0", "nvidia-uvm"} <= {one["path"] for one in here["deviceNodes"]}
    assert here["majors"]["nvidia"] == 195
    pci = documents[reading.PCI]["devices"]
    assert {(one["vendor"], one["numaNode"]) for one in pci} == {("0x10de", -1)}
    libraries = {library["soname"] for library in documents[reading.FILES]["libraries"]}
    assert {"libcuda.so.1", "libnvidia-ml.so.1"} <= libraries
    (runtime,) = documents[reading.CONFIG]["runtimes"]
    assert (runtime["name"], runtime["cdi"]) == ("containerd", True)
    kubelet = documents[reading.CONFIG]["kubelet"]["/var/lib/kubelet/config.yaml"]
    assert kubelet == {
        "cgroupDriver": "systemd",
        "featureGates": {"DynamicResourceAllocation": True},
    }
    assert documents[reading.CONFIG]["cdiSpecs"]["of_claims"] == 1
    state = documents[reading.STATE]
    assert state["claims"][0]["state"] == "prepared"
    assert state["shares"]["origin"] == "the file shares.yaml"
    assert documents[reading.LOG][0]["lines"][0]["event"] == "claim not prepared"
    assert "damaged.json" in " ".join(found.missing)


def test_an_archive_names_what_shares_an_iommu_group_with_a_gpu(tmp_path: Path) -> None:
    profile = profiles.load("t4x4")
    card = profile.gpus[0].pci
    audio = {"pci": f"{card[:-1]}1", "beside": card, "device": "0x10f8"}
    disk = {"pci": "0000:19:00.0", "beside": card, "vendor": "0x144d", "device": "0xa80a"}
    disk |= {"pci_class": "0x010802", "driver": "nvme"}
    profile = profiles.changed(profile, {"iommu": {"functions": [audio, disk]}})
    devices = archive_of(gathering.node(tmp_path, profile)).documents[reading.PCI]["devices"]
    told = {"address": "0000:19:00.0", "vendor": "0x144d", "class": "0x010802", "driver": "nvme"}
    assert {one["address"]: one["strangers"] for one in devices if "strangers" in one} == {
        card: [told]
    }


def test_an_archive_does_not_identify_its_node(node: GatheredNode) -> None:
    path = node.gathered("--node-name=worker-17")
    text = everything_in(path)

    identities = [UID, "team-a", "training", "trainer-0", "10.9.8.7", "x7k2p", "worker-17"]
    for gpu in node.machine.gpus:
        identities += [gpu.uuid, gpu.serial]
    assert [identity for identity in identities if identity in text] == []
    (container,) = gathering.unpack(path).documents[reading.LOG]
    assert container["lines"][0]["reason"] == "192.0.2.1 says [removed] for pod pod-1"
    assert container["lines"][0]["claim"] == "namespace-1/claim-3"


def test_with_identify_identities_are_kept_and_secrets_are_not(node: GatheredNode) -> None:
    text = everything_in(node.gathered("--identify"))

    for one in (UID, "training", "trainer-0", "10.9.8.7", *(g.uuid for g in node.machine.gpus)):
        assert one in text
    assert SECRET not in text


class Opened:
    """The files below a folder that this process opens."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._is_on = True
        self.paths: set[Path] = set()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self._is_on and event == "open" and isinstance(args[0], str | os.PathLike):
            path = os.fspath(args[0])
            if isinstance(path, str) and path.startswith(self._folder):
                self.paths.add(Path(path))

    def files(self) -> Iterator[Path]:
        self._is_on = False
        yield from sorted(path for path in self.paths if path.is_file())


def seed(path: Path) -> None:
    """Put a secret into a file, in a way in which it is still read."""
    try:
        payload = dict(unseal(path.read_bytes()))
    except Exception:  # noqa: BLE001 (another kind of file)
        text = path.read_text().rstrip("\n")
        lines = [f"password: {SECRET}", f"PASSWORD={SECRET}", f"token = '{SECRET}'"]
        joint = "# " if path.suffix == ".toml" else ""
        path.write_text("\n".join([text, *(f"{joint}{line}" for line in lines), ""]))
    else:
        seeded = {**payload, "environment": {"TOKEN": SECRET}, SECRET: SECRET}
        path.write_bytes(seal(seeded))


@pytest.mark.parametrize("words", [(), ("--identify",)])
def test_an_archive_has_no_secret_of_any_file(
    node: GatheredNode, words: tuple[str, ...], tmp_path: Path
) -> None:
    binaries = (node.machine.driver_root / "usr", node.machine.driver_root / "lib")
    before = Opened(tmp_path)
    node.gathered(*words)
    read = [
        path
        for path in before.files()
        if not any(path.is_relative_to(binary) for binary in binaries) and path.suffix != ".gz"
    ]
    assert len(read) > 30
    for path in read:
        seed(path)

    archive = node.gathered(*words)

    assert SECRET not in everything_in(archive)
    found = gathering.unpack(archive).documents
    assert found[reading.STATE]["claims"]
    assert found[reading.CONFIG]["runtimes"][0]["cdi"] is True
    assert found[reading.NODE]["gpus"]


def test_the_slices_of_the_node_are_there_without_what_else_the_api_server_has(
    node: GatheredNode, tmp_path: Path
) -> None:
    objects = slices([device("gpu-0", uuid=UID)], node="worker-17")
    for one in objects:
        one["metadata"]["annotations"] = {"token": SECRET}
    with ApiServer() as server:
        server.put(*objects, *slices([device("gpu-0")], node="worker-18"))
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        words = (f"--kubeconfig={kubeconfig}", "--node-name=worker-17")
        path = node.gathered(*words)

    (found,) = gathering.unpack(path).documents[reading.SLICES]
    assert found["spec"]["nodeName"] == "node-1"
    assert found["spec"]["devices"][0]["name"] == "gpu-0"
    text = everything_in(path)
    assert [one for one in (SECRET, UID, "worker-17", "worker-18") if one in text] == []


@pytest.mark.leaves("what hangs for good keeps its thread")
def test_a_gpu_that_hangs_does_not_hang_it(node: GatheredNode) -> None:
    hung = max(node.machine.gpus, key=lambda gpu: gpu.pci)
    node.machine.slow_call("nvmlDeviceGetSerial", 600_000, uuid=hung.uuid)
    try:
        found = archive_of(node, "--timeout=12", "--identify")
    finally:
        node.machine.clear_faults()

    first, second = (gpu["calls"] for gpu in found.documents[reading.NVML]["gpus"])
    assert first["nvmlDeviceGetSerial"]["code"] == 0
    assert second["nvmlDeviceGetName"]["code"] == 0
    assert second["nvmlDeviceGetSerial"] == second["nvmlDeviceGetMigMode"] == {"silent": True}


def test_a_driver_that_hangs_is_named_and_the_rest_is_there(node: GatheredNode) -> None:
    node.machine.slow_call("nvmlInitWithFlags", 600_000)
    try:
        found = archive_of(node, "--timeout=5")
    finally:
        node.machine.clear_faults()

    assert found.missing[reading.NVML] == "no answer in 5 s"
    assert reading.NODE in found.documents


def test_missing_sources_are_named_and_not_fatal(tmp_path: Path) -> None:
    node = gathering.node(tmp_path, "l4x2")
    node.machine.unload_driver()
    found = archive_of(node).missing

    assert found[reading.NVML].startswith("the GPU driver is not loaded")
    assert found[reading.SLICES].startswith("no cluster is configured")
    not_there = f"it does not exist below {tmp_path / 'host'}"
    assert found["/etc/os-release"] == found["/var/log/pods"] == not_there


def test_files_that_are_too_large_or_special_are_named(node: GatheredNode, tmp_path: Path) -> None:
    kubelet = tmp_path / "host/var/lib/kubelet/config.yaml"
    kubelet.write_text("a: b\n" * 1_000_000)
    release = tmp_path / "host/etc/os-release"
    release.unlink()
    os.mkfifo(release)
    found = archive_of(node).missing

    assert "has more than 1048576 bytes" in found[str(kubelet)]
    assert "is not a plain file" in found[str(release)]


def test_in_the_drivers_pod_the_node_is_seen_below_the_driver_root(
    node: GatheredNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    root = node.machine.driver_root
    write(root / "etc/os-release", "ID=flatcar\n")
    write(root / "var/lib/kubelet/config.yaml", KUBELET)
    path = node.folder / "pod.tar.gz"
    words = [word for word in node.words(path) if not word.startswith("--host-root")]

    assert main([*words, "--nvidia-driver-root=/"]) == 0

    found = gathering.unpack(path)
    assert found.documents[reading.NODE]["system"] == {"ID": "flatcar"}
    assert found.documents[reading.CONFIG]["kubelet"]
    assert len(found.documents[reading.NVML]["gpus"]) == 2
    assert reading.SLICES in found.missing


def test_it_goes_to_standard_output(
    node: GatheredNode, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (node.plugins / DRIVER_NAME / "shares.json").write_text("damaged: this is logged")
    assert main(node.words("-")) == 0

    shown = capfdbinary.readouterr()
    (tmp_path / "piped.tar.gz").write_bytes(shown.out)
    assert reading.NVML in gathering.unpack(tmp_path / "piped.tar.gz").documents
    assert shown.err.endswith(b" bytes written to standard output\n")


def test_on_a_full_disk_the_archive_that_was_there_stays(
    node: GatheredNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "out/node.tar.gz"
    write(archive, "of yesterday")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        assert main(node.words(archive)) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert "node.tar.gz cannot be written: File too large" in capsys.readouterr().err
    assert [(one.name, one.read_text()) for one in archive.parent.iterdir()] == [
        ("node.tar.gz", "of yesterday")
    ]


def test_special_files_are_written_to_not_replaced(node: GatheredNode, tmp_path: Path) -> None:
    (link := tmp_path / "link").symlink_to("linked.tar.gz")
    assert main(node.words(link)) == 0
    assert link.is_symlink()
    assert reading.NVML in gathering.unpack(tmp_path / "linked.tar.gz").documents
    os.mkfifo(pipe := tmp_path / "pipe")
    (tmp_path / "piped").touch()
    with subprocess.Popen(["cp", "--copy-contents", pipe, tmp_path / "piped"]) as reader:
        assert main(node.words(pipe)) == 0
    assert reader.returncode == 0
    assert pipe.is_fifo()
    assert reading.NVML in gathering.unpack(tmp_path / "piped").documents
