"""NvidiaMPS: an MPS daemon that NVIDIA's DRA driver runs for a claim, until the claim ends.

In: what that driver recorded about it. Out: the edits that make containers its clients, and the
reset of the compute modes that it set. The daemon runs in a Deployment, which this driver may not
delete, so it is named for a person to delete; without clients it uses nothing of a GPU. Its socket
is not used, because tenants can write to its folder. New claims never get this strategy.
"""

from collections.abc import Mapping
from functools import partial

import structlog

from dra_driver.cdi.model import Edits, Mount
from dra_driver.devices.device import DeviceKey
from dra_driver.devices.model import GpuUuid
from dra_driver.errors import try_all
from dra_driver.mps.files import CONTAINER_PIPE_DIRECTORY, CONTAINER_SHM
from dra_driver.sharing.base import ComputeModes, Doer
from dra_driver.sharing.steps import NvidiaMpsDaemon

log = structlog.get_logger()

_DEFAULT, _EXCLUSIVE_PROCESS = 0, 3  # compute modes as NVML numbers them
_OPTIONS = ("rw", "nosuid", "nodev", "bind")


class NvidiaMps(Doer[NvidiaMpsDaemon]):
    """Handles claims whose daemon NVIDIA's DRA driver runs; `dra-driver take-over` makes steps."""

    def __init__(self, modes: ComputeModes) -> None:
        self._modes = modes

    def edits(self, step: NvidiaMpsDaemon) -> Mapping[DeviceKey, Edits]:
        """Return what makes containers clients of the daemon, as that driver's own spec does."""
        paths = {"shm": CONTAINER_SHM, "pipe": CONTAINER_PIPE_DIRECTORY}
        edits = Edits(
            env=(f"CUDA_MPS_PIPE_DIRECTORY={CONTAINER_PIPE_DIRECTORY}",),
            mounts=tuple(
                Mount(host_path=f"{step.folder}/{name}", container_path=path, options=_OPTIONS)
                for name, path in paths.items()
            ),
        )
        return {DeviceKey(device.uuid): edits for device in step.devices if device.uuid is not None}

    def undo(self, step: NvidiaMpsDaemon, deadline: float) -> None:  # noqa: ARG002 (a Doer)
        """Restore the GPUs' compute modes, and name what a person has to delete."""
        try_all(partial(self._restore_mode, uuid) for uuid in step.gpus)
        log.warning(
            "mps deployment of nvidia's driver is to be deleted",
            deployment=step.deployment,
            folder=step.folder,
        )

    def _restore_mode(self, uuid: GpuUuid) -> None:
        if self._modes.compute_mode(uuid) == _EXCLUSIVE_PROCESS:
            self._modes.set_compute_mode(uuid, _DEFAULT)
