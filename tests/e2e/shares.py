"""What tests of shares have in common: a node's share configs, and what containers get by them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import pytest
import yaml
from testbed.cluster import Cluster
from testbed.commands import run, wait_until
from testbed.machine import DRIVER
from testbed.node import GpuNode

from dra_driver.devices.control_groups import find_hierarchy, kernel_counts_gpus
from e2e.conftest import node_of, set_as_marked
from e2e.needs import cannot_run
from e2e.scene import NAMESPACE, Scene

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
THREADS, LIMIT = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"


def config(
    kind: str | None = None,
    replicas: int = 4,
    *,
    name: str = GPU,
    devices: object = "all",
    resource: Mapping[str, object] = MappingProxyType({}),
    **settings: object,
) -> str:
    """A config file as device plugin users write it; without a kind nothing is shared."""
    if kind is None:
        return "version: v1\n"
    resources = [{"name": name, "replicas": replicas, "devices": devices, **resource}]
    return yaml.safe_dump({"version": "v1", "sharing": {kind: settings | {"resources": resources}}})


class Shares:
    """A node's share configs, and what comes of them."""

    def __init__(self, node: GpuNode, folder: Path) -> None:
        self.node = node
        self.folder = folder

    def write(self, text: str, name: str = "default") -> None:
        """Put a config in its place, as a ConfigMap's volume does: whole or not at all."""
        temporary = self.folder / f"..{name}"
        temporary.write_text(text)
        temporary.replace(self.folder / name)

    def set(self, text: str, count: int) -> None:
        """Put a config in its place, and wait until so many shares are published."""
        self.write(text)
        self.wait(count)

    def wait(self, count: int) -> None:
        wait_until(
            lambda: sum("share" in name for name in self.node.devices()) == count,
            f"{count} shares to be published",
            timeout=120,
        )

    def memory_mib(self) -> int:
        """The memory that the slices say a share has, in MiB."""
        devices = (one for each in self.node.slices() for one in each.get("devices", []))
        (found,) = {
            device["capacity"]["memory"]["value"] for device in devices if "share" in device["name"]
        }
        return int(found.removesuffix("Mi"))

    def status(self) -> str:
        """What `dra-driver status` says on the node."""
        place = self.node.place
        paths = ("--kubelet-plugins-directory-path", place.plugins)
        return run((DRIVER, "status", *paths, "--proc-root", place.driver_root / "proc"))


def limits_by_control_group() -> tuple[str, ...]:
    """Options of a machine that limits memory by control groups, as a driver of R615 does."""
    hierarchy = find_hierarchy(None)
    if hierarchy is None or kernel_counts_gpus(hierarchy):
        cannot_run("there is no cgroup v2 on this machine, or its kernel counts real GPUs' memory")
    # NVIDIA's own files are those of an older driver, which has no memory limits.
    options = ("--userspace", "stand-in", "--driver-version", "615.71.09")
    return (*options, "--memory-limits", "misc", "--cgroup-root", str(hierarchy))


@contextmanager
def shares_of(
    profile: str,
    folder: Path,
    cluster: Cluster,
    *,
    machine_options: Sequence[str] = (),
    **settings: str,
) -> Iterator[Shares]:
    """A node on a cluster, whose driver reads share configs; nothing is shared yet."""
    configs = folder / "configs"
    configs.mkdir()
    (configs / "default").write_text(config())
    settings["SHARE_CONFIG"] = str(configs)
    with node_of(
        profile, folder / "node", cluster, machine_options=machine_options, **settings
    ) as node:
        yield Shares(node, configs)


def unshared_scene(shares: Shares, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """Yield a scene that begins and ends with nothing shared."""
    set_as_marked(shares.node, request)
    shares.set(config(), 0)
    scene = Scene(shares.node)
    before = request.session.testsfailed
    yield scene
    if request.session.testsfailed > before:
        print(scene.explain(), shares.status())  # noqa: T201 (pytest shows it with the failure)
    node = shares.node
    for process in (node.driver, *([node.supervisor] if node.can_run_mps else [])):
        if not process.running():
            process.start()
    scene.clear()
    shares.set(config(), 0)
    scene.end(rewritten=True)


def environment(scene: Scene, pod: str) -> dict[str, str]:
    """The variables that a pod's container was started with."""
    words = scene.run_in(pod, "cat", "/proc/1/environ").split("\0")
    return {name: value for name, _, value in (word.partition("=") for word in words) if name}


def refused(scene: Scene, pods: Sequence[str]) -> list[str]:
    """What the driver has answered pods whose claims it refused to prepare."""
    selector = "reason=FailedPrepareDynamicResources"
    events = scene.api.all("Event", NAMESPACE, fieldSelector=selector)
    return [one["message"] for one in events if one["involvedObject"]["name"] in pods]


def restarted(scene: Scene, pod: str, times: int = 1) -> bool:
    """Whether the container of a pod runs again after so many restarts."""
    (status,) = scene.api.get("Pod", pod, NAMESPACE)["status"]["containerStatuses"]
    return bool(status["restartCount"] >= times and status["ready"])
