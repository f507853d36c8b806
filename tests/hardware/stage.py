"""A node for the card: the driver as a process, the kubelet's side of its socket, an API server.

The API server is that of the contract tests, in this process; no cluster is touched, and all files
are below one folder.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed import mps
from testbed.api import Object, thing
from testbed.apiserver.server import ApiServer
from testbed.claims import allocation, claim
from testbed.commands import wait_until
from testbed.driver import DriverProcess, Place, SupervisorProcess
from testbed.kubelet import ClaimName, KubeletClient

from hardware.card import Card

NODE = "node-1"
_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A prepared claim, and the CDI devices that its containers get."""

    name: ClaimName
    cdi_devices: tuple[str, ...]


class Stage:
    """Start it before use, and stop it."""

    def __init__(self, folder: Path, card: Card, mark: Mapping[str, str]) -> None:
        """Take a folder to make, and the variable of all processes."""
        self.card = card
        self._mark = dict(mark)
        folder.mkdir(parents=True, exist_ok=True)
        self.api = ApiServer()
        self.place = Place.below(folder, folder / "kubeconfig", card.root, node=NODE)
        own = {"SYS_ROOT": str(card.sys), "PROC_ROOT": str(card.proc)}
        quick = {"RESCAN_INTERVAL": "0.5", "SHUTDOWN_DELAY": "0"}
        self.driver = DriverProcess(self.place, folder / "driver.log", {**own, **quick, **mark})
        self._own = own
        self.shares = folder / "shares.yaml"
        self._numbers = 0
        self._kubelet: KubeletClient | None = None
        self._supervisor: SupervisorProcess | None = None

    def start(self) -> None:
        """Start API server and driver, and register it as a kubelet does."""
        self.api.start()
        self.api.put(thing("Node", NODE) | {"metadata": {"name": NODE, "uid": "node-uid"}})
        self.api.write_kubeconfig(self.place.kubeconfig)
        self.shares.write_text("version: v1\n")
        self.driver.env["SHARE_CONFIG"] = str(self.shares)
        self._start_driver()

    def _start_driver(self) -> None:
        self.driver.start()
        self._kubelet = KubeletClient(self.place.registry)
        self._kubelet.register(driver=self.driver)

    def set_driver(self, **settings: str) -> None:
        """Run the driver with further settings, by their variables."""
        if settings.items() <= self.driver.env.items():
            return
        self._stop_driver()
        self.driver.env |= settings
        self._start_driver()

    def _stop_driver(self) -> None:
        if self._kubelet is not None:
            self._kubelet.__exit__()
            self._kubelet = None
        if self.driver.running():
            self.driver.stop()

    def stop(self) -> None:
        """Stop everything."""
        self._stop_driver()
        self.stop_supervisor()
        self.api.stop()

    def start_supervisor(self, *, sets_compute_mode: bool) -> None:
        """Run an MPS supervisor beside the driver."""
        self.driver.check_running()
        environment = {**self._own, **self._mark, "SHM_SIZE": "64Mi"}
        environment["COMPUTE_MODE"] = str(sets_compute_mode).lower()
        log = self.place.plugins.with_name("supervisor.log")
        self._supervisor = SupervisorProcess(self.place, log, environment)
        self._supervisor.start()
        self._supervisor.wait_log("mps supervisor started")

    def stop_supervisor(self) -> None:
        """Stop it, and what it started."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.stop()
            mps.end_all(self.place.plugins)

    def devices(self) -> list[Object]:
        """The devices that are published."""
        return [
            device
            for slice_ in self.api.objects("resourceslices")
            for device in slice_["spec"].get("devices", ())
        ]

    def wait_device(self, prefix: str) -> str:
        """Wait until a device whose name begins like this is published; return its name."""

        def look() -> str | None:
            self.driver.check_running()
            names = sorted(device["name"] for device in self.devices())
            return next((name for name in names if name.startswith(prefix)), None)

        return wait_until(look, f"a device {prefix}… in a slice", timeout=_SECONDS, interval=0.05)

    def prepare(self, devices: Sequence[str], config: Object | None = None) -> Prepared:
        """Prepare an allocated claim. Raises TestbedError with the driver's words."""
        self._numbers += 1
        name = ClaimName(
            namespace="default", name=f"claim-{self._numbers}", uid=f"uid-{self._numbers}"
        )
        made = claim(name.name)
        made["metadata"] |= {"namespace": name.namespace, "uid": name.uid}
        made["status"] = allocation(NODE, *devices, config=config)
        pod = {"resource": "pods", "name": "pod", "uid": f"pod-{os.getpid()}"}
        made["status"]["reservedFor"] = [pod]
        self.api.put(made)
        answers: Any = self.kubelet.must_prepare(name)
        given = answers[name.uid].devices
        cdi_ids = (cdi_id for device in given for cdi_id in device.cdi_device_ids)
        return Prepared(name=name, cdi_devices=tuple(cdi_ids))

    def unprepare(self, claim: Prepared) -> None:
        """Unprepare a claim. Raises TestbedError with the driver's words."""
        self.kubelet.must_unprepare(claim.name)

    @property
    def kubelet(self) -> KubeletClient:
        """The kubelet's side."""
        if self._kubelet is None:
            raise AssertionError("the stage is not started")
        return self._kubelet
