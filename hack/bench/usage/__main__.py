"""`python hack/bench/usage`: what one look at who uses a node's GPUs costs, as JSON.

A simulated node with 8 H100, each in 10 shares with a claim, and two processes on each share. NVML
is the simulated one by the real pynvml, and procfs a folder in its form. What counts is the CPU of
this process: what a scrape takes of the node.
"""

import json
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

# Python put this folder on its path; all packages of hack/ lie in hack/.
sys.path[0] = str(Path(__file__).resolve().parents[2])

from dra_driver.claims.model.claim import ClaimRef, ClaimUid, ConsumerPod
from dra_driver.claims.model.record import ClaimRecord, DeviceRecord, RecordState
from dra_driver.devices.device import Device, Whole
from dra_driver.devices.model import GpuUuid
from dra_driver.devices.nvml.library import NvmlLibrary
from dra_driver.ops.metrics import Metrics
from dra_driver.simulator.machine import Machine
from dra_driver.simulator.processes import Activity, let_do
from dra_driver.usage.model import Known
from dra_driver.usage.node import NodeLook
from dra_driver.usage.processes import FOLDER, Processes, container_names
from dra_driver.usage.sampler import Sampler
from dra_driver.usage.series import series

SHARES, PROCESSES, ROUNDS = 10, 2, 20
MIB = 1 << 20


class Node:
    """The machine, its processes, and the claims that they are of."""

    def __init__(self, root: Path) -> None:
        self.machine = Machine.create(root, "h100x8")
        self.proc = self.machine.proc_root
        (self.proc / "self").symlink_to("1")
        self.links = root / FOLDER
        self.links.mkdir(parents=True)
        self.records: list[ClaimRecord] = []
        pid = 1000
        for gpu in self.machine.gpus:
            for share in range(SHARES):
                pod, container = str(uuid.uuid4()), uuid.uuid4().hex * 2
                name = f"job-{gpu.minor}-{share}"
                (self.links / f"{name}_team_ctr-{container}.log").touch()
                self.records.append(_record(GpuUuid(gpu.uuid), name, pod))
                for _ in range(PROCESSES):
                    pid += 1
                    self._run(gpu.uuid, pid, f"/kubepods/burstable/pod{pod}/{container}")

    def _run(self, gpu: str, pid: int, group: str) -> None:
        self.machine.hold_instance(gpu, pid=pid, memory=100 * MIB)
        let_do(self.machine, pid, Activity(sm=5))
        (self.proc / str(pid)).mkdir()
        fields = " ".join(["S", "1", *["0"] * 17, "1", *["0"] * 30])
        (self.proc / f"{pid}/stat").write_text(f"{pid} (python3) {fields}\n")
        lines = [f"{number}:x:{group}\n" for number in range(1, 13)]
        (self.proc / f"{pid}/cgroup").write_text("".join([*lines, f"0::{group}\n"]))

    def known(self) -> Known:
        return Known(records=self.records, names=container_names(self.links))


def _record(gpu: GpuUuid, name: str, pod: str) -> ClaimRecord:
    entry = DeviceRecord(
        name=name,
        device=Device(base=Whole(gpu=gpu)),
        pool="node",
        request_names=("gpu",),
        cdi_device_ids=(),
    )
    return ClaimRecord(
        ref=ClaimRef(uid=ClaimUid(name), namespace="team", name=name),
        boot_id="boot",
        state=RecordState.PREPARED,
        devices=(entry,),
        steps=(),
        pods=(ConsumerPod(name=name, uid=pod),),
    )


def measured(work: Callable[[], object], rounds: int = ROUNDS) -> dict[str, float]:
    cpu, wall = [], []
    for _ in range(rounds):
        before = time.process_time(), time.monotonic()
        work()
        cpu.append(1000 * (time.process_time() - before[0]))
        wall.append(1000 * (time.monotonic() - before[1]))
    return {
        "cpuMilliseconds": round(statistics.median(cpu), 2),
        "wallMilliseconds": round(statistics.median(wall), 2),
    }


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder) / "machine")
        library = NvmlLibrary(node.machine.library)
        library.open()
        look = NodeLook(library, Processes(node.proc), node.known)

        def scrape(sampler: Sampler) -> int:
            metrics = Metrics(driver="gpu.nvidia.com", node="n", version="0")
            metrics.watch_usage(lambda: series(sampler.current()))
            environ: dict[str, Any] = {}
            setup_testing_defaults(environ)
            answer: Any = lambda *_: None  # noqa: E731
            return len(b"".join(metrics.wsgi_app(environ, answer)))

        fresh = Sampler(look.look, fresh_seconds=1000.0)
        found = {
            "gpus": len(node.machine.gpus),
            "processes": len(node.machine.gpus) * SHARES * PROCESSES,
            "bytes": scrape(fresh),
            "look": measured(look.look),
            "scrapeWithALook": measured(lambda: scrape(Sampler(look.look))),
            "scrapeFromTheLastLook": measured(lambda: scrape(fresh)),
        }
        library.close()
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
