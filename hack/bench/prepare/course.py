"""The benchmark's course: starts, yardsticks, then prepare and unprepare for each case."""

import argparse
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from pathlib import Path

from testbed.api import Api, Object
from testbed.commands import wait_until
from testbed.driver import DriverProcess, resident_memory
from testbed.kubelet import ClaimName, KubeletClient
from testbed.machine import DRIVER

from bench.command_line import machine, run, say_as
from bench.prepare.beside import NvidiaDriver
from bench.prepare.report import compared, in_short, lines
from bench.prepare.sharing import CONFIGS, SHARED_BY, share_configs, shares_of, supervisor
from bench.prepare.stage import Stage, fake_stage, real_stage
from bench.timings import Summary, at_once, cpu_seconds, fsync_1kb, summary, timed
from dra_driver.bench.model import percentile

MIB = 1024 * 1024
FOLDER = "/var/tmp"  # noqa: S108  # a real disk, where /tmp may be memory
STARTS = 5
CALMS = 20
CALM_SECONDS = 1
"""Seconds until background work of calls, such as claim status, is done."""

IDLE_SECONDS = 30
WARM_UP = 5
"""Rounds before those that count: connections are made and caches filled only once."""

StageOf = Callable[[Path], AbstractContextManager[Stage]]
_say = say_as("bench")


def main(words: Sequence[str]) -> int:
    """Measure, print JSON, return the exit status."""
    options = _options(words)
    is_real = options.apiserver == "real"
    root = "a real cluster needs root; use --apiserver fake without" if is_real else ""
    real = partial(real_stage, for_any_driver=options.beside is not None)
    return run(partial(_bench, options, real if is_real else fake_stage), root=root)


def _bench(options: argparse.Namespace, stage_of: StageOf) -> None:
    # Unix socket paths are short, so this is no place for a long TMPDIR.
    with (
        tempfile.TemporaryDirectory(prefix="dra-bench-", dir=FOLDER) as folder,
        stage_of(Path(folder)) as stage,
    ):
        shared = not SHARED_BY.keys().isdisjoint(options.config)
        options.shares = share_configs(Path(folder)) if shared else None
        results = _in_turns(stage, options)
    for name, taken in results.items():
        for line in (f"{name}:", *lines(taken[-1])) if len(results) > 1 else lines(taken[-1]):
            _say(line)
    if len(results) > 1:
        for line in compared(results):
            _say(line)
    text = json.dumps(results if len(results) > 1 else next(iter(results.values()))[-1], indent=2)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")


def _options(words: Sequence[str]) -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(word) for word in text.split(",")]

    parser = argparse.ArgumentParser(prog="hack/bench/prepare", description=__doc__)
    parser.add_argument("--apiserver", choices=("real", "fake"), default="real")
    parser.add_argument(
        "--callers",
        type=numbers,
        default=[1, 8],
        help="calls at once; if more than GPUs, all have admin access (default: 1,8)",
    )
    parser.add_argument(
        "--config",
        type=lambda text: text.split(","),
        default=["exclusive"],
        help=f"how claims share their GPUs, of {', '.join((*CONFIGS, *SHARED_BY))}"
        " (default: exclusive); a share is prepared beside another one of its GPU",
    )
    parser.add_argument(
        "--prepared",
        type=numbers,
        default=[0, 100, 500, 1000],
        help="claims prepared beforehand (default: 0,100,500,1000)",
    )
    parser.add_argument(
        "--rounds", type=int, default=200, help="prepares of each caller, each way, in each case"
    )
    parser.add_argument(
        "--driver",
        type=Path,
        action="append",
        help="the dra-driver to measure, such as that of another version's environment"
        " (default: this checkout's); given more than once, they take turns, and all are"
        " compared with the first",
    )
    parser.add_argument(
        "--beside",
        type=Path,
        metavar="BINARY",
        help="NVIDIA's gpu-kubelet-plugin, as you have built it: it takes turns with the others, as"
        " the first of them",
    )
    parser.add_argument("--turns", type=int, default=1, help="turns of each driver (default: 1)")
    parser.add_argument("--output", type=Path, help="write the JSON to this file, too")
    options = parser.parse_args(words)
    options.driver = options.driver or [DRIVER]
    if options.beside:
        options.driver.insert(0, options.beside)
        unknown = set(options.config) - {"exclusive", "time-slicing"}
        if unknown:
            parser.error(f"--beside has exclusive and time-slicing, not {', '.join(unknown)}")
    for name in set(options.config) - CONFIGS.keys() - SHARED_BY.keys():
        parser.error(f"--config {name}: there are {', '.join((*CONFIGS, *SHARED_BY))}")
    return options


def _in_turns(stage: Stage, options: argparse.Namespace) -> dict[str, list[Object]]:
    """Measure each driver in each turn; return the results by the driver's path."""
    results: dict[str, list[Object]] = {str(program): [] for program in options.driver}
    for turn, program in itertools.product(range(options.turns), options.driver):
        if len(results) > 1:
            _say(f"turn {turn + 1} of {options.turns}: {program}")
        results[str(program)].append(_measure(stage, program, options))
        stage.clear()
    return results


def _measure(stage: Stage, program: Path, options: argparse.Namespace) -> Object:
    logs = Path(FOLDER)
    log = logs / f"dra-bench-{os.getpid()}.log"
    env = {"SHARE_CONFIG": str(options.shares)} if options.shares else {}
    driver = (
        NvidiaDriver(stage.place, log, program=program)
        if program == options.beside
        else DriverProcess(stage.place, log, env, program=program)
    )
    needs_mps = not {"mps", "share-mps"}.isdisjoint(options.config)
    mps_log = logs / f"dra-bench-mps-{os.getpid()}.log"
    with supervisor(stage, mps_log) if needs_mps else nullcontext():
        return _measure_driver(stage, driver, options)


def _measure_driver(stage: Stage, driver: DriverProcess, options: argparse.Namespace) -> Object:
    try:
        _say(f"starting the driver {STARTS} times")
        starts = [_start(driver) for _ in range(STARTS)]
        driver.start()
        with KubeletClient(stage.place.registry) as kubelet:
            kubelet.register(driver=driver)
            devices = _devices(stage.api)
            driver.wait_started()
            idle, _ = resident_memory(driver.pid)
            idle_cpu = _idle(driver)
            cases = list(_cases(stage, kubelet, driver, devices, options))
            calm = _after_calm(stage, kubelet, devices[0])
        _, peak = resident_memory(driver.pid)
    finally:
        driver.stop()
        driver.log.unlink(missing_ok=True)
    return {
        "machine": machine(),
        "apiserver": options.apiserver,
        "start_to_registered_s": {
            "p50": round(percentile([took for took, _ in starts], 0.5), 3),
            "worst": round(max(took for took, _ in starts), 3),
            "cpu": round(percentile([used for _, used in starts], 0.5), 3),
        },
        "resident_memory_mib": {"idle": round(idle / MIB, 1), "peak": round(peak / MIB, 1)},
        "idle_cpu_percent": idle_cpu,
        "after_calm": calm,
        "cases": cases,
    }


def _start(driver: DriverProcess) -> tuple[float, float]:
    """Start and stop the driver; return the seconds from start to registered, and of CPU time."""
    began = time.perf_counter()
    driver.start()
    with KubeletClient(driver.place.registry) as kubelet:
        kubelet.register(driver=driver)
        took = time.perf_counter() - began
        used = cpu_seconds(driver.pid)
    driver.stop()
    return took, used


def _idle(driver: DriverProcess) -> float:
    """Return an idle driver's CPU usage, in percent of a core."""
    _say(f"measuring {IDLE_SECONDS} idle seconds")
    time.sleep(IDLE_SECONDS / 3)  # what follows a start is over by then
    used = cpu_seconds(driver.pid)
    time.sleep(IDLE_SECONDS)
    return round((cpu_seconds(driver.pid) - used) / IDLE_SECONDS * 100, 3)


def _devices(api: Api) -> list[str]:
    """Return the names of the whole GPUs that are published."""

    def published() -> list[str]:
        slices = api.all("ResourceSlice")
        devices = [device for each in slices for device in each["spec"].get("devices", [])]
        return [
            device["name"] for device in devices if device["attributes"]["type"]["string"] == "gpu"
        ]

    return wait_until(published, "the driver to publish its GPUs", timeout=30)


def _yardsticks(stage: Stage, kubelet: KubeletClient, known: ClaimName, rounds: int) -> Object:
    """Return the cost of what every driver needs: an empty call, an API GET, an fsync.

    And `floor_ms`, the sum of their medians. They are taken again for each case, because other
    programs may slow the machine down meanwhile.
    """
    with closing(Api.from_kubeconfig(stage.place.kubeconfig)) as api:
        taken = {
            "empty_grpc_call": _sample(kubelet.prepare, rounds),
            "api_get": _sample(
                lambda: api.get("ResourceClaim", known.name, known.namespace), rounds
            ),
            "fsync_1kb": summary([fsync_1kb(stage.place.plugins) for _ in range(rounds)]),
        }
    return taken | {"floor_ms": round(sum(figures["p50_ms"] for figures in taken.values()), 3)}


def _sample(action: Callable[[], object], rounds: int) -> Summary:
    for _ in range(WARM_UP):
        action()
    return summary([timed(action) for _ in range(rounds)])


def _cases(
    stage: Stage,
    kubelet: KubeletClient,
    driver: DriverProcess,
    devices: Sequence[str],
    options: argparse.Namespace,
) -> Iterator[Object]:
    known = stage.claim(devices[0])
    standing: list[ClaimName] = []
    for prepared in sorted(options.prepared):
        _say(f"preparing claims until there are {prepared}")
        in_turn = itertools.cycle(devices)
        while len(standing) < prepared:
            standing.append(stage.claim(next(in_turn), admin_access=True))
            kubelet.must_prepare(standing[-1])
        for config, callers in itertools.product(options.config, options.callers):
            _say(f"measuring {callers} callers with {prepared} claims prepared, {config}")
            floor = _yardsticks(stage, kubelet, known, options.rounds)
            gpus = list(itertools.islice(itertools.cycle(devices), callers))
            had = (
                shares_of(stage, kubelet, options.shares, config, gpus)
                if config in SHARED_BY
                else nullcontext(gpus)
            )
            with had as chosen:
                taken = _case(stage, kubelet, driver, chosen, config, options.rounds)
            memory, _ = resident_memory(driver.pid)
            yield {
                "config": config,
                "callers": callers,
                "prepared": prepared,
                **taken,
                "resident_memory_mib": round(memory / MIB, 1),
                "yardsticks": floor,
            }


def _case(
    stage: Stage,
    kubelet: KubeletClient,
    driver: DriverProcess,
    devices: Sequence[str],
    config: str,
    rounds: int,
) -> Object:
    """Let a caller for each of `devices` prepare and unprepare a new claim in each round.

    First they begin each step together, and prepare again, too; then each goes on by itself. Where
    a device is there more than once, all claims have admin access, and no config.
    """
    are_standing = len(set(devices)) < len(devices)
    options = {"admin_access": True} if are_standing else {"config": CONFIGS.get(config)}

    def rounds_of(number: int, *, again: bool) -> list[list[Callable[[], object]]]:
        claims = [[stage.claim(one, **options) for _ in range(number)] for one in devices]
        return [_steps(kubelet, iter(new), again=again) for new in claims]

    def used() -> float:
        return cpu_seconds(driver.pid)

    at_once(rounds_of(WARM_UP, again=True), WARM_UP)
    taken = at_once(rounds_of(rounds, again=True), rounds, meter=used)
    free = at_once(rounds_of(rounds, again=False), rounds, meter=used, together=False)
    return in_short(taken, free)


def _steps(
    kubelet: KubeletClient, claims: Iterator[ClaimName], *, again: bool
) -> list[Callable[[], object]]:
    now: list[ClaimName] = []

    def prepare_next() -> None:
        now[:] = [next(claims)]
        kubelet.must_prepare(*now)

    more = [lambda: kubelet.must_prepare(*now)] if again else []
    return [prepare_next, *more, lambda: kubelet.must_unprepare(*now)]


def _after_calm(stage: Stage, kubelet: KubeletClient, device: str) -> Summary:
    """Return how long the prepare of a new claim takes after a calm period."""
    _say(f"measuring a new claim after {CALM_SECONDS} s of calm, {CALMS} times")

    def first_prepare() -> float:
        claim = stage.claim(device)
        time.sleep(CALM_SECONDS)
        took = timed(partial(kubelet.must_prepare, claim))
        kubelet.must_unprepare(claim)
        return took

    return summary([first_prepare() for _ in range(CALMS)])
