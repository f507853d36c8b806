"""What doctor reads out of containerd's configuration, against what containerd makes of it.

E2E_CONTAINERD says which containerd: 1.7 has CDI off unless it is told, and takes tables otherwise.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from testbed.cluster import Cluster
from testbed.commands import run, wait_until
from testbed.node import GpuNode

from dra_driver.admin.doctor.checks.runtime_checks import containerd_version
from dra_driver.admin.doctor.facts.runtime_config import read_runtime_configs
from e2e.kubernetes import RUNTIME

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(RUNTIME == "crio", reason="CRI-O reads other files, and has no such switch"),
]

Version = tuple[int, ...]

MERGING, ALWAYS_ON = (2, 0), (2, 4)
OF_2, OF_3 = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
MAIN = f"""
version = 2
imports = ["conf.d/*.toml"]
[plugins.'{OF_2}']
  enable_cdi = true
  cdi_spec_dirs = ["/main"]
  [plugins.'{OF_2}'.containerd]
    default_runtime_name = "main"
    [plugins.'{OF_2}'.containerd.runtimes.main]
      runtime_type = "io.containerd.runc.v2"
"""
DROP_IN = f"""
version = 2
[plugins.'{OF_2}'.containerd]
  default_runtime_name = "drop-in"
  [plugins.'{OF_2}'.containerd.runtimes.drop-in]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'{OF_2}'.containerd.runtimes.drop-in.options]
      BinaryName = "/usr/bin/nvidia-container-runtime"
"""
OTHER = "version = 2\n[plugins.'io.containerd.gc.v1.scheduler']\npause_threshold = 0.03\n"
FILES = {
    "nothing": ("", ""),
    "an empty file": ("version = 2\n", ""),
    "one file": (MAIN, ""),
    "switched off": (MAIN.replace("true", "false"), ""),
    "a drop-in about CRI": (MAIN, DROP_IN),
    "a drop-in about something else": (MAIN, OTHER),
    "a drop-in with an empty table": (MAIN, f"version = 2\n[plugins.'{OF_2}']\n"),
    "a drop-in without a version": (MAIN, DROP_IN.replace("version = 2", "")),
    "the short name": (f"version = 1\n{MAIN}".replace("version = 2", "").replace(OF_2, "cri"), ""),
    "the long name without a version": (MAIN.replace("version = 2", ""), ""),
    "the newest name too early": (MAIN.replace(OF_2, OF_3), ""),
}

LOST = {
    *("a drop-in about CRI", "a drop-in with an empty table", "a drop-in without a version"),
}
"""Those in which 1.7 knows nothing of what the first file says."""


@pytest.fixture(scope="module")
def version(node: GpuNode) -> Version:
    found = containerd_version({runtime(node.cluster): [node.cluster.node]}, node.cluster.node)
    assert found is not None
    return found


def runtime(cluster: Cluster) -> str:
    """The Node's word, once the kubelet has heard from a runtime that was restarted."""

    def told() -> str:
        facts = cluster.api.get("Node", cluster.node)["status"]["nodeInfo"]
        return str(facts["containerRuntimeVersion"])

    wait_until(lambda: "Unknown" not in told(), "the runtime's version", timeout=120)
    return told()


def containerd(cluster: Cluster) -> Path:
    return Path(cluster.env["CTR"]).with_name("containerd")


def cri_of(containerd: Path, config: Path, version: Version) -> Mapping[str, Any]:
    """The table of the CRI plugin that containerd itself makes of a configuration."""
    said = tomllib.loads(run((containerd, "--config", config, "config", "dump")))
    table: Mapping[str, Any] = said["plugins"][OF_2 if version < MERGING else OF_3]
    return table


@pytest.mark.parametrize("name", FILES)
def test_doctor_reads_files_as_containerd_does(
    node: GpuNode, version: Version, tmp_path: Path, name: str
) -> None:
    config = tmp_path / "etc/containerd/config.toml"
    drop_in = config.parent / "conf.d/99.toml"
    drop_in.parent.mkdir(parents=True)
    main, more = FILES[name]
    config.write_text(main)
    if more:
        drop_in.write_text(more)
    taken = cri_of(containerd(node.cluster), config, version)
    (read,) = read_runtime_configs(tmp_path, version)

    assert (read.spec_dirs or ("/etc/cdi", "/var/run/cdi")) == tuple(taken["cdi_spec_dirs"])
    default = taken["containerd"]["default_runtime_name"]
    assert (read.default_runtime or "runc") == default
    options = taken["containerd"]["runtimes"][default].get("options", {})
    assert (read.default_program or "") == options.get("BinaryName", "")
    if version < ALWAYS_ON:
        assert bool(read.cdi or version >= MERGING) == taken["enable_cdi"]
    else:
        assert "enable_cdi" not in taken
    assert bool(read.lost) == (version < MERGING and name in LOST)
