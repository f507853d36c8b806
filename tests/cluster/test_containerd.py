"""Which containerd a cluster gets, and how each is configured."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cluster.binaries import OCI_RUNTIMES, Binaries, groups_of
from cluster.configs import containerd_config
from cluster.state import Cluster, Options, Ports
from cluster.versions import CONTAINERD_MODULES, resolve

from cluster import teardown

PORTS = Ports(**dict.fromkeys(Ports.__dataclass_fields__, 1))
OLD, NEW = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"


def config(folder: Path, wanted: str, oci: str = "runc") -> Mapping[str, Any]:
    version = resolve("1.37", wanted).containerd
    options = Options(kubernetes="1.37.1", containerd=version, oci=oci)
    cluster = Cluster(name="one", state=folder, subnet=3, ports=PORTS, options=options)
    groups = groups_of("containerd", oci)
    text = containerd_config(cluster, Binaries(folders=dict.fromkeys(groups, folder / "bin")))
    return tomllib.loads(text)


@pytest.mark.parametrize("oci", OCI_RUNTIMES)
@pytest.mark.parametrize("wanted", sorted(CONTAINERD_MODULES))
def test_containers_are_made_alike_by_both(tmp_path: Path, wanted: str, oci: str) -> None:
    cri = config(tmp_path, wanted, oci)["plugins"][OLD if wanted == "1.7" else NEW]
    options = cri["containerd"]["runtimes"]["runc"]["options"]
    assert options["BinaryName"] == str(tmp_path / "bin" / oci)
    assert options["Root"] == str(tmp_path / "runc")
    assert cri["restrict_oom_score_adj"] is True
    assert cri["netns_mounts_under_state_dir"] is True


def test_what_1_7_keeps_of_its_pods_loopbacks_goes_with_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "results"
    results.mkdir()
    monkeypatch.setattr(teardown, "CNI_RESULTS", results)
    options = Options(kubernetes="1.37.1", containerd="1.7.35")
    cluster = Cluster(name="one", state=tmp_path, subnet=3, ports=PORTS, options=options)
    (tmp_path / "containerd/io.containerd.grpc.v1.cri/sandboxes/1a").mkdir(parents=True)
    other = results / "cni-loopback-2b-lo"
    for path in (
        results / "cni-loopback-1a-lo",
        results / f"{cluster.network_name}-1a-eth0",
        other,
    ):
        path.touch()
    teardown._remove_network_results(cluster)
    assert list(results.iterdir()) == [other]
