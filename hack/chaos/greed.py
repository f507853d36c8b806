"""Containers that take GPU memory: one takes more than its limit, all others stay within theirs.

In: the claims of long-running workloads, and the containers of their pods. Out: memory of simulated
GPUs, as if their first processes had it, because nothing computes there; and which container must
be ended for it. A container without a limit takes just as much and is not ended.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from testbed.commands import TestbedError
from testbed.machine import SimulatedMachine

from chaos.holds import ClaimSeen
from chaos.workloads import kind_of, pods_of

GREEDY_MIB = 30_000
"""More than a share or the config of `mps` allows; a GPU has room for two."""

MODEST_MIB = 1_000


class Memory:
    """The workloads' memory of a machine's GPUs."""

    def __init__(self, machine: SimulatedMachine) -> None:
        self._machine = machine
        self._taken: dict[str, set[tuple[str, int]]] = {}
        """GPUs' UUIDs and processes, by workload."""

    def take(self, claims: Iterable[ClaimSeen], ids: Mapping[str, str], number: int) -> str | None:
        """Let all take memory; return the pod that takes too much, None if no pod has a limit.

        `ids` are the containers' by pod, and `number` chooses one.
        """
        pids = first_processes(ids.values())
        having = [
            (pod, claim, pids[ids[pod]])
            for claim in sorted(claims, key=lambda each: each.workload)
            for pod in pods_of(claim.workload)
            if ids.get(pod) in pids
        ]
        limited = [pod for pod, claim, _ in having if is_limited(claim)]
        greedy = limited[number % len(limited)] if limited else None
        for pod, claim, pid in having:
            is_modest = is_limited(claim) and pod != greedy
            for gpu in {*claim.gpus, *claim.shares}:
                mib = MODEST_MIB if is_modest else GREEDY_MIB
                by_mps = claim.domain is not None
                try:
                    self._machine.compute(gpu, mib, pid=pid, by_mps=by_mps)
                except TestbedError:  # its GPU is lost at present
                    greedy = None if pod == greedy else greedy
                else:
                    self._taken.setdefault(claim.workload, set()).add((gpu, pid))
        return greedy

    def give_back(self, workload: str) -> None:
        """End the processes of a workload on GPUs."""
        for gpu, pid in self._taken.pop(workload, ()):
            self._machine.release_memory(gpu, pid=pid)

    def give_all_back(self) -> None:
        """End all processes on GPUs."""
        for workload in tuple(self._taken):
            self.give_back(workload)


def is_limited(claim: ClaimSeen) -> bool:
    """Whether its memory of whole GPUs has a limit."""
    return bool(claim.shares or (claim.gpus and kind_of(claim.workload).domains))


def first_processes(containers: Iterable[str]) -> dict[str, int]:
    """Return the first process of each of these containers that has one."""
    wanted = {*containers}
    found: dict[str, int] = {}
    for pid in sorted(int(entry.name) for entry in Path("/proc").glob("[0-9]*")):
        with suppress(OSError):  # it has ended
            groups = Path(f"/proc/{pid}/cgroup").read_text()
            found |= {each: pid for each in wanted - found.keys() if each in groups}
    return found
