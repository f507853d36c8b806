"""A cluster of CRI-O instead of containerd: its programs, its configuration, and its images."""

import json
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cluster.binaries import OCI_RUNTIMES, Binaries, groups_of
from cluster.state import Cluster, Options, Ports

from cluster import configs, crio

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
    allowed = capabilities[:: 2 if score == 0 else 1]
    process = {"oomScoreAdj": -997, "capabilities": capabilities}
    spec = {"process": process, "linux": {"resources": resources}}
    (bundle / "config.json").write_text(json.dumps(spec, indent="\t"))
    configs.write_configs(cluster_in(tmp_path), programs(tmp_path))
    runc = config(cluster_in(tmp_path))["runtime"]["runtimes"]["runc"]["runtime_path"]

    words = ["--root", "/r", "create", "--bundle", str(bundle), "--pid-file", "p", "1a"]
    done = subprocess.run([runc, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (3, words)
    assert json.loads((bundle / "config.json").read_text()) == {
        "process": {"oomScoreAdj": score, "capabilities": allowed},
        "linux": {"resources": {"hugepageLimits": [], "devices": [{"allow": True}]}},
    }

    of_exec = tmp_path / "exec"
    of_exec.write_text(json.dumps({"capabilities": capabilities}))
    subprocess.run([runc, "exec", "--process", of_exec, "1a"], capture_output=True, check=False)
    assert json.loads(of_exec.read_text()) == {"capabilities": allowed}


def privileged(
    status: Path, monkeypatch: pytest.MonkeyPatch, capabilities: str = "1ffffffffff"
) -> None:
    status.write_text(f"Name: x\nCapEff:\t{capabilities}\n")
    monkeypatch.setattr(crio, "STATUS", status)


def program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
