"""Builds what gives GPUs to virtual machines on this node (`--vfio`)."""

from pathlib import Path

from dra_driver.cdi.roots import Roots
from dra_driver.devices.passthrough.bus import PciBus
from dra_driver.devices.passthrough.rules import PassthroughGpus, PassthroughRules
from dra_driver.sharing.passthrough import Passthrough

_HOST_DEV = "/dev"


def passthrough_gpus(roots: Roots) -> PassthroughGpus:
    """Return the finder of GPUs that virtual machines can have."""
    bus = PciBus(roots.sys)
    return PassthroughGpus(
        bus, PassthroughRules(bus, roots.proc), sys_root=roots.sys, dev=lambda: _dev(roots)[0]
    )


def passthrough(roots: Roots) -> Passthrough:
    """Return the part that gives GPUs to virtual machines.

    It is also built without `--vfio`, for claims that were prepared with it.
    """
    bus = PciBus(roots.sys)
    return Passthrough(bus, PassthroughRules(bus, roots.proc), lambda: _dev(roots))


def _dev(roots: Roots) -> tuple[Path, str]:
    """Return where the kernel's own device nodes are, here and on the host.

    A driver container's /dev may have only NVIDIA's.
    """
    roots = roots.now()
    if roots.dev_can_move and not (roots.dev / "vfio").is_dir():
        return Path(_HOST_DEV), _HOST_DEV
    return roots.dev, roots.dev_on_host
