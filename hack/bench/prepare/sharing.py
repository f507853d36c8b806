"""How claims share: configs, an MPS supervisor, and shares of divided GPUs."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from testbed import mps
from testbed.api import Object
from testbed.claims import gpu_config
from testbed.commands import TestbedError, wait_until
from testbed.driver import SupervisorProcess
from testbed.kubelet import KubeletClient
from testbed.node import put_share_config

from bench.prepare.stage import Stage

CONFIGS: Mapping[str, Object | None] = {
    "exclusive": None,
    "time-slicing": gpu_config(strategy="TimeSlicing", timeSlicingConfig={"interval": "Short"}),
    "mps": gpu_config(
        strategy="MPS",
        mpsConfig={
            "defaultActiveThreadPercentage": 50,
            "defaultPinnedDeviceMemoryLimit": "10Gi",
        },
    ),
}
SHARED_BY: Mapping[str, str] = {"share-mps": "mps", "share-time-slicing": "timeSlicing"}
"""Names of shares' configs, and how the share config divides the GPUs for each."""

_SHARES_NOTHING = "version: v1\n"
_REPLICAS = 10


@contextmanager
def supervisor(stage: Stage, log: Path) -> Iterator[None]:
    """Run an MPS supervisor beside the driver.

    Raises TestbedError without NVIDIA's MPS programs, or without root.
    """
    if os.geteuid() != 0 or not mps.can_run_mps(stage.place.driver_root):
        raise TestbedError("--config mps needs root, and NVIDIA's MPS programs in the machine")
    process = SupervisorProcess(stage.place, log)
    process.start()
    try:
        process.wait_log("mps supervisor started")
        yield
    finally:
        process.stop()
        mps.end_all(stage.place.plugins)
        log.unlink(missing_ok=True)


def share_configs(folder: Path) -> Path:
    """Make a folder of share configs in which nothing is shared yet; return it."""
    configs = folder / "share-configs"
    put_share_config(configs, _SHARES_NOTHING)
    return configs


@contextmanager
def shares_of(
    stage: Stage, kubelet: KubeletClient, configs: Path, config: str, gpus: Sequence[str]
) -> Iterator[list[str]]:
    """Have all GPUs divided, and yield a share of each of `gpus` by its name.

    Another claim has a share of each of these GPUs throughout, so that under MPS their domains are
    up.
    """
    resources = f"[{{name: nvidia.com/gpu, replicas: {_REPLICAS}}}]"
    settings = f"{{failRequestsGreaterThanOne: true, resources: {resources}}}"
    put_share_config(configs, f"version: v1\nsharing: {{{SHARED_BY[config]}: {settings}}}\n")
    _wait_shares(stage, any_there=True)
    others = [stage.claim(_share(stage, gpu, _REPLICAS - 1)) for gpu in gpus]
    for other in others:
        kubelet.must_prepare(other)
    yield [_share(stage, gpu, 0) for gpu in gpus]
    for other in others:
        kubelet.must_unprepare(other)
    stage.delete_claims("-share-")  # otherwise the division waits for allocated ones
    put_share_config(configs, _SHARES_NOTHING)
    _wait_shares(stage, any_there=False)


def _published(stage: Stage) -> list[str]:
    slices = stage.api.all("ResourceSlice")
    return [device["name"] for each in slices for device in each["spec"].get("devices", [])]


def _share(stage: Stage, gpu: str, index: int) -> str:
    """The name of a share of a GPU, which not all versions form in the same way."""
    end = f"-share-{index}-of-{_REPLICAS}"

    def look() -> str | None:
        there = _published(stage)
        return next((one for one in there if one.startswith(f"{gpu}-") and one.endswith(end)), None)

    return wait_until(look, f"{gpu}{end} to be published", timeout=60)


def _wait_shares(stage: Stage, *, any_there: bool) -> None:
    def look() -> bool:
        names = _published(stage)
        return bool(names) and any("-share-" in name for name in names) is any_there

    wait_until(look, "the share config to be applied", timeout=60)
