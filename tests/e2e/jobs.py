"""Processes of containers that have memory of simulated GPUs: played, as there is no GPU."""

from pathlib import Path

from dra_driver.simulator.layout import ProcessKind
from dra_driver.simulator.machine import Machine
from dra_driver.simulator.processes import Activity
from e2e.scene import NAMESPACE, Scene

MIB = 1 << 20


class Jobs:
    """Processes of containers that have memory of GPUs; at the end they have none."""

    def __init__(self, scene: Scene) -> None:
        self._scene, self._machine = scene, Machine(scene.node.place.driver_root)
        self._started: list[tuple[str, int]] = []

    def start(self, pod: str, device: str, mib: int, kind: ProcessKind, sm: int) -> int:
        """Let the first process of a container compute on a GPU or a MIG device."""
        pid = self._pid(pod)
        self.put(pid, device, mib, kind, sm)
        return pid

    def put(self, pid: int, device: str, mib: int, kind: ProcessKind, sm: int) -> None:
        """Let a process of this host do so: `sm` in percent."""
        if device.startswith("MIG"):
            self._machine.hold_instance(device, pid=pid, memory=mib * MIB)
        else:
            assert self._machine.take_memory(device, mib * MIB, pid=pid)
        self._machine.let_do(pid, Activity(kind=kind, sm=sm))
        self._started.append((device, pid))

    def end(self) -> None:
        for device, pid in self._started:
            if device.startswith("MIG"):
                self._machine.release_instance(device, pid=pid)
            else:
                self._machine.release_memory(device, pid=pid)

    def _pid(self, pod: str) -> int:
        found = self._scene.api.get("Pod", pod, NAMESPACE)["status"]["containerStatuses"]
        name = found[0]["containerID"].rpartition("/")[2]
        pids = (int(one.name) for one in Path("/proc").glob("[0-9]*"))
        return min(pid for pid in pids if name in groups_of(pid))


def groups_of(pid: int) -> str:
    """What a process says of its control groups; nothing once it has ended."""
    try:
        return Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return ""
