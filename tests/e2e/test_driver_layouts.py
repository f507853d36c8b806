"""What a program in a container finds on each layout of the table: asked of its loader.

The specs are the driver's own, and runc makes the containers. Hookless specs get what NVIDIA's CUDA
images bring, an LD_LIBRARY_PATH; with hooks NVIDIA's hook program makes the loader's cache.
"""

import hashlib
import platform
import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest
from cluster.image import CUDA_ENV
from testbed.containers import BARE_ENV, Container, Containers, Found, look_up

import driver_layouts
import make
from dra_driver.cdi.edits_cache import NodeEdits
from dra_driver.cdi.model import Spec, claim_device_id, claim_device_name
from dra_driver.cdi.store import SpecStore
from driver_layouts import EGL_PLATFORMS, LAYOUTS, RUNNING, Layout

pytestmark = [pytest.mark.e2e, pytest.mark.stream("two")]

GPU = make.gpu(0)
NODES = {"/dev/nvidia0": "c3:0", "/dev/nvidia-uvm": "1fe:0", "/dev/nvidiactl": "c3:ff"}
HOOKS = {"update-ldcache", "disable-device-node-modification", "update-application-profile"}
# A loader refuses libraries of another architecture, and searches other folders.
HERE = {name: layout for name, layout in LAYOUTS.items() if layout.machine == platform.machine()}

every_layout = pytest.mark.parametrize("layout", HERE.values(), ids=HERE.keys())


class Node:
    """A node of some layout, and a container on it with one GPU of each claim."""

    def __init__(self, folder: Path, layout: Layout, containers: Containers) -> None:
        self.root = driver_layouts.node(folder / "node")
        layout.build(self.root)
        self._specs = folder / "cdi"
        self._containers = containers
        self._claims: list[str] = []
        self.shown: dict[str, str] = {}  # by path in the container: digest of the content

    def look(self, hook: str) -> NodeEdits:
        return driver_layouts.look(self.root, hook, on_host=str(self.root))

    def prepare(self, uid: str, *, hooks: bool) -> None:
        """Write a claim's spec, as it is with or without the hook program on the node."""
        found = self.look(self._containers.hook if hooks else "")
        devices = {claim_device_name(uid, "gpu-0"): found.device(make.whole(GPU))}
        SpecStore(self._specs).write(uid, Spec(devices=devices, edits=found.common))
        self._claims.append(claim_device_id(uid, "gpu-0"))
        self.shown |= {
            mount.container_path: hashlib.sha256(Path(mount.host_path).read_bytes()).hexdigest()
            for mount in found.common.mounts
        }
        commands = {hook.args[1] for hook in found.common.hooks}
        assert commands >= HOOKS if hooks else not commands

    def libraries(self, layout: Layout, env: Mapping[str, str]) -> dict[str, Found]:
        """Run a container with all claims: what its loader finds, after a look at all else."""
        names = [*layout.compute, *layout.graphics]
        if env is CUDA_ENV:
            names.append("libcuda.so")  # which no loader's cache has, on the host neither
        if layout.platforms is not None:
            names += [f"{stem}.so.1" for stem in EGL_PLATFORMS]
        script = (
            f"set -e; stat -c '%n  %t:%T' /dev/nvidia*; echo; sha256sum {shlex.join(self.shown)};"
            f" echo; [ $NVIDIA_VISIBLE_DEVICES = void ]; look-up {shlex.join(names)}"
        )
        container = Container(command=["bash", "-c", script], env=env, devices=self._claims)
        output = self._containers.run(container, self._specs)
        nodes, mounted, found = output.split("\n\n")
        assert dict(line.split("  ") for line in nodes.splitlines()) == NODES
        seen = (line.split("  ", 1) for line in mounted.splitlines())
        assert {path: digest for digest, path in seen} == self.shown
        return look_up(found)


def assert_running_driver(found: Mapping[str, Found]) -> None:
    assert {name: one.version for name, one in found.items()} == dict.fromkeys(found, RUNNING)


@every_layout
def test_a_cuda_image_finds_the_running_driver_without_hooks(
    tmp_path: Path, containers: Containers, layout: Layout
) -> None:
    node = Node(tmp_path, layout, containers)
    node.prepare("one", hooks=False)
    assert_running_driver(node.libraries(layout, CUDA_ENV))


@every_layout
def test_any_image_finds_the_running_driver_with_hooks(
    tmp_path: Path, containers: Containers, layout: Layout
) -> None:
    node = Node(tmp_path, layout, containers)
    node.prepare("one", hooks=True)
    assert_running_driver(node.libraries(layout, BARE_ENV))


@every_layout
def test_two_claims_prepared_either_way_start_in_one_container(
    tmp_path: Path, containers: Containers, layout: Layout
) -> None:
    node = Node(tmp_path, layout, containers)
    for module in ("drivers/nvidia_drv.so", f"extensions/libglxserver_nvidia.so.{RUNNING}"):
        driver_layouts.library(node.root, f"/usr/lib/xorg/modules/{module}", None)
    node.prepare("one", hooks=True)
    node.prepare("two", hooks=False)
    assert_running_driver(node.libraries(layout, BARE_ENV))
