"""`dra-driver health`: makes the running driver release GPUs for a reset, and forget XIDs.

In: the driver's directory on the node. Out: a request there (devices/health/record.py), and on
stdout what the driver has done about it. It neither queries nor resets a GPU itself.
"""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from dra_driver.admin.status.usage_command import PLUGINS
from dra_driver.commands.command_line import CommandSettings, argument
from dra_driver.commands.for_people import CommandGroup
from dra_driver.devices.health.debounce import GpuCondition, in_force
from dra_driver.devices.health.findings import Cause
from dra_driver.devices.health.record import (
    RELEASE,
    RELEASE_SECONDS,
    REQUESTS,
    GpuHealth,
    HealthRequests,
    read_health,
)
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.errors import SetupError
from dra_driver.host.words import named

_WAIT_SECONDS = 60.0
_LOOK_SECONDS = 0.1


class Release(CommandSettings):
    """Make the driver close all GPUs for ten minutes, so that one can be reset.

    It still opens them briefly for each check, and gets no XIDs in that time. Pods keep running.
    `clear` ends the ten minutes.
    """

    kubelet_plugins_directory_path: Path = PLUGINS

    def cli_cmd(self) -> None:
        """Ask the driver, and wait until it is done."""
        _ask(self.kubelet_plugins_directory_path, RELEASE)
        sys.stdout.write(
            f"the driver closes the GPUs for {RELEASE_SECONDS / 60:.0f} minutes, except "
            "briefly for each check\n"
            "next, on the node: nvidia-smi --gpu-reset -i INDEX; repeat it while dra-driver has "
            "the GPU open\n"
            "after that: dra-driver health clear GPU\n"
        )


class Clear(CommandSettings):
    """Make the driver forget the XIDs of one GPU, after its reset.

    Conditions that the GPU still reports remain. GPU drivers from R565 on report that a GPU has
    recovered, which ends the effect of its XIDs without this command.
    """

    example = "dra-driver health clear gpu-3"

    gpu: str = argument(metavar="GPU", help="Its device name, UUID or index in nvidia-smi.")
    kubelet_plugins_directory_path: Path = PLUGINS

    def cli_cmd(self) -> None:
        """Ask the driver, wait, and print what is left."""
        directory = self.kubelet_plugins_directory_path / DRIVER_NAME
        uuid, before = _found(_recorded(directory), self.gpu)
        _ask(self.kubelet_plugins_directory_path, uuid)
        left = _recorded(directory).get(uuid)
        still = in_force(left.conditions) if left else ()
        lines = [f"cleared: {condition.finding.reason}" for condition in _xids(before)]
        lines += [f"still {one.finding.severity}: {one.finding.text}" for one in still]
        sys.stdout.writelines(f"{before.name}: {line}\n" for line in lines)


class Health(CommandGroup):
    """Reset a sick GPU while the driver runs; run this in its pod on the node.

    First end the pods that use the GPU, and other processes that have it open (`dra-driver doctor
    -v` lists them). Then run `release`, `nvidia-smi --gpu-reset -i INDEX` on the node, and `clear`.
    `dra-driver status` shows which GPUs are sick.
    """

    commands: ClassVar[Mapping[str, type[CommandSettings]]] = MappingProxyType(
        {"release": Release, "clear": Clear}
    )


def _recorded(directory: Path) -> Mapping[str, GpuHealth]:
    record = read_health(directory)
    return record.gpus if record else {}


def _xids(gpu: GpuHealth) -> list[GpuCondition]:
    return [one for one in in_force(gpu.conditions) if one.finding.cause is Cause.XID]


def _found(gpus: Mapping[str, GpuHealth], word: str) -> tuple[str, GpuHealth]:
    """Return the GPU of a name, with its UUID. Raises SetupError if it has no XID to forget."""
    for uuid, gpu in gpus.items():
        if word.lower() in {gpu.name, uuid.lower(), str(gpu.index)} and _xids(gpu):
            return uuid, gpu
    others = named(gpu.name for gpu in gpus.values() if _xids(gpu))
    raise SetupError(
        f"no XID is recorded for {word!r}{others and f', only for {others}'}; other "
        "conditions in `dra-driver status` end when the GPU no longer reports them"
    )


def _ask(plugins: Path, request: str) -> None:
    """Ask the driver, and wait until it is done. Raises SetupError if it is not done in time."""
    requests = HealthRequests(plugins / DRIVER_NAME)
    folder = plugins / DRIVER_NAME / REQUESTS
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / request).touch(mode=0o600)
    except OSError as error:
        raise SetupError(
            f"{plugins / DRIVER_NAME} cannot be written to: {error.strerror}; run this in the "
            "driver's pod, or as root on the node"
        ) from error
    end = time.monotonic() + _WAIT_SECONDS
    while request in requests.pending():
        if time.monotonic() > end:
            requests.end(request)
            raise SetupError(
                f"the driver did not respond in {_WAIT_SECONDS:.0f} s: start it on this node, or "
                "see in its log why it cannot read its GPUs"
            )
        time.sleep(_LOOK_SECONDS)
