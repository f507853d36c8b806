"""Claims with sharing configs, pods that use single requests of them, and what is seen of both."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed import mps
from testbed.api import Object
from testbed.claims import gpu_config
from testbed.commands import run, wait_until
from testbed.driver import DRIVER_NAME
from testbed.machine import DRIVER, GpuSettings
from testbed.pods import claim_uids, container, environment, mount_points

from dra_driver.mps.supervisor.cgroup import GROUP
from e2e.scene import NAMESPACE, Scene

USUAL = GpuSettings(compute_mode="Default", time_slice="Default")
UNDER_MPS = GpuSettings(compute_mode="Exclusive_Process", time_slice="Default")
PERCENTAGE = "get_default_active_thread_percentage"
MEMORY = "get_default_device_pinned_mem_limit"
PIPE = "CUDA_MPS_PIPE_DIRECTORY"
CGROUPS = Path("/sys/fs/cgroup")


def time_slicing(interval: str) -> Object:
    """The config for time-slicing."""
    return gpu_config(strategy="TimeSlicing", timeSlicingConfig={"interval": interval})


def mps_limits(percentage: int | None = 50, memory: str | None = "10Gi") -> Object:
    """The config for MPS with these limits."""
    limits = {"defaultActiveThreadPercentage": percentage, "defaultPinnedDeviceMemoryLimit": memory}
    given = {name: value for name, value in limits.items() if value is not None}
    return gpu_config(strategy="MPS", mpsConfig=given)


def claim_spec(requests: Mapping[str, Object], *, selectors: Sequence[Object] = ()) -> Object:
    """The spec of a claim with a GPU and a config for each request."""
    exactly: Object = {"deviceClassName": DRIVER_NAME}
    if selectors:
        exactly["selectors"] = list(selectors)
    opaque = {name: {"driver": DRIVER_NAME, "parameters": one} for name, one in requests.items()}
    return {
        "devices": {
            "requests": [{"name": name, "exactly": exactly} for name in requests],
            "config": [{"requests": [name], "opaque": one} for name, one in opaque.items()],
        }
    }


@dataclass(frozen=True, kw_only=True)
class Shared:
    """A claim of its own, and pods that use it."""

    scene: Scene
    claim: str

    @classmethod
    def make(
        cls,
        scene: Scene,
        name: str = "shared",
        *,
        selectors: Sequence[Object] = (),
        **requests: Object,
    ) -> "Shared":
        """Make a claim; keywords are its requests and their configs."""
        spec = claim_spec(requests, selectors=selectors)
        return cls(scene=scene, claim=scene.make("ResourceClaim", name, {"spec": spec}))

    @property
    def uid(self) -> str:
        """The claim's UID, which is the name of its MPS domain too."""
        claim = self.scene.api.get("ResourceClaim", self.claim, NAMESPACE)
        return str(claim["metadata"]["uid"])

    def pod(self, name: str = "pod", *, spec: Object | None = None, **containers: str) -> str:
        """Make a pod; keywords are containers and the request that each uses."""
        if not containers:
            containers = {"ctr": ""}
        spec = {
            "terminationGracePeriodSeconds": 1,
            "resourceClaims": [{"name": "shared", "resourceClaimName": self.claim}],
            "containers": [
                container(ctr, {"claims": [{"name": "shared"} | _named(request)]})
                for ctr, request in containers.items()
            ],
        } | (spec or {})
        return self.scene.make("Pod", name, {"spec": spec})

    # What is seen

    def gpu(self, pod: str, ctr: str = "ctr") -> str:
        """The one GPU that a container sees."""
        (uuid,) = self.scene.gpus(pod, ctr)
        return uuid

    def env(self, pod: str, ctr: str = "ctr") -> dict[str, str]:
        """A container's variables."""
        return environment(self.scene.node.cluster, pod, ctr, NAMESPACE)

    def mounts(self, pod: str, ctr: str = "ctr") -> dict[str, str]:
        """What is mounted in a container, and of what kind it is."""
        return mount_points(self.scene.node.cluster, pod, ctr, NAMESPACE)

    def settings(self, gpu: str) -> GpuSettings:
        """How the node's GPU is set."""
        return self.scene.node.machine.settings()[gpu]

    def ask(self, command: str) -> str:
        """What the claim's MPS daemon answers."""
        return mps.ask(self.scene.node.place, self.uid, command)

    def daemon(self) -> int:
        """The PID of the claim's MPS daemon, as the supervisor has it."""
        (claim,) = self.status()
        return int(claim["mpsDomain"]["daemonPID"])

    def status(self) -> list[Object]:
        """What `dra-driver status` says of the claim."""
        found = json.loads(status(self.scene, "--output", "json"))["claims"]
        return [one for one in found if one["name"] == self.claim]

    def ready_again(self, deaths: int) -> None:
        """Wait until the daemon serves again after so many deaths."""

        def look() -> bool:
            (claim,) = self.status()
            domain = claim["mpsDomain"]
            return bool(domain["restarts"] == deaths and domain["state"] == "ready")

        wait_until(look, f"a daemon after {deaths} deaths", timeout=120)


def status(scene: Scene, *words: str) -> str:
    """What `dra-driver status` prints on the node."""
    place = scene.node.place
    roots = ("--proc-root", place.driver_root / "proc")
    where = ("--kubelet-plugins-directory-path", place.plugins)
    return run((DRIVER, "status", *where, *roots, *words))


def uids_of(scene: Scene, pod: str) -> list[str]:
    """The UIDs of a pod's claims."""
    return claim_uids(scene.api, scene.api.get("Pod", pod, NAMESPACE))


def remove_groups() -> None:
    """Remove the daemons' control groups; one in which another node has daemons stays."""
    for group in (*CGROUPS.glob(GROUP), *CGROUPS.glob(f"*/{GROUP}")):
        if not group.parent.is_symlink():
            wait_until(lambda group=group: _remove(group), f"{group} to go", timeout=60)


def _remove(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return not group.exists() or bool((group / "cgroup.procs").read_text())
    return True


def _named(request: str) -> Object:
    return {"request": request} if request else {}
