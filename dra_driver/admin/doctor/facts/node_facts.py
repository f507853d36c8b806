"""Facts about the node: GPU driver, device nodes, control groups, CDI folders, sockets.

In: `Places`. Out: frozen facts, one kind for each check, or an error that the runner puts into
words. It finds things in the same way as the driver, and changes nothing: it makes no device node
and writes no file. NVML is opened once for all checks, and closed.
"""

import re
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct, field

from dra_driver.admin.doctor.facts.places import Places, names_in, read_text
from dra_driver.admin.doctor.facts.runtime_config import RuntimeConfig, read_runtime_configs
from dra_driver.admin.stored import stored_records
from dra_driver.admin.takeover import peer_claims
from dra_driver.admin.takeover.peer_claims import PeerClaims
from dra_driver.cdi.edits_cache import missing_files
from dra_driver.cdi.model import KIND, Edits
from dra_driver.cdi.nodes import CONTROL_NODES, REQUIRED, known_numbers
from dra_driver.cdi.store import SpecStore
from dra_driver.devices.control_groups import MOUNTINFO, find_hierarchy, kernel_counts_gpus
from dra_driver.devices.exclusion import without_excluded
from dra_driver.devices.holders import Holder, Holders
from dra_driver.devices.model import Inventory
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.devices.nvml.library import find_library
from dra_driver.devices.passthrough.bus import PciBus, is_vfio
from dra_driver.devices.session import DriverSession
from dra_driver.devices.versions import running_driver
from dra_driver.errors import DriverError
from dra_driver.host.process import read_boot_id
from dra_driver.kubelet.sockets import is_live
from dra_driver.node.passthrough import passthrough_gpus

_KIND = re.compile(r"""(?:^|[{,])\s*["']?kind["']?\s*:\s*["']?([^"',\s}]+)""", re.MULTILINE)
_SPEC_ENDINGS = (".json", ".yaml", ".yml")
_MOST_SPECS = 2000


class DriverFacts(Struct, frozen=True, kw_only=True):
    """The GPU driver that runs, and how many NVIDIA GPUs are on PCI; None: not known from /sys.

    `gpus_on_vfio` is how many of them have a VFIO driver.
    """

    version: str | None
    gpus_on_pci: int | None
    gpus_on_vfio: int = 0

    @property
    def needs_none(self) -> bool:
        """Whether all GPUs are for virtual machines, so that no GPU driver need run."""
        return self.version is None and 0 < self.gpus_on_vfio == self.gpus_on_pci


class NodeFiles(Struct, frozen=True, kw_only=True):
    """Which control device nodes exist, and of which the kernel lists the numbers."""

    folder: str
    present: frozenset[str]
    numbered: frozenset[str]


class GroupFacts(Struct, frozen=True, kw_only=True):
    """Where cgroup v2 is, and whether the kernel counts the memory of GPUs there."""

    hierarchy: Path | None
    kernel_counts_gpus: bool = False


class SpecFacts(Struct, frozen=True, kw_only=True):
    """CDI specs: whether the driver's folder is there, and files of its kind by other drivers.

    `unreadable` has files that cannot be read, each with the reason.
    """

    folder: Path
    is_folder: bool
    of_claims: int = 0
    of_others: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()


class SocketFacts(Struct, frozen=True, kw_only=True):
    """Sockets by which this driver's name is registered: those with a listener, and dead ones."""

    folder: Path
    is_folder: bool
    live: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()


class OtherFacts(Struct, frozen=True, kw_only=True):
    """Traces of other software on this node that gives out GPUs.

    `peer` is what NVIDIA's DRA driver has prepared here and this driver has not taken over.
    """

    peer: PeerClaims = field(default_factory=PeerClaims)
    device_plugins: tuple[str, ...] = ()


class HolderFacts(Struct, frozen=True, kw_only=True):
    """Which processes have GPUs open, by minor number; not known without `sees_node`."""

    sees_node: bool
    holders: Mapping[int, tuple[Holder, ...]] = {}


def driver_facts(places: Places) -> DriverFacts:
    """Look for the GPU driver and for GPUs on PCI."""
    bus = PciBus(places.roots.sys)
    found = {address: bus.kind(address) for address in bus.addresses()}
    gpus = [address for address, kind in found.items() if kind and kind.is_nvidia_gpu]
    return DriverFacts(
        version=running_driver(places.roots.proc),
        gpus_on_pci=len(gpus) if found else None,
        gpus_on_vfio=sum(is_vfio(bus.driver_of(gpu)) for gpu in gpus),
    )


def library(places: Places) -> Path:
    """Return where NVML's library is. Raises DeviceError if none fits the running GPU driver."""
    return find_library(places.roots.driver, running_driver(places.roots.proc))


def gpus(places: Places, excluded: Collection[str]) -> Inventory:
    """Return the GPUs that NVML reports, without the excluded ones. Raises DeviceError."""
    session = DriverSession(
        driver_root=places.roots.driver,
        dev=places.roots.dev,
        proc_root=places.roots.proc,
        sys_root=places.roots.sys,
        leave_out=lambda there: without_excluded(there, excluded),
        with_passthrough=passthrough_gpus(places.roots).look,
    )
    try:
        return session.look()
    finally:
        session.close()


def node_files(places: Places) -> NodeFiles:
    """Look for the device nodes that all GPUs share."""
    roots = places.roots.now()
    return NodeFiles(
        folder=roots.dev_on_host,
        present=frozenset(name for name in CONTROL_NODES if (roots.dev / name).exists()),
        numbered=frozenset(name for name in REQUIRED if known_numbers(roots.proc, name)),
    )


def group_facts(places: Places) -> GroupFacts:
    """Look for control groups of version 2."""
    hierarchy = find_hierarchy(places.cgroup_root, MOUNTINFO)
    if hierarchy is None:
        return GroupFacts(hierarchy=None)
    return GroupFacts(hierarchy=hierarchy, kernel_counts_gpus=kernel_counts_gpus(hierarchy))


def holder_facts(places: Places, inventory: Inventory, *, in_a_pod: bool) -> HolderFacts:
    """Look for the processes that have the GPUs open."""
    roots = places.roots
    of_node = [roots.driver / "proc"]
    if places.host is not None:
        of_node.insert(0, places.host / "proc")
    seen = [proc for proc in of_node if (proc / "self").is_symlink()]
    if not seen and in_a_pod:
        return HolderFacts(sees_node=False)
    holders = Holders(
        procs=(*seen, roots.proc),
        devs=(Path("/dev"), Path(roots.driver_file_on_host("dev")), Path(roots.dev_on_host)),
        clock=time.monotonic,
    )
    return HolderFacts(
        sees_node=True, holders={gpu.minor: holders.of(gpu.minor) for gpu in inventory.gpus}
    )


def spec_facts(places: Places) -> SpecFacts:
    """Look through the CDI specs in the driver's folder."""
    folder = places.cdi_root
    ours, others, unreadable = 0, [], []
    names = [name for name in names_in(folder) if name.endswith(_SPEC_ENDINGS)]
    for name in names[:_MOST_SPECS]:
        try:
            kind = _KIND.search(read_text(folder / name))
        except (OSError, ValueError) as error:
            unreadable.append(f"{name}: {getattr(error, 'strerror', None) or error}")
            continue
        if kind is None:
            unreadable.append(f"{name}: it names no kind of device")
        elif kind[1] == KIND and name.endswith(".json"):
            ours += 1
        elif kind[1] == KIND:
            others.append(name)
    return SpecFacts(
        folder=folder,
        is_folder=folder.is_dir(),
        of_claims=ours,
        of_others=tuple(others),
        unreadable=tuple(unreadable),
    )


class _SpecDevice(Struct, frozen=True, rename="camel"):
    container_edits: Edits


class _SpecFile(Struct, frozen=True, rename="camel"):
    """The parts of a CDI spec that name files."""

    devices: tuple[_SpecDevice, ...]
    container_edits: Edits = field(default_factory=Edits)


def missing_of_claims(places: Places) -> Mapping[str, list[str]]:
    """Return the claims whose CDI specs name files that are not there, by the first such file.

    Raises DriverError if the claims' records or the folder of specs cannot be read.
    """
    claims: dict[str, list[str]] = {}
    store = SpecStore(places.cdi_root)
    for record in stored_records(places.plugins / DRIVER_NAME).records:
        with suppress(OSError, ValueError, msgspec.MsgspecError):  # `spec_facts` reports them
            text = read_text(Path(store.path(record.ref.uid)))
            spec = msgspec.json.decode(text, type=_SpecFile)
            edits = (spec.container_edits, *(device.container_edits for device in spec.devices))
            for path in [path for each in edits for path in missing_files(each, places.roots)][:1]:
                claims.setdefault(path, []).append(str(record.ref))
    return claims


def socket_facts(places: Places) -> SocketFacts:
    """Look for the sockets by which the kubelet finds this driver."""
    folder = places.registrar
    ours = [
        name
        for name in names_in(folder)
        if name.startswith(DRIVER_NAME) and name.endswith("-reg.sock")
    ]
    live = [name for name in ours if is_live(folder / name)]
    return SocketFacts(
        folder=folder,
        is_folder=folder.is_dir(),
        live=tuple(live),
        dead=tuple(name for name in ours if name not in live),
    )


def other_facts(places: Places) -> OtherFacts:
    """Look for what NVIDIA's DRA driver and device plugins keep on a node."""
    folder = places.plugins.parent / "device-plugins"
    if not folder.is_dir():
        folder = places.on_host("/var/lib/kubelet/device-plugins") or folder
    sockets = [name for name in names_in(folder) if name.startswith("nvidia")]
    return OtherFacts(
        peer=peer_claims.look(places.plugins / DRIVER_NAME, _boot_id(places)),
        device_plugins=tuple(name for name in sockets if is_live(folder / name)),
    )


def _boot_id(places: Places) -> str | None:
    with suppress(DriverError):
        return read_boot_id(places.roots.proc)
    return None


def runtime_configs(
    places: Places, containerd: tuple[int, ...] | None
) -> list[RuntimeConfig] | None:
    """Return how the container runtimes are configured; None where their files are not seen."""
    return None if places.host is None else read_runtime_configs(places.host, containerd)
