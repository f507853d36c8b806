"""Takes over the node that a command's settings describe.

In: the settings, and the node: NVIDIA's checkpoint, GPUs, the kubelet. Out: records
(admin/takeover/take_over.py), and log lines. The API server is not contacted.
"""

import time
from importlib.metadata import version
from pathlib import Path
from typing import TextIO

from msgspec import Struct

from dra_driver.admin.takeover.settings import TakeOverSettings
from dra_driver.admin.takeover.take_over import TakeOver, advice
from dra_driver.cdi.roots import roots_of
from dra_driver.claims.state.ledger import Ledger
from dra_driver.claims.state.locks import locks_of
from dra_driver.devices.model import Inventory
from dra_driver.devices.session import DriverSession
from dra_driver.errors import ConflictError, DriverError, SetupError
from dra_driver.host.process import read_boot_id
from dra_driver.kubelet.pod_resources import PodResources
from dra_driver.kubelet.rivals import Rivals
from dra_driver.node.feature_gates import DYNAMIC_MIG, PASSTHROUGH, gate_value
from dra_driver.node.passthrough import passthrough_gpus
from dra_driver.ops.logs import configure_logs
from dra_driver.slices.offer.mig import MigSettings

_PAUSE_SECONDS = 1.0


class _Looking(Struct, frozen=True):
    """Reads the GPUs each time it is asked."""

    session: DriverSession

    def current(self) -> Inventory:
        try:
            return self.session.look()
        except DriverError as error:
            return Inventory(driver_version=None, cuda_version=None, problem=str(error))


def take_over(settings: TakeOverSettings, directory: Path, stream: TextIO) -> None:
    """Take over what is in the driver's directory, or report what would be, as log lines.

    Raises SetupError if NVIDIA's DRA driver runs, or the node cannot be read.
    """
    configure_logs(level="info", form="console" if settings.plan else "auto", stream=stream)
    roots, clock = roots_of(settings), time.monotonic
    boot_id, ours = read_boot_id(roots.proc), version("dra-driver")
    gates = settings.feature_gates
    mig = MigSettings.of(settings.mig, "", gate=gate_value(DYNAMIC_MIG, gates))
    wants_vfio = settings.vfio or gate_value(PASSTHROUGH, gates) is True
    session = DriverSession(
        driver_root=roots.driver,
        dev=roots.dev,
        proc_root=roots.proc,
        sys_root=roots.sys,
        with_passthrough=passthrough_gpus(roots).look if wants_vfio else lambda seen: seen,
    )
    ledger = Ledger(directory, boot_id=boot_id, version=ours)
    locks = locks_of(ledger, clock)
    work = TakeOver(
        ledger,
        locks,
        _Looking(session),
        mig.switches_modes,
        clock,
        names=PodResources(settings.kubelet_plugins_directory_path, roots.host_roots()).claims,
        rival=Rivals(directory / "dra.sock").foreign,
        only_plan=settings.plan,
    )
    try:
        end = clock() + settings.wait
        while not work.run() and not settings.plan and clock() < end:
            time.sleep(_PAUSE_SECONDS)
    finally:
        locks.close()
        session.close()
    error = work.left.get("")
    if isinstance(error, ConflictError):
        raise SetupError(f"{error}: {advice(error)}")
