"""What sharing costs: the configs, one nvidia-smi as a yardstick, and a slow neighbour."""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from testbed import mps
from testbed.api import Object
from testbed.claims import gpu_config
from testbed.commands import TestbedError, run, wait_until
from testbed.driver import SupervisorProcess
from testbed.kubelet import ClaimName, KubeletClient
from testbed.node import put_share_config

from bench.prepare.stage import Stage
from bench.timings import summary, timed

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
"""Configs by which claims have a share of a GPU that is divided so, as a share config says it."""

_SHARES_NOTHING = "version: v1\n"
_REPLICAS = 10
SLOW_SECONDS = 1.0
"""How much longer the slow neighbour's daemon takes to start."""


@contextmanager
def supervisor(stage: Stage, log: Path) -> Iterator[None]:
    """Run an MPS supervisor beside the driver.

    Raises TestbedError if NVIDIA's MPS programs could not be had, or this is not root.
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

    Another claim has a share of each of these GPUs all the while, so that under MPS their domains
    are up.
    """
    resources = f"[{{name: nvidia.com/gpu, replicas: {_REPLICAS}}}]"
    settings = f"{{failRequestsGreaterThanOne: true, resources: {resources}}}"
    put_share_config(configs, f"version: v1\nsharing: {{{SHARED_BY[config]}: {settings}}}\n")
    first, last = f"share-0-of-{_REPLICAS}", f"share-{_REPLICAS - 1}-of-{_REPLICAS}"
    _wait_shares(stage, any_there=True)
    others = [stage.claim(f"{gpu}-{last}") for gpu in gpus]
    for other in others:
        kubelet.must_prepare(other)
    yield [f"{gpu}-{first}" for gpu in gpus]
    for other in others:
        kubelet.must_unprepare(other)
    stage.delete_claims("-share-")  # else the division waits for those that are still allocated
    put_share_config(configs, _SHARES_NOTHING)
    _wait_shares(stage, any_there=False)


def _wait_shares(stage: Stage, *, any_there: bool) -> None:
    def look() -> bool:
        slices = stage.api.all("ResourceSlice")
        names = [device["name"] for found in slices for device in found["spec"].get("devices", [])]
        return bool(names) and any("-share-" in name for name in names) is any_there

    wait_until(look, "the share config to be applied", timeout=60)


def nvidia_smi(stage: Stage, uuid: str) -> float:
    """Return the milliseconds that one nvidia-smi takes to set a GPU's time-slice."""
    root = stage.place.driver_root
    library = next(root.glob("usr/lib/**/libnvidia-ml.so.1"))
    words = (root / "usr/bin/nvidia-smi", "compute-policy", "-i", uuid, "--set-timeslice=0")
    environment = {"LD_PRELOAD": str(library)}
    return timed(lambda: run(words, env=environment))


def beside_a_slow_start(
    stage: Stage, kubelet: KubeletClient, gpus: Sequence[tuple[str, str]], rounds: int
) -> Object:
    """Time a claim that comes while the daemon of a claim on another GPU takes long to start.

    `gpus` are names and UUIDs of two GPUs: the slow claim's and the other's.

    Returns:
        Summaries of the slow claim's prepare, of the other one's meanwhile, and of the other one's
        alone.
    """
    (slow_gpu, slow_uuid), (gpu, _) = gpus
    slow, other = stage.claim(slow_gpu, CONFIGS["mps"]), stage.claim(gpu, CONFIGS["mps"])
    times: dict[str, list[float]] = {"slow": [], "beside_it": [], "alone": []}
    with mps.slow_start(stage.place.driver_root, SLOW_SECONDS, gpu=slow_uuid):
        for _ in range(rounds):
            times["alone"].append(timed(lambda: kubelet.must_prepare(other)))
            kubelet.must_unprepare(other)
            with _meanwhile(stage, kubelet, slow, times["slow"]):
                times["beside_it"].append(timed(lambda: kubelet.must_prepare(other)))
            kubelet.must_unprepare(slow)
            kubelet.must_unprepare(other)
    return {"slow_start_ms": SLOW_SECONDS * 1000} | {
        name: summary(values) for name, values in times.items()
    }


@contextmanager
def _meanwhile(
    stage: Stage, kubelet: KubeletClient, slow: ClaimName, times: list[float]
) -> Iterator[None]:
    """Prepare the slow claim on a thread; the body runs once its domain is wanted."""
    thread = threading.Thread(
        target=lambda: times.append(timed(lambda: kubelet.must_prepare(slow))), name="slow claim"
    )
    thread.start()
    desired = stage.place.mps / "desired" / f"{slow.uid}.json"
    wait_until(desired.exists, "the slow claim's domain to be wanted", timeout=30, interval=0.005)
    yield
    thread.join()
