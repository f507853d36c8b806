"""`dra-driver doctor` as people run it: on a simulated node, and against an API server."""

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from testbed.apiserver.server import ApiServer

from doctored import Doctor
from dra_driver.admin.doctor.checks.finding import Place
from dra_driver.admin.doctor.every_check import CHECKS, OF_CLUSTERS, OF_NODES, SERVER
from dra_driver.cli import main
from dra_driver.simulator.hardware import Fact
from dra_driver.simulator.machine import Machine

WRITING = {"create", "update", "patch", "delete", "deletecollection"}


@dataclass
class Node:
    """A node with simulated GPUs; `words` are what doctor needs to look at it alone."""

    folder: Path
    machine: Machine
    words: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        kubelet = self.folder / "kubelet"
        for name in ("plugins", "registry", "cdi"):
            (kubelet / name).mkdir(parents=True)
        self.words = [
            "doctor",
            "--scope=node",
            f"--nvidia-driver-root={self.machine.driver_root}",
            f"--container-driver-root={self.machine.driver_root}",
            f"--sys-root={self.machine.sys_root}",
            f"--proc-root={self.machine.proc_root}",
            f"--host-root={self.folder / 'host'}",
            f"--kubelet-plugins-directory-path={kubelet / 'plugins'}",
            f"--kubelet-registrar-directory-path={kubelet / 'registry'}",
            f"--cdi-root={kubelet / 'cdi'}",
        ]
        config = self.folder / "host/etc/containerd/config.toml"
        config.parent.mkdir(parents=True)
        config.write_text("version = 3\n")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine.create(tmp_path_factory.mktemp("machine") / "gpus", "l4x2")


@pytest.fixture
def node(tmp_path: Path, machine: Machine) -> Iterator[Node]:
    yield Node(folder=tmp_path / "node", machine=machine)
    machine.clear_faults()
    for gpu in machine.gpus:
        machine.restore_gpu(gpu.uuid)
        machine.set_fact(gpu.uuid, Fact.PERSISTENCE_MODE, 0)


def test_a_node_is_checked_without_a_cluster(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    # No driver runs there.
    document = Doctor([*node.words, "-o", "json"], capsys).document(1)
    found = {finding["id"]: finding for finding in document["findings"]}
    assert found["registration"]["severity"] == "error"
    assert [
        finding["id"] for finding in document["findings"] if finding["severity"] == "error"
    ] == ["registration"]
    assert found["kernel-driver"]["seen"].endswith("2 GPUs on PCI")
    assert found["gpus"]["seen"].startswith("2 GPUs (NVIDIA L4)")
    assert found["persistence-mode"]["severity"] == "warning"
    assert found["runtime-cdi"]["severity"] == "ok"
    assert found["default-runtime"]["severity"] == "ok"
    skipped = {one["id"]: one["reason"] for one in document["skipped"]}
    assert skipped.keys() == {SERVER.id, *(check.id for check in OF_CLUSTERS)}
    assert set(skipped.values()) == {"--scope is node"}


def test_gpus_with_persistence_mode_are_fine(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    for gpu in node.machine.gpus:
        node.machine.set_fact(gpu.uuid, Fact.PERSISTENCE_MODE, 1)
    found = Doctor([*node.words, "-o", "json"], capsys).findings(1)
    assert found["persistence-mode"] == ["ok"]


def test_a_lost_gpu_is_an_error_beside_one_that_answers(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    node.machine.lose_gpu(node.machine.gpus[0].uuid)
    found = Doctor([*node.words, "-o", "json"], capsys).findings(1)
    assert found["gpus"] == ["ok", "error"]


def test_a_node_without_the_driver_gets_install_advice(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    roots = [f"--{kind}-driver-root={empty}" for kind in ("nvidia", "container")]
    assert main([*node.words, *roots]) == 1
    text = capsys.readouterr().out
    assert "error    driver-library" in text
    assert "install the GPU driver" in text
    assert "NVML was not found (see driver-library)" in text


def test_a_driver_that_hangs_hides_nothing_else(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    node.machine.slow_call("nvmlDeviceGetName", 600_000, times=1)
    found = Doctor([*node.words, "--timeout=5", "-o", "json"], capsys).findings(1)
    assert found.keys() == {check.id for check in CHECKS if Place.NODE in check.needs}
    assert found["gpus"] == ["error"]
    assert found["persistence-mode"] == ["unknown"]
    assert found["cdi-folder"] == ["ok"]
    node.machine.clear_faults()
    for thread in threading.enumerate():
        if thread.name.startswith("doctor-"):
            thread.join(30)


def test_files_that_are_something_else_are_not_waited_for(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    config = node.folder / "host/etc/containerd/config.toml"
    config.unlink()
    os.mkfifo(config)
    os.mkfifo(node.folder / "kubelet/cdi/pipe.json")
    (node.folder / "kubelet/cdi/\x1b[2J.json").write_text("{")
    main(node.words)
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "not a plain file" in text
    assert "pipe.json" in text


def test_a_cluster_as_installed_is_fine(well: ApiServer, doctor: Doctor) -> None:
    before = {kind: well.objects(kind) for kind in ("resourceslices", "deviceclasses")}
    found = doctor.findings()
    assert {severity for severities in found.values() for severity in severities} == {"ok"}
    assert found.keys() == {check.id for check in CHECKS if Place.CLUSTER in check.needs}

    # Nothing was stored, and nothing but dry runs and questions was sent.
    assert {kind: well.objects(kind) for kind in before} == before
    writes = [one for one in well.log if one.verb in WRITING and one.plural]
    assert writes
    assert {(write.verb, write.query.get("dryRun")) for write in writes} == {("create", "All")}


def test_an_empty_cluster_has_errors(cluster: ApiServer, doctor: Doctor) -> None:
    found = doctor.findings(1)
    assert found["slices"] == ["error"]
    assert found["device-classes"] == ["error"] * 5
    assert found["gpu-labels"] == ["warning"]


def test_permissions_that_doctor_lacks_hide_no_other_finding(
    well: ApiServer, doctor: Doctor
) -> None:
    for verb, plural in (("list", "daemonsets"), ("create", "deviceclasses")):
        well.fail(verb, plural, status=403, message="forbidden by RBAC", times=9)
    found = doctor.findings()
    unknown = {name for name, severities in found.items() if "unknown" in severities}
    of_daemon_sets = {"permissions", "daemonset", "driver-pods", "share-config"}
    assert unknown == of_daemon_sets | {"others-in-cluster", "api-server-features"}


def test_a_server_that_is_away_is_one_error_and_the_rest_is_left_out(
    cluster: ApiServer, doctor: Doctor
) -> None:
    cluster.stop()
    document = doctor.document(1)
    assert [finding["id"] for finding in document["findings"]] == ["api-server"]
    reasons = {one["reason"] for one in document["skipped"] if one["id"] == "slices"}
    assert reasons == {"the API server does not answer (see api-server)"}


def test_credentials_that_are_not_accepted_are_one_error(
    cluster: ApiServer, doctor: Doctor
) -> None:
    cluster.token = "another"  # noqa: S105
    assert doctor.findings(1) == {"api-server": ["error"]}


def test_a_node_is_checked_without_the_api_server(
    node: Node, cluster: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = cluster.write_kubeconfig(tmp_path / "kubeconfig")
    cluster.stop()
    words = [*node.words, "--scope=auto", f"--kubeconfig={kubeconfig}", "-o", "json"]
    found = Doctor(words, capsys).findings(1)
    assert found["api-server"] == ["error"]
    assert {check.id for check in OF_NODES} <= found.keys()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--scope=nowhere"], "--scope"),
        (["--kubeconfig=/no/such/file"], "cannot read the kubeconfig"),
        (["--scope=cluster"], "there is nothing to check"),
        (["--timeout=0"], "--timeout"),
        (["--kubelet-plugins-directory-path=/no/such/folder/at/all"], "this is not a node"),
    ],
)
def test_an_impossible_run_ends_with_status_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
