"""NvidiaMPS: an MPS daemon that NVIDIA's own DRA driver runs for a claim, until the claim ends.

In: what that driver noted of it (claims/takeover/take_over.py). Out: the edits by which containers
are its clients, and the compute modes that it set taken back. The daemon runs in a Deployment of
that driver's namespace. This driver may not delete Deployments, and does not speak to the daemon's
socket, which lies in a folder that tenants write: it names the Deployment for a person to delete.
Without clients such a daemon uses nothing of a GPU. No claim is given this strategy again.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import structlog

from dra_driver.cdi.model import Edits, Mount
from dra_driver.devices.kinds import GpuPart
from dra_driver.devices.model import GpuUuid
from dra_driver.errors import StateError, try_all
from dra_driver.mps.client_edits import CONTAINER_PIPE_DIRECTORY, CONTAINER_SHM
from dra_driver.sharing.base import ComputeModes, Description, DeviceKey, Sharing, SharingPlan

log = structlog.get_logger()

NAME = "NvidiaMPS"

_DEFAULT, _EXCLUSIVE_PROCESS = 0, 3  # compute modes as NVML numbers them
_OPTIONS = ("rw", "nosuid", "nodev", "bind")


def deployment_of(daemon: str) -> str:
    """Return the name of the Deployment in which that driver runs a daemon."""
    return f"mps-control-daemon-{daemon}"


def plan_of(
    daemon: str,
    folder: Path,
    *,
    gpus: Sequence[GpuUuid],
    clients: Sequence[str],
    places: Sequence[GpuPart],
) -> SharingPlan:
    """Return the plan for a running daemon; the compute modes of `gpus` are put back in the end."""
    changes = {"daemon": daemon, "folder": str(folder), "clients": list(clients)}
    return SharingPlan(strategy=NAME, gpus=tuple(gpus), changes=changes, places=tuple(places))


class NvidiaMps(Sharing):
    """The strategy of claims whose daemon NVIDIA's driver runs. Their plans come from elsewhere."""

    def __init__(self, modes: ComputeModes) -> None:
        self._modes = modes

    def edits(self, plan: SharingPlan) -> Mapping[DeviceKey, Edits]:
        """Return what makes containers clients of the daemon, as that driver's own spec does."""
        folder = _text(plan, "folder")
        edits = Edits(
            env=(f"CUDA_MPS_PIPE_DIRECTORY={CONTAINER_PIPE_DIRECTORY}",),
            mounts=(
                Mount(host_path=f"{folder}/shm", container_path=CONTAINER_SHM, options=_OPTIONS),
                Mount(
                    host_path=f"{folder}/pipe",
                    container_path=CONTAINER_PIPE_DIRECTORY,
                    options=_OPTIONS,
                ),
            ),
        )
        clients = plan.changes.get("clients")
        if not isinstance(clients, Sequence):
            raise StateError(
                "the record's plan for the MPS of NVIDIA's DRA driver names no clients"
            )
        return {DeviceKey(str(uuid)): edits for uuid in clients}

    @staticmethod
    def describe(plan: SharingPlan, device: DeviceKey) -> Description:  # noqa: ARG004 (one daemon)
        """Return the Deployment in which the daemon runs."""
        deployment = deployment_of(_text(plan, "daemon"))
        return Description(settings={"deployment": deployment}, words=f"Deployment {deployment}")

    def undo(self, plan: SharingPlan, deadline: float) -> None:  # noqa: ARG002 (a Sharing)
        """Put the GPUs' compute modes back, and name what is left for a person to delete."""
        try_all(partial(self._restore_mode, uuid) for uuid in plan.gpus)
        log.warning(
            "mps deployment of nvidia's driver is to be deleted",
            deployment=deployment_of(_text(plan, "daemon")),
            folder=_text(plan, "folder"),
        )

    def _restore_mode(self, uuid: GpuUuid) -> None:
        if self._modes.compute_mode(uuid) == _EXCLUSIVE_PROCESS:
            self._modes.set_compute_mode(uuid, _DEFAULT)


def _text(plan: SharingPlan, name: str) -> str:
    found = plan.changes.get(name)
    if not isinstance(found, str):
        raise StateError(f"the record's plan for the MPS of NVIDIA's DRA driver has no {name}")
    return found
