"""A cluster of CRI-O instead of containerd: its programs, its configuration, and its images."""

import json
import socket
import subprocess
import tomllib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from cluster.binaries import GROUPS, OCI_RUNTIMES, Binaries, groups_of
from cluster.cli import environment
from cluster.components import components
from cluster.errors import ClusterError
from cluster.image import Entry, Image, write_archive
from cluster.state import Cluster, Options, Ports, load
from cluster.versions import resolve

from cluster import configs, crio, crio_programs

PORTS = Ports(**dict.fromkeys(Ports.__dataclass_fields__, 1))


def cluster_in(state: Path, oci: str = "runc") -> Cluster:
    options = Options(kubernetes="1.37.1", runtime="crio", oci=oci)
    return Cluster(name="one", state=state, subnet=3, ports=PORTS, options=options)


def programs(folder: Path, oci: str = "runc") -> Binaries:
    return Binaries(folders=dict.fromkeys(groups_of("crio", oci), folder / "bin"))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(Cluster, "shim_sockets", tmp_path / "sockets")
    made = cluster_in(tmp_path)
    configs.write_configs(made, programs(tmp_path))
    return made


def config(cluster: Cluster) -> Mapping[str, Any]:
    found: Mapping[str, Any] = tomllib.loads((cluster.config / "crio.toml").read_text())["crio"]
    return found


def test_a_cluster_has_the_programs_of_one_runtime_alone() -> None:
    containerd, other = set(groups_of("containerd")), set(groups_of("crio"))
    assert containerd ^ other == {"containerd", "crio"}
    assert containerd | other == set(GROUPS)


def test_crio_is_compiled_from_its_own_module_without_what_would_have_to_be_installed() -> None:
    versions = resolve("1.37")
    job = crio_programs.job(versions)
    assert f"github.com/cri-o/cri-o v{versions.crio}" in job.go_mod.read_text()
    assert f"-tags={','.join(crio_programs.TAGS)}".split("=") == job.flags[2:3] + job.flags[3:4]
    assert not job.cgo


def test_a_record_of_before_means_containerd(tmp_path: Path) -> None:
    options = {"kubernetes": "1.37.1"}
    record = {"name": "one", "subnet": 3, "ports": dict.fromkeys(PORTS.__slots__, 1)}
    (tmp_path / "cluster.json").write_text(json.dumps(record | {"options": options}))
    found = load(tmp_path)
    assert found is not None
    assert found.options.runtime == "containerd"
    assert found.cri_socket == tmp_path / "containerd.sock"


def test_kubelet_and_crio_meet_at_one_socket(cluster: Cluster) -> None:
    kubelet = json.loads((cluster.config / "kubelet.json").read_text())
    socket = config(cluster)["api"]["listen"]
    assert kubelet["containerRuntimeEndpoint"] == f"unix://{socket}"
    assert not (cluster.config / "containerd.toml").exists()


def test_crio_takes_the_place_of_containerd_among_the_components(cluster: Cluster) -> None:
    found = components(cluster, programs(cluster.state))
    assert list(found)[1] == "crio"
    assert "containerd" not in found
    assert str(cluster.config / "crio.toml") in found["crio"].argv


def test_crio_is_healthy_once_it_serves_and_not_when_it_listens(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.components.PROBE_TIMEOUT_S", 0.2)
    crio = components(cluster, programs(cluster.state))["crio"]
    assert not crio.healthy()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(cluster.cri_socket))
        listener.listen()
        listener.settimeout(0)
        assert not crio.healthy()
    cluster.cri_socket.unlink()
    server = grpc.server(ThreadPoolExecutor())
    server.add_insecure_port(f"unix://{cluster.cri_socket}")
    server.start()
    assert crio.healthy()
    server.stop(None).wait()


def test_crio_reads_the_specs_that_the_driver_writes(cluster: Cluster) -> None:
    assert config(cluster)["runtime"]["cdi_spec_dirs"] == [str(one) for one in cluster.cdi_dirs]


def test_crio_leaves_nothing_outside_the_state_folder(cluster: Cluster) -> None:
    settings = config(cluster)
    runtime = settings["runtime"]
    own = (
        *(settings[name] for name in ("root", "runroot", "log_dir", "version_file")),
        *(settings[name] for name in ("version_file_persist", "clean_shutdown_file")),
        *(runtime[name] for name in ("container_exits_dir", "namespaces_dir")),
        *(runtime["container_attach_socket_dir"], runtime["runtimes"]["runc"]["runtime_root"]),
    )
    assert {Path(path).is_relative_to(cluster.state) for path in own} == {True}
    assert settings["nri"] == {"enable_nri": False}


def test_what_stands_beside_a_container_is_found_when_the_cluster_goes(cluster: Cluster) -> None:
    runc = config(cluster)["runtime"]["runtimes"]["runc"]
    assert runc["monitor_cgroup"] == "pod"
    assert f"DRA_CLUSTER_STATE_OF_THIS_PROCESS={cluster.state}" in runc["monitor_env"]


@pytest.mark.parametrize("oci", OCI_RUNTIMES)
@pytest.mark.parametrize("controller", ["hugetlb", "cgroup.controllers"])
def test_what_makes_containers_is_called_as_it_is_where_it_can_do_what_the_kubelet_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, controller: str, oci: str
) -> None:
    (tmp_path / controller).mkdir()
    monkeypatch.setattr(crio, "CGROUPS", tmp_path)
    privileged(tmp_path / "status", monkeypatch)
    text = crio.crio_config(cluster_in(tmp_path, oci), programs(tmp_path, oci))
    runtime = tomllib.loads(text)["crio"]["runtime"]
    assert runtime["default_runtime"] == oci
    assert runtime["runtimes"][oci]["runtime_path"] == str(tmp_path / "bin" / oci)


@pytest.mark.parametrize(("privileges", "score"), [("1ffffffffff", -997), ("1fffeffffff", 0)])
def test_what_runc_cannot_set_on_this_machine_is_taken_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, privileges: str, score: int
) -> None:
    monkeypatch.setattr(crio, "CGROUPS", tmp_path / "none")
    privileged(tmp_path / "status", monkeypatch, capabilities=privileges)
    monkeypatch.setattr(Cluster, "shim_sockets", tmp_path / "sockets")
    program(tmp_path / "bin" / "runc", 'echo "$@"; exit 3')
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    limits = [{"pageSize": "2MB", "limit": 0}, {"pageSize": "1GB", "limit": 0}]
    resources = {"hugepageLimits": limits, "devices": [{"allow": True}]}
    capabilities = ["CAP_CHOWN", "CAP_SYS_RESOURCE", "CAP_WAKE_ALARM"]
    process = {"oomScoreAdj": -997, "capabilities": capabilities}
    spec = {"process": process, "linux": {"resources": resources}}
    (bundle / "config.json").write_text(json.dumps(spec, indent="\t"))
    configs.write_configs(cluster_in(tmp_path), programs(tmp_path))
    runc = config(cluster_in(tmp_path))["runtime"]["runtimes"]["runc"]["runtime_path"]

    words = ["--root", "/r", "create", "--bundle", str(bundle), "--pid-file", "p", "1a"]
    done = subprocess.run([runc, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (3, words)
    assert json.loads((bundle / "config.json").read_text()) == {
        "process": {"oomScoreAdj": score, "capabilities": capabilities[:: 2 if score == 0 else 1]},
        "linux": {"resources": {"hugepageLimits": [], "devices": [{"allow": True}]}},
    }


def test_images_come_under_the_names_that_the_archive_gives_them(cluster: Cluster) -> None:
    said = cluster.state / "said"
    program(
        cluster.state / "bin" / "copyimg",
        f'echo "$@" >>{said}; for last; do :; done; last=${{last#oci:}}\n'
        'test -f "${last%:@*}/oci-layout"',
    )
    archive = cluster.state / "images.tar"
    entry = Entry(path="a", mode=0o644, content=b"a")
    names = ("registry.local/a:1", "docker.io/library/b:2")
    images = [Image(name=name, entries=(entry,), env={}, command=("/a",)) for name in names]
    write_archive(images, archive, "amd64")
    before = set(cluster.state.iterdir())
    crio.import_images(cluster, programs(cluster.state), archive)
    calls = [line.split() for line in said.read_text().splitlines()]
    assert [call[call.index("--image-name") + 1] for call in calls] == list(names)
    assert [call[-1].rpartition("@")[2] for call in calls] == ["0", "1"]
    assert set(cluster.state.iterdir()) == {*before, said}


def test_an_image_gets_one_more_name_without_being_read_again(cluster: Cluster) -> None:
    said = cluster.state / "said"
    program(cluster.state / "bin" / "copyimg", f'echo "$@" >{said}')
    crio.tag(cluster, programs(cluster.state), "registry.local/a:1", "docker.io/library/b:2")
    assert said.read_text().split()[-4:] == [
        *("--image-name", "registry.local/a:1"),
        *("--add-name", "docker.io/library/b:2"),
    ]


def test_an_image_that_the_storage_refuses_is_named(cluster: Cluster) -> None:
    program(cluster.state / "bin" / "copyimg", "echo no space >&2; exit 1")
    archive = cluster.state / "images.tar"
    image = Image(name="registry.local/a:1", entries=(), env={}, command=("/a",))
    write_archive([image], archive, "amd64")
    with pytest.raises(ClusterError, match=r"registry\.local/a:1: no space"):
        crio.import_images(cluster, programs(cluster.state), archive)


def test_what_is_no_archive_of_images_is_refused(cluster: Cluster) -> None:
    other = cluster.state / "other.tar"
    other.write_text("text")
    with pytest.raises(ClusterError, match=r"other\.tar is no archive of images"):
        crio.import_images(cluster, programs(cluster.state), other)


def test_variables_of_containerd_are_not_told_of_crio(cluster: Cluster) -> None:
    found = environment(cluster, programs(cluster.state))
    assert found["CRI_SOCKET"] == str(cluster.state / "crio.sock")
    assert found["CLUSTER_CRIO_VERSION"] == resolve("1.37").crio
    assert not {name for name in found if name == "CTR" or "CONTAINERD" in name}


def privileged(
    status: Path, monkeypatch: pytest.MonkeyPatch, capabilities: str = "1ffffffffff"
) -> None:
    status.write_text(f"Name: x\nCapEff:\t{capabilities}\n")
    monkeypatch.setattr(crio, "STATUS", status)


def program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
