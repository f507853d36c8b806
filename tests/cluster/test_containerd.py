"""Which containerd a cluster gets, and how each is configured."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cluster.binaries import OCI_RUNTIMES, Binaries, groups_of
from cluster.build import containerd_job
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


@pytest.mark.parametrize("wanted", sorted(CONTAINERD_MODULES))
def test_what_is_asked_for_stands_for_its_pinned_release(wanted: str) -> None:
    version = resolve("1.37", wanted).containerd
    assert version.startswith(f"{wanted}.")
    assert resolve("1.37", f"v{version}").containerd == version
    assert resolve("1.37", version.rpartition(".")[0]).containerd == version


@pytest.mark.parametrize(
    ("wanted", "module"),
    [("2", "github.com/containerd/containerd/v2"), ("1.7", "github.com/containerd/containerd")],
)
def test_each_is_compiled_from_its_own_module_and_says_its_version(
    wanted: str, module: str
) -> None:
    versions = resolve("1.37", wanted)
    job = containerd_job(versions)
    assert f"{module}/cmd/containerd" in job.packages
    assert f"-X {module}/version.Version=v{versions.containerd}" in job.ldflags
    assert f"{module} v{versions.containerd}" in job.go_mod.read_text()


def test_containerd_1_7_has_cdi_switched_on_where_it_looks_for_that(tmp_path: Path) -> None:
    found = config(tmp_path, "1.7")
    assert found["version"] == 2
    cri = found["plugins"][OLD]
    assert cri["enable_cdi"] is True
    assert cri["cdi_spec_dirs"] == [str(tmp_path / "etc-cdi"), str(tmp_path / "cdi")]
    assert cri["cni"]["bin_dir"] == str(tmp_path / "bin")
    assert (
        cri["sandbox_image"]
        == config(tmp_path, "2")["plugins"]["io.containerd.cri.v1.images"]["pinned_images"][
            "sandbox"
        ]
    )
    assert NEW not in found["plugins"]


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
