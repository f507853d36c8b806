"""A runner of cases as processes for tests, where no GPU does any work.

Its tenants are a script that says what tenants say, on a card that nobody asks NVML about.
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from dra_driver.bench.model import Card
from dra_driver.bench.processes import ProcessRunner
from dra_driver.bench.stopping import Stop
from dra_driver.bench.workload import Workload, WorkloadKind
from dra_driver.devices.nvml.rates import Busy

SCRIPT = """
import json, os, sys, time
from dra_driver.bench.tenant.supervised import uptime
spec = json.loads(sys.argv[1])
def say(**facts):
    print(json.dumps({"bench": 1, **facts}, separators=(",", ":")), flush=True)
print("a library's own line", flush=True)
mode = os.environ.get("MODE", "")
if mode == "refused" and spec["number"] == 1:
    say(event="failed", reason="out of memory")
    sys.exit(1)
if mode == "crash":
    sys.exit("segmentation fault, say")
if mode == "odd":
    say(event="ready", at="soon")
    sys.exit(0)
say(event="ready", at=uptime(), context_seconds=0.1, memory_mib=64,
    mps=os.environ["CUDA_MPS_PIPE_DIRECTORY"])
while not os.path.exists(spec["start"]):
    time.sleep(0.01)
moment = float(open(spec["start"]).read())
if mode == "killed" and spec["number"] == 1:
    print("the last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), 9)
if mode == "stuck" or mode == "one-stuck" and spec["number"] == 1:
    time.sleep(1000)
time.sleep(max(0, moment - uptime()))
began = uptime()
units = 10.0 * (1 + spec["number"])
late = max(0, began - moment)
say(event="done", began=began, seconds=2.0, steps=10, units=units, unit="x", late_seconds=late)
"""


class PlayedDoor:
    """A card that nobody asks NVML about."""

    uuid = "GPU-played"
    mig_problem = ""
    library_folder = Path("/nowhere")

    def __init__(self, mig: Mapping[str, tuple[str, ...]], **facts: object) -> None:
        self.mig_devices, self.is_divided = mig, bool(mig)
        known = {"name": "A card", "uuid": self.uuid, "driver_version": "1", "memory_mib": 8192}
        self._card = Card.model_validate({**known, **facts})

    def card(self) -> Card:
        return self._card

    def busy(self) -> Busy:
        return Busy(sm_percent=50, energy_millijoules=int(time.monotonic() * 1000))


def runner(
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    patience: float = 20,
    stop: Stop | None = None,
    tenant: str = SCRIPT,
    mig: Mapping[str, tuple[str, ...]] | None = None,
    **facts: object,
) -> ProcessRunner:
    script = folder / "tenant.py"
    script.write_text(tenant)
    return ProcessRunner(
        PlayedDoor(mig or {}, **facts),  # type: ignore[arg-type]
        Path("/"),
        patience=patience,
        stop=stop,
        tenant=(sys.executable, str(script)),
        environment={**os.environ, **(environment or {})},
    )


def scenario_of(path: Path, sharing: str, *words: str) -> Path:
    """Write a scenario: a command of at most 300 seconds alone, and two of them that share."""
    cases = [
        {"name": "alone", "tenants": [{"work": "job"}]},
        {"name": "two", "sharing": sharing, "tenants": [{"work": "job", "count": 2}]},
    ]
    works = {"job": {"kind": "command", "command": list(words)}}
    rounds = {"seconds": 300, "repetitions": 1}
    path.write_text(json.dumps({"answers": "Which?", **rounds, "works": works, "cases": cases}))
    return path


def command(*words: str, seconds: float = 20.0, **fields: object) -> Workload:
    """Return the work of a command."""
    return Workload.model_validate(
        {"kind": WorkloadKind.COMMAND, "seconds": seconds, "command": words, **fields}
    )
