"""`dra-driver cleanup` as an admin runs it, after the driver was on the node as a process."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from testbed.apiserver.server import ApiServer
from testbed.kubelet import ClaimName, KubeletClient

import make
from dra_driver.cli import main
from dra_driver.mps import processes
from dra_driver.mps.daemon import mounts
from dra_driver.mps.supervisor.cgroup import GROUP
from dra_driver.simulator.driver_root import Options
from dra_driver.simulator.machine import Machine
from worlds import mps as played_mps
from worlds.configs import HALF, LONG
from worlds.nvidia import checkpoint
from worlds.nvidia_files import FOLDERS, SEED, Left, entry_of
from worlds.process import SLICES, ProcessNode, TakeOverProcess, eventually, supervised

MIG = "gpu-0-mig-1g10gb-19-0"


pytestmark = pytest.mark.usefixtures("logs_restored")


@pytest.fixture
def node(tmp_path: Path, api: ApiServer) -> Iterator[ProcessNode]:
    node = ProcessNode(tmp_path, api)
    yield node
    node.driver.kill()
    played_mps.clean(node.place.mps)


def command(node: ProcessNode, *words: str, api: bool = True) -> list[str]:
    place = node.place
    flags = {
        "node-name": place.node,
        "kubelet-plugins-directory-path": place.plugins,
        "kubelet-registrar-directory-path": place.registry,
        "cdi-root": place.cdi_root,
        "nvidia-driver-root": place.driver_root,
        "container-driver-root": place.driver_root,
        "sys-root": place.driver_root / "sys",
        "proc-root": place.driver_root / "proc",
        "cgroup-root": place.driver_root.parent / "cgroup",
    }
    if api:
        flags["kubeconfig"] = place.kubeconfig
    return ["cleanup", *(f"--{name}={value}" for name, value in flags.items()), *words]


def prepared(node: ProcessNode, *claims: ClaimName) -> None:
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register()
        kubelet.must_prepare(*claims)


def files(node: ProcessNode) -> list[str]:
    """All that the driver has on the node."""
    folders = (node.place.plugins, node.place.registry, node.place.cdi_root)
    return sorted(str(path) for folder in folders for path in folder.rglob("*"))


def migs(machine: Machine) -> int:
    return sum(len(machine.mig_devices(gpu.uuid)) for gpu in machine.gpus)


def test_it_refuses_while_claims_are_prepared_and_forced_leaves_nothing(
    node: ProcessNode, api: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = node.install_gpus("h100x8")
    node.driver.env["MIG"] = "on-demand"
    node.driver.start()
    node.wait_devices(8)
    assert main(command(node)) == 1
    assert "a driver runs on this node and listens on" in capsys.readouterr().err
    prepared(node, node.allocate("mig", MIG), node.allocate("whole", "gpu-1"))
    node.driver.kill()  # its sockets stay, as after a power cut
    before = files(node)
    assert main(command(node)) == 1
    assert (
        f"claims are prepared on this node: default/mig ({MIG}); default/whole (gpu-1); "
        "without a driver their pods cannot end: bring it back (with the chart, "
        "cleanup.enabled=false), drain the node, and run this again; or add --force"
    ) in capsys.readouterr().err
    assert main(command(node, "--dry-run")) == 0
    listed = capsys.readouterr().out
    for thing in ("record of claim default/mig", "MIG device of profile 19 at 0", "ResourceSlice"):
        assert f"would remove: {thing}" in listed
    assert "\nwithout --force, would refuse: claims are prepared on this node" in listed
    assert (files(node), migs(machine)) == (before, 1)
    assert api.objects(SLICES)
    assert main(command(node, "--force")) == 0
    assert "removed: CDI spec of claim UID uid-mig" in capsys.readouterr().out
    assert files(node) == []
    assert migs(machine) == 0
    assert not any(one.mig_mode for one in machine.status())
    assert api.objects(SLICES) == []
    assert main(command(node)) == 0
    assert capsys.readouterr().out == "nothing of this driver is on the node\n"


def test_the_control_group_of_daemons_goes_unless_a_process_is_in_it(
    node: ProcessNode, capsys: pytest.CaptureFixture[str]
) -> None:
    node.install_gpus("h100x8")
    group = node.place.driver_root.parent / "cgroup" / GROUP
    group.mkdir(parents=True)
    (group.parent / "cgroup.procs").touch()
    process = group / "process"  # in its place: a folder with something in it is not removed
    process.touch()
    assert main(command(node, "--dry-run")) == 0
    assert f"would remove: {group}" in capsys.readouterr().out
    assert main(command(node)) == 1
    assert f"{group} cannot be removed: Directory not empty" in capsys.readouterr().err
    process.unlink()
    assert main(command(node)) == 0
    assert f"removed: {group}" in capsys.readouterr().out
    assert not group.exists()


def test_a_drained_node_is_left_clean(
    node: ProcessNode, capsys: pytest.CaptureFixture[str]
) -> None:
    node.install_gpus("h100x8")
    node.driver.env["MIG"] = "on-demand"
    node.driver.start()
    node.wait_devices(8)
    claim = node.allocate("mig", MIG)
    with KubeletClient(node.place.registry) as kubelet:
        kubelet.register()
        kubelet.must_prepare(claim)
        kubelet.must_unprepare(claim)
    assert node.driver.stop() == 0
    assert main(command(node, api=False)) == 0
    assert files(node) == []
    said = capsys.readouterr().out
    assert (
        "kubectl delete resourceslices --field-selector "
        "spec.driver=gpu.nvidia.com,spec.nodeName=node-1"
    ) in said


def test_an_undeletable_slice_keeps_no_other(
    node: ProcessNode, capsys: pytest.CaptureFixture[str]
) -> None:
    node.install_gpus("h100x8")
    node.driver.env["MIG"] = "on-demand"
    node.driver.start()
    node.wait_devices(8)
    assert node.driver.stop() == 0
    names = sorted(one["metadata"]["name"] for one in node.api.objects("resourceslices"))
    assert len(names) > 2
    node.api.fail("delete", "resourceslices", name=names[0], status=403, times=9)
    node.api.fail("delete", "resourceslices", name=names[1], status=404, times=9)
    assert main(command(node)) == 1
    left = sorted(one["metadata"]["name"] for one in node.api.objects("resourceslices"))
    assert left == names[:2]
    said = capsys.readouterr().err
    assert f"ResourceSlice {names[0]}: " in said


def test_a_checkpoint_that_cannot_be_read_is_put_aside_and_daemons_of_its_claims_stay(
    node: ProcessNode, capsys: pytest.CaptureFixture[str]
) -> None:
    node.install_gpus("h100x8")
    theirs = node.place.data / "mps" / "uid-theirs-1a2b3" / "pipe"
    theirs.mkdir(parents=True)
    (node.place.data / "checkpoint.json").write_text("of another version")
    init = TakeOverProcess(node.driver)
    assert init.run() == 0, "a driver can start"
    assert init.events("node not taken over from nvidia's driver")
    node.driver.start()
    node.wait_devices(8)
    node.driver.kill()
    spec = node.place.cdi_root / "k8s.gpu.nvidia.com-claim_uid-theirs.yaml"
    spec.parent.mkdir(exist_ok=True)
    spec.touch()
    assert main(command(node)) == 1
    refused = capsys.readouterr().err
    assert (
        "prepared on this node: claim UID uid-theirs of NVIDIA's DRA driver; without a" in refused
    )
    spec.unlink()
    assert main(command(node)) == 0
    said = capsys.readouterr().out
    assert f"put aside: {node.place.data}/checkpoint.json, as its content is not that" in said
    names = ["checkpoint.json.put-aside", "mps"]
    assert sorted(path.name for path in node.place.data.iterdir()) == names
    assert theirs.is_dir()
    assert not list(node.place.registry.iterdir())
    assert main(command(node)) == 0
    assert sorted(path.name for path in node.place.data.iterdir()) == names


@pytest.mark.usefixtures("needs_root", "real_userspace")
@pytest.mark.parametrize("name", FOLDERS)
def test_nvidias_claims_are_released_after_their_pods_end(
    node: ProcessNode, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = node.install_gpus("h100x8", Options(userspace="real", seed=SEED))
    left = Left(name)
    left.restore_machine(machine)
    left.restore_files(node.place.data, node.place.cdi_root)
    before = files(node)
    assert main(command(node)) == 1
    refused = capsys.readouterr().err
    for pod, ref in left.refs.items():
        assert f"claim UID {ref.uid} (pod {pod}) of NVIDIA's DRA driver" in refused
    assert main(command(node, "--dry-run")) == 0
    assert f"would remove: claim UID {ref.uid} (pod {pod})" in capsys.readouterr().out
    assert files(node) == before
    for path in node.place.cdi_root.iterdir():
        path.unlink()  # as at the end of a claim that was not taken over
    assert main(command(node)) == 0, capsys.readouterr().err
    assert files(node) == []
    static = name == "static-mig"
    assert migs(machine) == (2 if static else 0)
    assert [one.gpu.minor for one in machine.status() if one.mig_mode] == ([7] if static else [])
    assert not any(one.time_slice for one in machine.status())


def test_an_unknown_nvidia_claim_keeps_no_gpu_from_cleanup(
    node: ProcessNode, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = node.install_gpus("h100x8", Options(userspace="stand-in", seed=SEED))
    left = Left("dynamic-mig")
    left.restore_machine(machine)
    claims, odd = left.prepared, left.refs["whole"]
    entry_of(claims[odd.uid])["vfio"] = {}
    claims = {uid: claim for uid, claim in claims.items() if uid != left.refs["sliced"].uid}
    data = checkpoint(claims, boot_id=left.boot_id)
    left.restore_files(node.place.data, node.place.cdi_root, checkpoint=data)
    assert main(command(node, "--force")) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert f"as claim UID {odd.uid} (pod whole): it has a device of an unknown kind" in said
    kept = node.place.data / "checkpoint.json.put-aside"
    assert kept.read_bytes() == checkpoint({odd.uid: claims[odd.uid]}, boot_id=left.boot_id)
    assert not (node.place.data / "checkpoint.json").exists()
    assert list(node.place.cdi_root.iterdir()) == []
    assert migs(machine) == 0


def test_a_taken_over_node_is_left_clean(node: ProcessNode) -> None:
    machine = node.install_gpus("h100x8")
    node.place.data.mkdir(parents=True)
    (node.place.data / "checkpoint.json").write_bytes(checkpoint({}, boot_id=machine.boot_id))
    assert TakeOverProcess(node.driver).run() == 0
    node.driver.start()
    node.wait_devices(8)
    assert (node.place.data / "checkpoint.json.taken-over").exists()
    assert not (node.place.data / "checkpoint.json").exists()
    assert node.driver.stop() == 0
    assert main(command(node)) == 0
    assert files(node) == []


def test_what_the_driver_of_compute_domains_has_is_kept(node: ProcessNode) -> None:
    node.install_gpus("h100x8")
    place, name = node.place, "compute-domain.nvidia.com"
    theirs = [place.plugins / name / "checkpoint.json", place.cdi_root / f"k8s.{name}-claim_1.yaml"]
    place.registry.mkdir(parents=True)
    for path in theirs:
        path.parent.mkdir(parents=True)
        path.touch()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(place.registry / f"{name}-reg.sock"))
        before = files(node)
        assert main(command(node, "--force")) == 0
        assert files(node) == before


@pytest.mark.usefixtures("needs_root", "real_userspace")
def test_daemons_mounts_and_settings_of_gpus_are_taken_back(
    node: ProcessNode, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = node.install_gpus("h100x8", Options(userspace="real"))
    with supervised(node):
        node.driver.start()
        node.wait_devices(8)
        mps = node.allocate("mps", "gpu-0", configs=[make.config(sharing=HALF)])
        sliced = node.allocate("sliced", "gpu-1", configs=[make.config(sharing=LONG)])
        prepared(node, mps, sliced)
        assert [one.time_slice for one in machine.status()][:2] == [0, 3]
        node.driver.kill()
        assert main(command(node, "--force")) == 1
        assert "the MPS supervisor runs on this node" in capsys.readouterr().err
    (domain,) = (node.place.mps / "domains").iterdir()
    assert mounts.layers(domain / "shm")
    assert processes.marked(domain)
    assert main(command(node, "--force")) == 0, capsys.readouterr().err
    eventually(lambda: not processes.marked(domain), "the end of the daemon")
    assert files(node) == []
    assert not mounts.layers(domain / "shm")
    assert not any(one.time_slice or one.compute_mode for one in machine.status())
