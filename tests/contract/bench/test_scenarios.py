"""Scenarios as processes: every tenant has its own work, limits, device and moment.

Tenants of most tests are a script that says what tenants say, and keeps what it was given. The last
ones run shipped scenarios on simulated machines, with the real tenants, NVML and MPS daemon.
"""

import json
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import bench_processes
from bench_reports import asked
from dra_driver.bench.model import Case
from dra_driver.bench.processes import ProcessRunner
from dra_driver.bench.scenarios.plan import planned
from dra_driver.bench.scenarios.read import read_scenario, shipped
from dra_driver.bench.session import run_all
from dra_driver.bench.stopping import Stop
from dra_driver.bench.strategies import Strategy
from dra_driver.simulator.driver_root import Options
from dra_driver.simulator.machine import Machine

SCRIPT = """
import json, os, sys, time
from dra_driver.bench.tenant.supervised import uptime
spec = json.loads(sys.argv[1])
def say(**facts):
    print(json.dumps({"bench": 1, **facts}, separators=(",", ":")), flush=True)
folder = os.environ["KEPT"]
known = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
         "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_CLIENT_PRIORITY")
facts = {"environment": {name: os.environ[name] for name in known if name in os.environ},
         "work": spec["work"], "gpu": spec["gpu"], "watches": spec["watches"],
         "launched": time.monotonic()}
time.sleep(0.2)
say(event="ready", at=uptime(), context_seconds=0.1, memory_mib=64)
facts["ready"] = time.monotonic()
while not os.path.exists(spec["start"]):
    time.sleep(0.01)
facts["moment"] = float(open(spec["start"]).read())
with open(os.path.join(folder, f"{spec['number']}.json"), "w") as file:
    json.dump(facts, file)
say(event="done", began=uptime(), seconds=2.0, steps=10, unit="x",
    units=spec["work"]["rate"] * (1 + spec["work"]["seed"]))
"""
WORKS = """
answers: Which?
seconds: {seconds}
warm_up: {warm_up}
works:
  light: {{kind: inference, rate: 20}}
  heavy: {{kind: inference, rate: 60}}
  job: {{kind: command}}
cases:
"""
MEMORY = 8192


def runner(folder: Path, mig: Mapping[str, tuple[str, ...]] | None = None) -> ProcessRunner:
    return bench_processes.runner(folder, {"KEPT": str(folder)}, tenant=SCRIPT, mig=mig)


def strategies(
    own: ProcessRunner, cases: str, seconds: float = 0.1, warm_up: float = 0.0
) -> tuple[Strategy, ...]:
    text = WORKS.format(seconds=seconds, warm_up=warm_up) + textwrap.dedent(cases)
    scenario = read_scenario(text, "test.yaml")
    plan = planned(
        "test", scenario, memory_mib=MEMORY, profiles=own.offer.profiles, obstacle=own.obstacle
    )
    return plan.strategies


def kept(folder: Path, case: Case) -> list[dict[str, Any]]:
    assert case.state == "measured", case.reason
    return [
        json.loads((folder / f"{number}.json").read_text()) for number in range(len(case.tenants))
    ]


def test_each_tenant_has_its_work_and_begins_after_the_others_as_it_says(tmp_path: Path) -> None:
    own = runner(tmp_path)
    (strategy,) = strategies(
        own,
        """
        - name: both
          sharing: time-slicing
          tenants:
          - {work: light, after: 1.5}
          - {work: heavy, launch: 1, with: {width: 512}}
        """,
    )
    case = own.run(strategy, 1)
    light, heavy = kept(tmp_path, case)
    assert (light["work"]["rate"], light["work"]["width"]) == (20.0, 1024)
    assert (heavy["work"]["rate"], heavy["work"]["width"]) == (60.0, 512)
    assert light["moment"] - heavy["moment"] == pytest.approx(1.5, abs=0.01)
    assert heavy["launched"] > light["ready"]
    assert [strategy.role(tenant.number) for tenant in case.tenants] == ["light", "heavy"]


def test_tenants_of_a_mixed_layout_have_mig_devices_of_their_sizes(tmp_path: Path) -> None:
    own = runner(tmp_path, {"1g.10gb": ("MIG-a", "MIG-b"), "3g.40gb": ("MIG-c",)})
    alone, mixed, many = strategies(
        own,
        """
        - name: alone
          tenants: [{work: light}]
        - name: mixed
          tenants:
          - {work: heavy, profile: largest}
          - {work: light, profile: 1g, count: 2}
        - name: many
          tenants: [{work: light, profile: 1g, count: 3}]
        """,
    )
    assert own.obstacle(alone).startswith("the GPU is in MIG mode")
    assert own.obstacle(many).startswith("one GPU has room for 2 of 1g.10gb, but 3 are needed")
    found = kept(tmp_path, own.run(mixed, 1))
    devices = [one["environment"]["CUDA_VISIBLE_DEVICES"] for one in found]
    assert devices == ["MIG-c", "MIG-a", "MIG-b"]


def test_rounds_have_other_arrivals_and_orders_and_stop_when_their_time_is_over(
    tmp_path: Path,
) -> None:
    own = runner(tmp_path)
    found = strategies(
        own,
        """
        - name: case $number
          matrix: {number: [1, 2, 3, 4]}
          tenants: [{work: light}]
        """,
    )
    hours = iter(float(3600 * at) for at in range(100))
    said: list[str] = []
    cases, interrupted = run_all(
        own,
        found,
        asked(found, repetitions=3, seed=1),
        say=said.append,
        stop=Stop(),
        minutes=60 * 9,
        clock=lambda: next(hours),
    )
    assert not interrupted
    assert [case.repetition for case in cases] == [0] * 4 + [1] * 4 + [2] * 4
    names = [case.strategy.name for case in cases]
    assert names[:4] == [one.name for one in found]
    assert sorted(names[4:8]) == sorted(names[8:]) == names[:4]
    assert names[4:8] != names[:4]
    # The script does as much as its seed says, which is another in each round.
    measured = [case for case in cases if case.state == "measured"]
    rates = [one.tenants[0].result.throughput for one in measured if one.tenants[0].result]
    assert rates == [20.0] * 4 + [30.0] * 4
    assert {case.reason for case in cases[8:]} == {"the 540 minutes of the run were over"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "driver"


def bench(root: Path, *words: object) -> dict[str, Any]:
    """Run the command on a simulated machine; return its report."""
    out = root.parent / "out"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "dra_driver", "bench", "processes", "--name", str(out)),
            *("--nvidia-driver-root", str(root), "--seconds", "0.2"),
            *map(str, words),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(out.with_suffix(".json").read_text())
    assert report["card"]["is_simulated"]
    assert not any(case["tenants"] for case in report["cases"])
    assert "These GPUs are simulated" in done.stdout
    assert "times alone" not in done.stdout
    assert not out.with_suffix(".png").exists()
    return report  # type: ignore[no-any-return]


def states(report: dict[str, Any]) -> dict[str, str]:
    return {case["strategy"]["name"]: case["state"] for case in report["cases"]}


LIKE_OTHERS = ("unlimited", "30 to 70", "70 to 30 with batch below normal priority")
"""Cases of the shipped scenario whose tenants are told nothing that those of others are not."""


class TestOnASimulatedMachine:
    """With NVML, NVIDIA's MPS daemon, and tenants that find that their GPU is simulated."""

    def test_limits_and_priorities_reach_clients_of_mps(
        self, root: Path, tmp_path: Path, real_userspace: None
    ) -> None:
        machine = Machine.create(root, "h100x8", Options(userspace="real"))
        fewer = yaml.safe_load(shipped()["mps-limits"].read_text())
        fewer["cases"] = [case for case in fewer["cases"] if case["name"] not in LIKE_OTHERS]
        path = tmp_path / "fewer.yaml"
        path.write_text(yaml.safe_dump(fewer))
        try:
            report = bench(root, "--scenario", path, "--repetitions", "1")
        finally:
            machine.destroy()
        assert set(states(report).values()) == {"passed"}
        seen = {case["strategy"]["name"]: case["seen"] for case in report["cases"]}
        assert seen["equal limits"] == ["active threads: 50 %", "pinned memory: 40779 MiB"]
        assert "tenant 0: CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=70" in seen["70 to 30"]
        assert "tenant 0: CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=57091M" in seen["70 to 30"]
        assert "tenant 1: CUDA_MPS_CLIENT_PRIORITY=1" in seen["batch below normal priority"]
        assert report["study"]["repetitions"] == 1
