"""Pods with GPUs on a node that runs CRI-O, whatever runtime all other tests run on.

E2E_RUNTIME=crio has the others run on it, too.
"""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import cgroups, mounts
from testbed.claims import mig_profile
from testbed.cluster import fetched
from testbed.commands import run
from testbed.node import GpuNode
from testbed.pods import container, migs_seen

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from dra_driver.admin.doctor.facts.runtime_config import read_runtime_configs
from e2e.conftest import CLUSTER, node_of
from e2e.kubernetes import cluster_of, makes_mig_by_default, needs
from e2e.scene import NAMESPACE, Scene
from e2e.sharing import PERCENTAGE, PIPE, Shared, mps_limits

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.stream("two"),
    needs(Feature.COUNTERS),
    makes_mig_by_default(),
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuNode]:
    cluster, folder = cluster_of(f"{CLUSTER}-crio", runtime="crio"), tmp_path_factory.mktemp("node")
    with node_of("h100x8-mig", folder, cluster, runtime="crio") as node:
        yield node
        env = node.cluster.env
    assert not Path(env["CLUSTER_STATE"]).exists()
    assert mounts.mounted(Path(env["CLUSTER_STATE"])) == []
    assert cgroups.folders(env["CLUSTER_CGROUP"]) == []


MAIN = """
[crio.runtime]
default_runtime = "main"
cdi_spec_dirs = ["/main"]
[crio.runtime.runtimes.main]
runtime_path = "/usr/bin/nvidia-container-runtime"
runtime_root = "/run/main"
"""
DROP_INS = {
    "none": {},
    "folders": {"99": "[crio.runtime]\ncdi_spec_dirs = ['/other']\n"},
    "no folder": {"99": "[crio.runtime]\ncdi_spec_dirs = []\n"},
    "the last one": {
        "9.conf": "[crio.runtime]\ncdi_spec_dirs = ['/nine']\n",
        "10.conf": "[crio.runtime]\ncdi_spec_dirs = ['/ten']\n",
    },
    "a hidden one": {".99.conf": "[crio.runtime]\ncdi_spec_dirs = ['/hidden']\n"},
    "another runtime": {
        "99": "[crio.runtime]\ndefault_runtime = 'new'\n"
        "[crio.runtime.runtimes.new]\nruntime_path = '/usr/bin/runc'\n"
    },
    "a runtime's table again": {"99": "[crio.runtime.runtimes.main]\nruntime_root = '/run/new'\n"},
    "its own runtime": {"99": "[crio.runtime]\ndefault_runtime = 'crun'\n"},
}


@pytest.mark.parametrize("name", DROP_INS)
def test_doctor_reads_files_as_crio_does(tmp_path: Path, name: str) -> None:
    main = tmp_path / "etc/crio/crio.conf"
    folder = main.with_name("crio.conf.d")
    folder.mkdir(parents=True)
    main.write_text(MAIN)
    for file, text in DROP_INS[name].items():
        (folder / file).write_text(text)
    crio = fetched("crio") / "crio"
    said = run((crio, "--config", main, "--config-dir", folder, "config"))
    taken = tomllib.loads(said)["crio"]["runtime"]
    (read,) = read_runtime_configs(tmp_path)
    assert list(read.spec_dirs or ()) == taken["cdi_spec_dirs"]
    # What is as by default, it leaves out.
    default = taken.get("default_runtime", "crun")
    assert read.default_runtime == default
    assert (read.default_program or "") == taken["runtimes"][default]["runtime_path"]


def test_pods_have_a_whole_gpu_a_mig_device_and_mps(scene: Scene) -> None:
    info = scene.api.get("Node", scene.node.cluster.node)["status"]["nodeInfo"]
    assert info["containerRuntimeVersion"].startswith("cri-o://1.")
    whole = scene.pod("whole", templates=[scene.template("whole")])
    of_profile = scene.template(
        "mig", deviceClassName="mig.nvidia.com", selectors=mig_profile("1g.10gb")
    )
    part = scene.pod("mig", templates=[of_profile])
    shared = Shared.make(scene, gpu=mps_limits())
    client = shared.pod()
    scene.running(whole, part, client, timeout=180)
    (gpu,) = scene.gpus(whole)
    assert list(migs_seen(scene.node.cluster, part, "ctr", NAMESPACE).values()) == ["1g.10gb"]
    assert shared.gpu(client, "ctr") != gpu
    assert PIPE in shared.env(client)
    assert shared.ask(PERCENTAGE) == "50.0"


def test_only_the_runtime_reads_an_annotation_with_the_device_of_another_pods_claim(
    scene: Scene,
) -> None:
    """CRI-O injects nothing for it. NVIDIA's container runtime would, were it the node's."""
    holder = scene.pod("holder", claims=[scene.claim()])
    scene.running(holder)
    cluster = scene.node.cluster
    (spec,) = cluster.cdi_root.glob("*.json")
    told = json.loads(spec.read_text())
    device = f"{told['kind']}={told['devices'][0]['name']}"
    metadata = {"name": scene.name("other"), "annotations": {"cdi.k8s.io/mine": device}}
    spec_of_pod = {"terminationGracePeriodSeconds": 1, "containers": [container("ctr", {})]}
    other = scene.make("Pod", "other", {"metadata": metadata, "spec": spec_of_pod})
    (pod,) = scene.running(other)
    assert not [name for name in scene.run_in(other, "ls", "/dev").split() if "nvidia" in name]
    ident = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("cri-o://")
    assert cluster.container_spec(ident)["annotations"]["cdi.k8s.io/mine"] == device


def test_gpus_stay_with_pods_whose_runtime_is_killed_and_whose_driver_is_gone(scene: Scene) -> None:
    pod = scene.pod(templates=[scene.template()])
    scene.running(pod)
    before = scene.gpus(pod), scene.container_ids(pod)
    cluster, driver = scene.node.cluster, scene.node.driver
    driver.stop()
    cluster.stop("crio", signal="KILL")
    cluster.start("crio")
    scene.running(scene.pod("later"))  # until then the kubelet does not know that it is back
    assert (scene.gpus(pod), scene.container_ids(pod)) == before
    driver.start()
    scene.delete(pod)
    # On a slow machine the kubelet has taken the slices of a driver that is gone for 30 s.
    scene.rewritten()
