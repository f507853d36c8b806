"""How each trouble of chaos.troubles begins on a node, and how it ends."""

import signal
from collections.abc import Callable, Mapping

from testbed import mps
from testbed.commands import run
from testbed.disk import SmallDisk
from testbed.driver import DRIVER_NAME, DriverProcess
from testbed.machine import DRIVER
from testbed.node import GpuNode
from testbed.reboot import kill_all, reboot, wipe_cdi

from chaos.troubles import GREEDY

_HANG_MS = 3_600_000
"""A call that hangs, in milliseconds: longer than any round."""

ENDS = {
    "driver-kill": ("driver",),
    "driver-stop": ("driver",),
    "supervisor-kill": ("MPS supervisor",),
    "nvml-kill": ("driver", "MPS supervisor"),
}
"""Which of our processes each trouble ends, or may end."""

Strike = Callable[[str], None]


class Strikes:
    """Begins and ends troubles on a node. `disk` is the driver's own."""

    def __init__(self, node: GpuNode, disk: SmallDisk) -> None:
        self._node = node
        self._disk = disk
        self.reboots = 0
        self.api_is_up = True

    def begin(self, name: str, detail: str) -> None:
        """Begin a trouble of the node."""
        self._begins[name](detail)

    def end(self, name: str, detail: str) -> None:
        """End a lasting trouble."""
        self._ends[name](detail)

    @property
    def _begins(self) -> Mapping[str, Strike]:
        cluster, disk = self._node.cluster, self._disk
        return {
            "driver-kill": lambda _: self._node.driver.kill(),
            "driver-stop": lambda _: _stop(self._node.driver),
            "driver-freeze": lambda _: _send(self._node.driver, signal.SIGSTOP),
            "supervisor-kill": lambda _: self._node.supervisor.kill(),
            "supervisor-freeze": lambda _: _send(self._node.supervisor, signal.SIGSTOP),
            "mps-daemons-kill": lambda _: kill_all(mps.processes(self._node.place.plugins)),
            "kubelet-kill": lambda _: cluster.stop("kubelet", signal="KILL"),
            "runtime-kill": lambda _: cluster.stop(cluster.runtime, signal="KILL"),
            "apiserver-kill": lambda _: self._stop_api(),
            "disk-full": lambda _: disk.fill(),
            "disk-read-only": lambda _: disk.forbid_writing(),
            "nvml-fail": self._fail_call,
            "nvml-hang": self._hang_call,
            "nvml-kill": self._kill_at_call,
            "gpu-lose": lambda slot: self._fault("lose", "--gpu", slot),
            "gpu-remove": lambda slot: self._fault("remove", "--gpu", f"minor:{slot}"),
            "gpu-xid": lambda slot: self._simulate("set", "--gpu", slot, "--xid", "31"),
            "kernel-driver-unload": lambda _: self._fault("unload"),
            "cdi-wipe": lambda _: wipe_cdi(self._node),
            "slices-wipe": lambda _: self._wipe_slices(),
            "reboot": lambda _: self._reboot(),
            GREEDY: lambda _: None,  # the campaign knows who runs
        }

    @property
    def _ends(self) -> Mapping[str, Strike]:
        node, cluster = self._node, self._node.cluster
        return {
            "driver-kill": lambda _: node.driver.start(),
            "driver-stop": lambda _: node.driver.start(),
            "driver-freeze": lambda _: _send(node.driver, signal.SIGCONT),
            "supervisor-kill": lambda _: node.supervisor.start(),
            "supervisor-freeze": lambda _: _send(node.supervisor, signal.SIGCONT),
            "kubelet-kill": lambda _: cluster.start("kubelet"),
            "runtime-kill": lambda _: cluster.start(cluster.runtime),
            "apiserver-kill": lambda _: self._start_api(),
            "disk-full": lambda _: self._disk.empty(),
            "disk-read-only": lambda _: self._disk.allow_writing(),
            "nvml-fail": lambda _: self._clear_calls(),
            "nvml-hang": lambda _: self._clear_calls(),
            "nvml-kill": lambda _: self._end_kill(),
            "gpu-lose": lambda slot: self._fault("restore", "--gpu", slot),
            "gpu-remove": lambda slot: self._fault("add", "--gpu", f"minor:{slot}"),
            "kernel-driver-unload": lambda _: self._fault("load"),
        }

    # The API server

    def _stop_api(self) -> None:
        self.api_is_up = False
        self._node.cluster.stop("kube-apiserver", signal="KILL")

    def _start_api(self) -> None:
        self._node.cluster.start("kube-apiserver")
        self.api_is_up = True

    # Calls of NVML

    def _fail_call(self, detail: str) -> None:
        function, slot, code = detail.split()
        self._fault("fail", "--function", function, "--gpu", slot, "--code", code)

    def _hang_call(self, detail: str) -> None:
        function, slot = detail.split()
        hang = ("--delay-ms", str(_HANG_MS))
        self._fault("slow", "--function", function, "--gpu", slot, *hang)

    def _kill_at_call(self, detail: str) -> None:
        function, slot, when = detail.split()
        words = ("--after",) if when == "after" else ()
        self._fault("kill", "--function", function, "--gpu", slot, *words)

    def _clear_calls(self) -> None:
        """Let all calls answer again, also those that hang at present."""
        self._fault("clear")

    def _end_kill(self) -> None:
        self._clear_calls()
        for process in (self._node.driver, self._node.supervisor):
            if not process.running():
                process.start()

    # Files and objects

    def _wipe_slices(self) -> None:
        if not self.api_is_up:
            return
        api = self._node.cluster.api
        for each in api.all("ResourceSlice"):
            if each["spec"]["driver"] == DRIVER_NAME:
                api.delete("ResourceSlice", each["metadata"]["name"])

    # The machine

    def _reboot(self) -> None:
        reboot(self._node)
        self.reboots += 1

    def _fault(self, kind: str, *words: str) -> None:
        self._simulate("fault", kind, *words)

    def _simulate(self, *words: str) -> None:
        run((DRIVER, "simulate", *words, "--root", self._node.machine.root))


def _stop(process: DriverProcess) -> None:
    process.stop(timeout=60)


def _send(process: DriverProcess, number: signal.Signals) -> None:
    if process.running():
        process.send(number)
