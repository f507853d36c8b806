"""`python3 -m dra_driver.bench.tenant.program SPEC`: one tenant, in a process or a container.

In: a `Spec` as JSON. Out: lines on stdout (bench/lines.py). It makes a context, takes its
memory, reports that it is ready, waits for the moment that all tenants are told, warms up together
with them (for less time if it learned of the moment late), works, and reports what it did. On a
simulated GPU it does all of that except the work, and reports no figures. It ends with its runner,
if that is its parent.
"""

import ctypes
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dra_driver.bench import lines
from dra_driver.bench.model import Card, Usage
from dra_driver.bench.tenant import arrivals
from dra_driver.bench.tenant.card import CardNvml, Watch
from dra_driver.bench.tenant.device import Task
from dra_driver.bench.tenant.supervised import uptime
from dra_driver.bench.tenant.tasks import task
from dra_driver.bench.workload import WorkloadKind
from dra_driver.devices.nvml.gpm import GpmCount, GpmUsage
from dra_driver.errors import DeviceError, DriverError, SetupError

_POLL_SECONDS = 0.02
_SAY_EVERY = 0.5
_PR_SET_PDEATHSIG = 1  # linux/prctl.h

OpenGpu = Callable[[], AbstractContextManager[Any]]


def main(words: Sequence[str], open_gpu: OpenGpu | None = None) -> int:
    """Run as a tenant; return the exit status."""
    _end_with_parent()
    try:
        (text,) = words
        spec = lines.Spec.model_validate_json(text)
    except (ValueError, ValidationError) as error:
        sys.stderr.write(f"error: not the spec of a tenant: {error}\n")
        return 2
    try:
        _live(spec, open_gpu or _open_gpu)
    except DriverError as error:
        _say(lines.Failed(reason=str(error)))
        return 1
    return 0


def _live(spec: lines.Spec, open_gpu: OpenGpu) -> None:
    nvml, card = _nvml(Path(spec.driver_root), spec.gpu)
    try:
        if card is not None and card.is_simulated:
            _say(_ready(card=card, is_simulated=True))
            late = max(0.0, uptime() - _wait(spec))
            began = uptime()
            time.sleep(min(1.0, spec.work.seconds))
            _say(lines.Done(began=began, seconds=uptime() - began, late_seconds=late))
            return
        before = time.monotonic()
        with open_gpu() as gpu:
            took = time.monotonic() - before
            gpu.compile()
            todo = task(gpu, spec.work)
            todo.step()
            todo.check()
            _say(
                _ready(
                    card=card,
                    context_seconds=took,
                    memory_mib=todo.memory_mib,
                    refused_mib=todo.refused_mib,
                )
            )
            watch = Watch(nvml.busy) if nvml is not None and spec.watches else None
            count = _count(spec, nvml)
            wanted = _wait(spec) + spec.work.warm_up
            _warm_up(spec, todo, wanted - uptime())
            _say(_worked(spec, todo, watch, count, wanted=wanted))
    finally:
        if nvml is not None:
            nvml.close()


def _ready(**facts: Any) -> lines.Ready:
    return lines.Ready(at=uptime(), mps=os.environ.get("CUDA_MPS_PIPE_DIRECTORY", ""), **facts)


def _warm_up(spec: lines.Spec, todo: Task, seconds: float) -> None:
    """Work until clocks and caches are as under load, with the others, before the measurement."""
    if seconds > 0:
        _serve(spec, todo, seconds)


def _serve(spec: lines.Spec, todo: Task, seconds: float) -> arrivals.Timings:
    work = spec.work
    if work.kind is WorkloadKind.INFERENCE:
        moments = arrivals.random_arrivals(work.rate, seconds, work.seed, spec.number)
        return arrivals.open_loop(todo.step, moments, seconds, time.monotonic, time.sleep)
    return arrivals.closed_loop(todo.step, seconds, time.monotonic)


def _worked(
    spec: lines.Spec, todo: Task, watch: Watch | None, count: GpmCount | None, *, wanted: float
) -> lines.Done:
    """Do the work that is measured; `wanted` is the moment at which it should begin."""
    if count is not None:
        count.start()
    if watch is not None:
        watch.start()
    usage: Usage | None = None
    began = uptime()
    try:
        done = _serve(spec, todo, spec.work.seconds)
    finally:
        if watch is not None:
            usage = watch.stop()
    gpm = GpmUsage() if count is None else count.stop()
    if done.steps:
        todo.check()
    return lines.Done(
        began=began,
        seconds=done.seconds,
        late_seconds=max(0.0, began - wanted),
        steps=done.steps,
        units=done.steps * todo.units,
        unit=todo.unit,
        latency=done.latency(),
        usage=usage,
        busy_sm_percent=gpm.busy_sms,
        bandwidth_percent=gpm.bandwidth,
    )


def _count(spec: lines.Spec, nvml: CardNvml | None) -> GpmCount | None:
    """Return a counter by GPM; None if the card does not answer: the work is done anyway.

    Each tenant measures its own MIG device; one of them measures a whole GPU.
    """
    if nvml is None or not (spec.watches or nvml.is_divided):
        return None
    try:
        return nvml.count(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    except DeviceError:
        return None


def _wait(spec: lines.Spec) -> float:
    """Wait for the moment at which all begin, and return it."""
    file, end = Path(spec.start), time.monotonic() + spec.patience
    said = time.monotonic()
    moment = _moment(file)
    while moment is None:
        if time.monotonic() > end:
            raise SetupError(f"the signal to begin did not come within {spec.patience:g} s")
        if time.monotonic() - said >= _SAY_EVERY:
            _say(lines.Waiting(at=uptime()))
            said = time.monotonic()
        time.sleep(_POLL_SECONDS)
        moment = _moment(file)
    time.sleep(max(0.0, min(moment - uptime(), spec.patience)))
    return moment


def _moment(file: Path) -> float | None:
    """Return the moment in a file, which is written atomically; None while there is none."""
    try:
        return float(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _nvml(driver_root: Path, which: str) -> tuple[CardNvml | None, Card | None]:
    """Return NVML and the card; None if NVML does not answer: the work is done anyway."""
    try:
        nvml = CardNvml(driver_root, which)
        try:
            return nvml, nvml.card()
        except DeviceError:
            nvml.close()
            raise
    except DeviceError as error:
        sys.stderr.write(f"NVML does not answer: {error}\n")
        return None, None


def _open_gpu() -> AbstractContextManager[Any]:
    try:
        cuda = importlib.import_module("dra_driver.bench.tenant.cuda")
    except ImportError as error:
        raise SetupError(
            f"NVIDIA's Python bindings are not installed here ({error}): in a checkout, run"
            " `pip install -e '.[bench]'`, or use an image that has them"
        ) from error
    gpu: AbstractContextManager[Any] = cuda.Gpu()
    return gpu


def _end_with_parent() -> None:
    """Make the kernel end this process when its runner ends, in any way."""
    if os.getppid() > 1:  # not the first process of a container
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _say(said: lines.Said) -> None:
    os.write(sys.stdout.fileno(), f"{lines.line(said)}\n".encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
