"""A node with GPUs: a local cluster, a simulated machine, and the driver under its own identity."""

import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import yaml
from cluster.processes import Service

from testbed import mps as mps_daemons
from testbed.api import Object
from testbed.cluster import Cluster
from testbed.commands import TestbedError, wait_until
from testbed.credentials import NodeCredentials
from testbed.driver import DRIVER_NAME, DriverProcess, Place, SupervisorProcess
from testbed.machine import SimulatedMachine
from testbed.manifests import installed

_GRACE_S = 15.0


class GpuNode:
    """A node with everything that pods need to get GPUs.

    `folder` has all files besides the cluster's; `down` removes it. `driver_env` are additional
    settings of the driver. With `mps` there is an MPS supervisor, too, if it can work.
    `machine_options` are more arguments for `dra-driver simulate up`.
    """

    def __init__(  # noqa: PLR0913 (all that a node is made of)
        self,
        cluster: Cluster,
        folder: Path,
        *,
        profile: str = "h100x8",
        token_life: int = 3600,
        driver_env: Mapping[str, str] | None = None,
        mps: bool = False,
        machine_options: Sequence[str] = (),
    ) -> None:
        self.cluster = cluster
        self.folder = folder
        self.machine = SimulatedMachine(folder / "gpus", profile, machine_options)
        self._token_life = token_life
        self._driver_env = driver_env
        self._with_mps = mps
        self.share_configs = folder / "share-configs"
        # By this name a later program finds what this one leaves.
        self._driver_service = Service(name="driver", state=folder)
        self._supervisor_service = Service(name="mps-supervisor", state=folder)
        self._undo: list[Callable[[], None]] = []

    def up(self, tell: Callable[[str], None], *, detached: bool = False) -> None:
        """Bring everything up, in order, and report each step. `down` undoes what was done so far.

        A detached driver outlives this program, like everything else. Raises TestbedError if
        something is not available.
        """
        self.up_to_driver(tell)
        if self._with_mps and self.can_run_mps:
            self.start_supervisor(detached=detached)
            tell("MPS supervisor up")
        self.start_driver(detached=detached)
        tell("driver up, as the ServiceAccount dra-driver with a token bound to the node")

    def up_to_driver(self, tell: Callable[[str], None]) -> None:
        """Bring up everything except the driver, including its `credentials`."""
        self.up_bare(tell)
        self.install()
        tell("manifests applied: DeviceClass, ServiceAccount, RBAC, admission policy")

    def up_bare(self, tell: Callable[[str], None]) -> None:
        """Bring up a node with GPUs, without the driver."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._undo.append(self.cluster.down)
        self.cluster.up(tell)
        self._undo.append(self.machine.down)
        self.machine.up()
        tell(f"simulated machine: {self.machine.profile}")
        self.credentials = NodeCredentials(self.cluster, self.folder, life=self._token_life)
        self.place = Place(
            node=self.cluster.node,
            kubeconfig=self.credentials.kubeconfig,
            plugins=self.cluster.plugins,
            registry=self.cluster.registry,
            cdi_root=self.cluster.cdi_root,
            driver_root=self.machine.root,
        )

    def install(self) -> None:
        """Apply an installation without its pods: here the driver is a process of the host."""
        wanted = [each for each in installed() if each["kind"] != "DaemonSet"]
        self.cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(wanted))
        self.credentials.create()
        self._undo.append(self.credentials.stop)

    def start_driver(self, *, detached: bool = False) -> None:
        """Start the driver and wait until it has published its GPUs."""
        self.driver = DriverProcess(self.place, self.folder / "driver.log", self._driver_env)
        self._undo.append(self._stop_driver)
        self.driver.start(detached=detached)
        self._driver_service.note(self.driver.pid)
        self.wait_published()

    def without_driver(self, act: Callable[[], object], *, detached: bool = False) -> None:
        """Stop the driver during a block, for example to switch MIG mode by hand."""
        self.driver.stop()
        act()
        self.driver.start(detached=detached)
        self._driver_service.note(self.driver.pid)
        self.wait_published()

    @property
    def driver_settings(self) -> dict[str, str]:
        """The driver's settings, by their variables."""
        return dict(self.driver.env)

    @property
    def first_settings(self) -> dict[str, str]:
        """The settings with which the driver was first started."""
        return self.place.env() | dict(self._driver_env or {})

    def restart_driver(self, settings: Mapping[str, str]) -> None:
        """Restart the driver with other settings, and wait until it publishes with them."""

        def change() -> None:
            self.driver.env = dict(settings)

        self.without_driver(change, detached=True)
        self.driver.wait_log("slices published")  # slices of the former life exist already
        self.wait_published()

    def share(self, config: str) -> None:
        """Put a share config into `share_configs`, where the driver can look for it."""
        put_share_config(self.share_configs, config)

    @property
    def follow_log(self) -> str:
        """The command that shows what the driver logs."""
        return f"tail -f {self.driver.log}"

    @property
    def can_run_mps(self) -> bool:
        """Whether NVIDIA's MPS programs are available for the machine."""
        return mps_daemons.can_run_mps(self.machine.root)

    def start_supervisor(self, *, detached: bool = False) -> None:
        """Start the MPS supervisor. Everything except the driver has to be up."""
        self.supervisor = SupervisorProcess(self.place, self.folder / "mps-supervisor.log")
        self._undo.append(self._stop_supervisor)
        self.supervisor.start(detached=detached)
        self._supervisor_service.note(self.supervisor.pid)

    def wait_published(self, *, timeout: float = 120) -> int:
        """Wait until the driver's pool is complete and has devices; return how many."""

        def look() -> int:
            slices = self.slices()
            pools = {
                (each["pool"]["generation"], each["pool"]["resourceSliceCount"]) for each in slices
            }
            complete = len(pools) == 1 and all(count == len(slices) for _, count in pools)
            return len(self.devices()) if complete else 0

        return wait_until(look, "the driver to publish its GPUs", timeout=timeout)

    def slices(self) -> list[Object]:
        """The specs of the driver's slices."""
        specs = (each["spec"] for each in self.cluster.api.all("ResourceSlice"))
        return [spec for spec in specs if spec["driver"] == DRIVER_NAME]

    def devices(self) -> list[str]:
        """The names of all devices in the driver's slices."""
        return [device["name"] for each in self.slices() for device in each.get("devices") or []]

    def down(self) -> None:
        """Undo everything that was brought up, the last first; a failure does not stop it."""
        failures = []
        while self._undo:
            try:
                self._undo.pop()()
            except Exception as error:  # noqa: BLE001  # the rest has to go too
                failures.append(error)
        shutil.rmtree(self.folder, ignore_errors=True)
        if failures:
            raise ExceptionGroup("not everything could be torn down", failures)

    def clear(self) -> None:
        """Remove what an earlier program, however it ended, left of a node of this name."""
        for service in (self._driver_service, self._supervisor_service):
            service.stop(signal.SIGTERM, _GRACE_S)
        with suppress(TestbedError):  # there may be no cluster
            self.cluster.attach()
            mps_daemons.end_all(self.cluster.plugins)
        if self.machine.root.exists():
            self.machine.down()
        self.cluster.down()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _stop_driver(self) -> None:
        self.driver.stop()

    def _stop_supervisor(self) -> None:
        """Stop the supervisor, and the daemons that outlive it."""
        self.supervisor.stop()
        mps_daemons.end_all(self.place.plugins)


def put_share_config(folder: Path, config: str) -> None:
    """Put a share config into a folder, completely or not at all, like a ConfigMap's volume."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "..new"
    temporary.write_text(config)
    temporary.replace(folder / "default")
