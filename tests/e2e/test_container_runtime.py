"""What NVIDIA's container runtime gives to containers past Kubernetes, and what it leaves alone.

The runtime is NVIDIA's own, above runc, with a configuration of its own and a simulated driver root
with four GPUs, of which two have been prepared for claims. Its modes are those of nodes: `auto`,
which is the default, `jit-cdi` and `cdi`. Of a fourth, `legacy`, the last step is played:
nvidia-container-cli, which neither Debian nor the Go module proxy has, only says what it was called
with.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cluster.image import CUDA_ENV
from testbed.containers import BARE_ENV, Container, Containers, do

from dra_driver.cdi.edits_cache import EditsCache
from dra_driver.cdi.model import Spec
from dra_driver.cdi.roots import find_roots
from dra_driver.cdi.spec import claim_device_id, claim_device_name
from dra_driver.cdi.store import SpecStore
from dra_driver.devices.device import NodeDevice, whole
from dra_driver.devices.session import DriverSession
from dra_driver.errors import SetupError
from dra_driver.simulator.device_nodes import NodeKind
from dra_driver.simulator.driver_root import Options
from dra_driver.simulator.machine import Machine
from e2e.needs import cannot_run

pytestmark = pytest.mark.e2e

# A node that a container may open has no driver behind it here; others are refused before that.
LOOK = """
for node in /dev/nvidia[0-9]*; do
    (: <$node) 2>&1 | grep -q 'No such device or address' && echo ${node#/dev/nvidia}
done
grep -q libcuda /proc/self/mountinfo && echo libcuda
echo seen
"""
MY_UID, THEIR_UID = (f"{digit * 8}-0000-4000-8000-000000000000" for digit in "12")
MY_GPU, THEIR_GPU = "1", "2"
MY_DEVICE = claim_device_id(MY_UID, f"gpu-{MY_GPU}")
THEIR_DEVICE = claim_device_id(THEIR_UID, f"gpu-{THEIR_GPU}")
# NVIDIA's own name for all GPUs, known to the runtime without any CDI spec.
EVERY_DEVICE = "runtime.nvidia.com/gpu=all"

CUDA_IMAGE = Container(command=["bash", "-c", LOOK], env=CUDA_ENV)
MY_CLAIMS = replace(CUDA_IMAGE, devices=[MY_DEVICE])

REFUSE_VARIABLE = "accept-nvidia-visible-devices-envvar-when-unprivileged = false"
ACCEPT_MOUNTS = "accept-nvidia-visible-devices-as-volume-mounts = true"
NO_ANNOTATIONS = "annotation-prefixes = []"

every_mode = pytest.mark.parametrize("mode", ["auto", "jit-cdi", "cdi"])
every_mode_with_annotations = pytest.mark.parametrize("mode", ["auto", "cdi"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a container has: GPUs that it can open, by minor number, and the driver's libraries."""

    gpus: str = ""
    libraries: bool = False


NOTHING = Seen()
ALL = Seen(gpus="0123", libraries=True)
MINE = Seen(gpus=MY_GPU, libraries=True)
THEIRS = Seen(gpus=THEIR_GPU, libraries=True)
BOTH = Seen(gpus=MY_GPU + THEIR_GPU, libraries=True)


class Node:
    """A node with four GPUs, the CDI specs of two claims, and NVIDIA's own CDI spec."""

    def __init__(self, folder: Path, containers: Containers) -> None:
        self._folder = folder
        self._containers = containers
        self._specs = folder / "cdi"
        self._root = folder / "driver"
        Machine.create(self._root, "t4-x4", Options(userspace="stand-in", nodes=NodeKind.DEVICE))
        self._prepare({MY_UID: MY_GPU, THEIR_UID: THEIR_GPU})
        self._config = folder / "config.toml"
        # Hooks get no environment, so one is told where the configuration is by an argument.
        hook = containers.program("nvidia-container-runtime-hook")
        self._hook = script(folder / "hook", f'exec {hook} -config={self._config} "$@"')
        self._called = folder / "called"
        self._cli = script(folder / "nvidia-container-cli", f'echo "$@" >{self._called}')
        generate = (containers.program("nvidia-ctk"), "cdi", "generate")
        hook_path = f"--nvidia-cdi-hook-path={containers.hook}"
        output = f"--output={self._specs}/nvidia.yaml"
        do(*generate, f"--driver-root={self._root}", hook_path, output)

    def _prepare(self, claims: dict[str, str]) -> None:
        root = self._root
        roots = find_roots(
            driver_root=root, dev_root=root, proc_root=root / "proc", sys_root=root / "sys"
        )
        session = DriverSession(
            driver_root=root, dev=roots.dev, proc_root=roots.proc, sys_root=roots.sys
        )
        gpus = {str(gpu.minor): gpu for gpu in session.look().gpus}
        session.close()
        found = EditsCache(roots, hook_path="", kernel_release="6.8.0", clock=lambda: 0.0).look()
        for uid, minor in claims.items():
            edits = found.device(NodeDevice(gpu=gpus[minor], device=whole(gpus[minor])))
            devices = {claim_device_name(uid, f"gpu-{minor}"): edits}
            SpecStore(self._specs).write(uid, Spec(devices=devices, edits=found.common))

    def seen(self, mode: str, container: Container, *settings: str, cdi: str = "") -> Seen:
        """Run a container under NVIDIA's runtime, with settings beside its defaults."""
        lines = (
            *settings,
            f'nvidia-container-cli.root = "{self._root}"',
            f'nvidia-ctk.path = "{self._containers.hook}"',
            f'nvidia-container-cli.path = "{self._cli}"',
            f'nvidia-container-runtime-hook.path = "{self._hook}"',
            "[nvidia-container-runtime]",
            f'mode = "{mode}"',
            f'runtimes = ["{self._containers.program("runc")}"]',
            "[nvidia-container-runtime.modes.cdi]",
            f'spec-dirs = ["{self._specs}"]',
            cdi,
        )
        self._config.write_text("\n".join(lines))
        runtime = {**BARE_ENV, "NVIDIA_CTK_CONFIG_FILE_PATH": str(self._config)}
        *found, end = self._containers.run_under(runtime, container, self._specs).split()
        assert end == "seen"
        gpus = "".join(word for word in found if word != "libcuda")
        return Seen(gpus=gpus, libraries="libcuda" in found)

    def asked_of_cli(self) -> list[str]:
        """The devices for which nvidia-container-cli was called since the last question."""
        words = self._called.read_text().split() if self._called.exists() else []
        self._called.unlink(missing_ok=True)
        return [word for word in words if word.startswith("--device=")]


def script(path: Path, command: str) -> Path:
    path.write_text(f"#!/bin/sh\n{command}\n")
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, containers: Containers) -> Node:
    try:
        return Node(tmp_path_factory.mktemp("node"), containers)
    except SetupError as error:
        cannot_run(str(error))


def visible(devices: str, container: Container = CUDA_IMAGE) -> Container:
    return replace(container, env={**container.env, "NVIDIA_VISIBLE_DEVICES": devices})


def annotated(devices: str, container: Container = CUDA_IMAGE) -> Container:
    return replace(container, annotations={"cdi.k8s.io/mine": devices})


def mounted(device: str, container: Container = CUDA_IMAGE) -> Container:
    return replace(container, null_mounts=[f"/var/run/nvidia-container-devices/{device}"])


@every_mode
def test_a_cuda_image_without_a_claim_gets_every_gpu_of_the_node_by_default(
    node: Node, mode: str
) -> None:
    assert node.seen(mode, CUDA_IMAGE) == ALL


@every_mode
def test_an_old_cuda_image_gets_every_gpu_without_the_variable_too(node: Node, mode: str) -> None:
    old = replace(CUDA_IMAGE, env={**BARE_ENV, "CUDA_VERSION": "9.0"})
    assert node.seen(mode, old) == ALL
    assert node.seen(mode, replace(old, env=BARE_ENV)) == NOTHING


@every_mode
@pytest.mark.parametrize("devices", ["all", MY_GPU, THEIR_DEVICE, EVERY_DEVICE])
def test_where_the_variable_is_refused_it_opens_nothing(
    node: Node, mode: str, devices: str
) -> None:
    assert node.seen(mode, visible(devices), REFUSE_VARIABLE) == NOTHING


@every_mode
def test_where_the_variable_is_refused_cap_sys_admin_gets_every_gpu(node: Node, mode: str) -> None:
    admin = replace(CUDA_IMAGE, capabilities=["CAP_SYS_ADMIN"])
    assert node.seen(mode, admin, REFUSE_VARIABLE) == ALL


@every_mode
@pytest.mark.parametrize("devices", ["all", THEIR_DEVICE, EVERY_DEVICE])
def test_a_container_with_a_claim_gets_its_devices_whatever_the_variable_says(
    node: Node, mode: str, devices: str
) -> None:
    assert node.seen(mode, visible(devices, MY_CLAIMS)) == MINE


@every_mode
def test_by_default_the_variable_can_name_the_device_of_another_claim(
    node: Node, mode: str
) -> None:
    assert node.seen(mode, visible(THEIR_DEVICE)) == THEIRS
    assert node.seen(mode, visible(EVERY_DEVICE)) == ALL  # so no secret name would help


@every_mode_with_annotations
def test_an_annotation_opens_what_the_variable_no_longer_does(node: Node, mode: str) -> None:
    assert node.seen(mode, annotated(THEIR_DEVICE), REFUSE_VARIABLE) == THEIRS
    assert node.seen(mode, annotated(EVERY_DEVICE), REFUSE_VARIABLE) == ALL
    assert node.seen(mode, annotated(THEIR_DEVICE, MY_CLAIMS), REFUSE_VARIABLE) == BOTH


@every_mode
def test_without_annotation_prefixes_an_annotation_opens_nothing(node: Node, mode: str) -> None:
    for devices in (THEIR_DEVICE, EVERY_DEVICE):
        asked = annotated(devices)
        assert node.seen(mode, asked, REFUSE_VARIABLE, cdi=NO_ANNOTATIONS) == NOTHING
    assert node.seen(mode, annotated(EVERY_DEVICE, MY_CLAIMS), cdi=NO_ANNOTATIONS) == MINE


def test_in_the_mode_jit_cdi_an_annotation_opens_nothing(node: Node) -> None:
    assert node.seen("jit-cdi", annotated(EVERY_DEVICE), REFUSE_VARIABLE) == NOTHING
    assert node.seen("jit-cdi", annotated(THEIR_DEVICE, MY_CLAIMS)) == MINE


@every_mode
def test_a_mount_opens_nothing_by_default(node: Node, mode: str) -> None:
    for device in ("all", f"cdi/{THEIR_DEVICE}"):
        assert node.seen(mode, mounted(device), REFUSE_VARIABLE) == NOTHING
        assert node.seen(mode, mounted(device, MY_CLAIMS)) == MINE


@every_mode
def test_a_mount_opens_any_device_where_mounts_are_accepted(node: Node, mode: str) -> None:
    asked = mounted(f"cdi/{THEIR_DEVICE}")
    assert node.seen(mode, asked, REFUSE_VARIABLE, ACCEPT_MOUNTS) == THEIRS
    assert node.seen(mode, mounted("all"), REFUSE_VARIABLE, ACCEPT_MOUNTS) == ALL
    assert node.seen(mode, mounted(f"cdi/{THEIR_DEVICE}", MY_CLAIMS), ACCEPT_MOUNTS) == BOTH


def test_in_the_mode_legacy_a_cuda_image_asks_for_every_gpu_unless_it_has_a_claim(
    node: Node,
) -> None:
    node.seen("legacy", CUDA_IMAGE)
    assert node.asked_of_cli() == ["--device=all"]
    assert node.seen("legacy", CUDA_IMAGE, REFUSE_VARIABLE) == NOTHING
    assert node.seen("legacy", MY_CLAIMS) == MINE
    assert node.seen("legacy", annotated(EVERY_DEVICE, MY_CLAIMS)) == MINE
    assert node.asked_of_cli() == []
