"""Looks at who uses the GPUs of this node: NVML is asked, then procfs for each process it names.

The time is taken before NVML is asked, so that a PID that was used again meanwhile is noticed.
GPUs are asked at the same time, and one that does not answer hides no other.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from dra_driver.claims.model.claim import PodsOf
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.devices.load import GpuLoad
from dra_driver.devices.nvml.library import NvmlLibrary
from dra_driver.devices.session import DriverSession
from dra_driver.errors import DeviceError, StateError, TransientError
from dra_driver.mps.requests import DomainRequests
from dra_driver.usage import model
from dra_driver.usage.model import GpuUse, Known, NodeUse
from dra_driver.usage.processes import FOLDER, Processes, SeenProcess, container_names, now_ticks

ANSWER_SECONDS = 3.0
"""How long GPUs may take to answer; one that is busy, such as while it is divided, is left out."""


class Seen(Struct, frozen=True, kw_only=True):
    """GPUs' answers, and the processes on them by PID. `silent` did not answer, with the reason."""

    loads: Sequence[GpuLoad]
    silent: Mapping[int, str]
    processes: Mapping[int, SeenProcess]

    def used(self, known: Known) -> Iterator[GpuUse]:
        """Yield who uses the GPUs."""
        return (model.used(load, self.processes, known) for load in self.loads)


class NodeLook:
    """Looks once at a time, for any number of callers. For one thread."""

    def __init__(
        self,
        loads: NvmlLibrary | DriverSession,
        processes: Processes,
        known: Callable[[], Known],
        *,
        sees_processes: bool = True,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """Take what answers; `sees_processes` if NVML reports the processes of containers.

        `known` is what is known of the node besides NVML's answers, or raises StateError.
        """
        self._answer_seconds = answer_seconds
        self._loads = loads
        self._processes = processes
        self.known = known
        self._sees_processes = sees_processes

    def look(self) -> NodeUse:
        """Return who uses the GPUs now.

        Raises DeviceError if NVML refuses or does not answer, TransientError if it is not open at
        this moment, and StateError if the records of claims cannot be read.
        """
        seen = self.see(range(self._loads.gpu_count()))
        known = self.known()
        return NodeUse(
            gpus=tuple(seen.used(known)),
            silent=seen.silent,
            sees_processes=self._sees_processes,
        )

    def see(self, indices: Sequence[int], *, sampled: bool = True) -> "Seen":
        """Return who is on some of the GPUs now, by NVML's indices, whatever claims they have."""
        before = now_ticks()
        loads, silent = self._ask_all(indices, sampled=sampled)
        pids = sorted({process.pid for load in loads for process in load.processes})
        who = {pid: self._processes.see(pid, before=before) for pid in pids}
        processes = {pid: seen for pid, seen in who.items() if seen is not None}
        return Seen(loads=loads, silent=silent, processes=processes)

    def _ask_all(
        self, indices: Sequence[int], *, sampled: bool
    ) -> tuple[Sequence[GpuLoad], Mapping[int, str]]:
        """Return the answers of GPUs, and the reasons of those that do not answer, by index."""
        answers: dict[int, GpuLoad | str] = {}

        def ask(index: int) -> None:
            try:
                answers[index] = self._loads.gpu_load(index, sampled=sampled)
            except (DeviceError, TransientError) as error:
                answers[index] = str(error)

        threads = [
            threading.Thread(target=ask, args=(index,), name=f"usage-{index}", daemon=True)
            for index in indices
        ]
        end = time.monotonic() + self._answer_seconds
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        late = f"it has not answered in {self._answer_seconds:g} s"
        answered = {index: answers.get(index, late) for index in indices}
        loads = [load for load in answered.values() if isinstance(load, GpuLoad)]
        return loads, {index: why for index, why in answered.items() if isinstance(why, str)}


def known_below(
    directory: Path,
    roots: Sequence[Path],
    pods_of: PodsOf,
    records: Callable[[], Iterable[ClaimRecord]],
) -> Known:
    """Return what is known; damaged records are left out.

    `roots` are where the host's root may be mounted; the first with the kubelet's links to
    containers' logs is taken. Raises StateError if the records cannot be read.
    """
    stored = tuple(records())
    requests = DomainRequests(directory / "mps", lambda: 0.0)
    daemons = []
    for domain in requests.list():
        try:
            status = requests.status(domain)
        except StateError:
            continue  # its servers count as processes of no pod
        if status is not None and status.daemon is not None:
            daemons.append(status.daemon)
    return Known(
        records=stored,
        pods=pods_of({record.ref.uid for record in stored}),
        names=container_names(*(root / FOLDER for root in roots)),
        daemons=tuple(daemons),
    )
