"""`dra-driver inspect`: what a node has, and what the driver would publish and inject.

In: settings, the driver root and NVML; no cluster. Or the name of a profile or of a cloud's machine
type, for nodes that do not exist: then the GPUs are those of a simulated machine, which is removed
afterwards. Out: on stdout a table for people, or YAML or JSON for programs; or ResourceSlices,
templates of them for autoscalers, or the CDI spec that a claim of all GPUs would get. Nothing is
changed. It finds GPUs in the same way as the driver: what is missing here, the driver does not see.
"""

import importlib
import platform
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import asdict, replace

from dra_driver.admin.connect import NODE_NAME
from dra_driver.admin.inspect.slices import Object, Offered, as_list, node_names, printed, slices_of
from dra_driver.admin.inspect.templates import Template, node_name_of, template
from dra_driver.admin.inspect.view import as_json, mig_devices, report, spec_text, table
from dra_driver.admin.output import OUTPUT, Output, for_programs, is_for_programs
from dra_driver.admin.status.usage_command import PLUGINS
from dra_driver.admin.stored import read_notes
from dra_driver.cdi.edits_cache import EditsCache
from dra_driver.cdi.model import Edits
from dra_driver.cdi.roots import Roots, roots_of
from dra_driver.claims.state.ledger import Ledger
from dra_driver.commands import common_settings
from dra_driver.commands.command_line import bounds, changed, option, shaped
from dra_driver.commands.common_settings import (
    MigSetting,
    WholeGpusBesideShares,
)
from dra_driver.commands.for_people import not_installed
from dra_driver.devices.device import Device, NodeDevice, mig_of, name_of, whole
from dra_driver.devices.exclusion import without_excluded
from dra_driver.devices.gpu_words import gpu_words
from dra_driver.devices.model import Gpu, GpuUuid, Inventory, MigMode, Refusal
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.devices.session import DriverSession
from dra_driver.errors import ConfigError, DeviceError, SetupError, StateError, TransientError
from dra_driver.host.files import read_whole
from dra_driver.host.process import read_boot_id
from dra_driver.kube.server_version import version_numbers
from dra_driver.node.passthrough import passthrough_gpus
from dra_driver.shares.config import read_node_config
from dra_driver.shares.divide import divide
from dra_driver.shares.notes import CONFIG_FILE, kept
from dra_driver.slices.consumable import Consumable
from dra_driver.slices.offer.mig import (
    MIG_MANAGER_LABEL,
    KubernetesVersion,
    MigOffer,
    MigSettings,
    MigSource,
    named,
)
from dra_driver.slices.offer.shares import ShareOffer, WholeBesideShares
from resource_nvidia_com.device_plugin import NodeConfig

T = TypeVar("T")


_SETTINGS = "Settings of the driver, each also a variable (docs/settings.md)"


def _brief(setting: Any) -> Any:
    """Return a setting of the driver with the first part of its help."""
    return changed(setting, group=_SETTINGS, help=re.split("[.;:] ", setting.help)[0])


class Inspect(common_settings.RootSettings):
    """Show this node's GPUs, or those of a profile, and what the driver would publish."""

    example = "dra-driver inspect --profile h100x8 --slices --node-name node-1"

    output: Output = OUTPUT
    slices: bool = option(
        default=False,
        help="Print the ResourceSlices that the driver would create instead.",
    )
    template: Template | None = option(
        default=None,
        metavar="AUTOSCALER",
        help="Print a template of a new node for cluster-autoscaler or karpenter instead.",
    )
    cdi: bool = option(
        default=False,
        help="Print the CDI spec that a claim for all GPUs would get instead.",
    )
    profile: str = option(
        default="",
        help="GPUs of a profile (h100x8, or a YAML file) instead of this node's.",
    )
    instance_type: str = option(
        default="", help="GPUs of a cloud's machine type, such as p5.48xlarge, instead."
    )
    driver_version: str = option(
        default="", help="Version of the GPU driver on such nodes; unset: the profile's."
    )
    node_name: str = option(
        default="", check=NODE_NAME, help="Name of the Node that the slices are for."
    )
    count: int = option(
        check=bounds(least=1),
        default=1,
        help="Number of Nodes; several are NAME-0, NAME-1 …",
    )
    mig: MigSetting = _brief(common_settings.MIG)
    mig_profiles: str = _brief(common_settings.MIG_PROFILES)
    kubernetes: str = option(
        default="1.37",
        metavar="VERSION",
        check=shaped(r"1\.[0-9]{1,3}", "a version of Kubernetes such as 1.36"),
        help="Version of Kubernetes, such as 1.36: before 1.37 less is offered by default.",
    )
    share_config: Path | None = option(
        default=None,
        help="Share config; unset: the last good one that the driver read.",
    )
    whole_gpus_beside_shares: WholeGpusBesideShares = _brief(
        common_settings.WHOLE_GPUS_BESIDE_SHARES
    )
    exclude_gpus: str = _brief(common_settings.EXCLUDE_GPUS)
    memory_counters: bool = _brief(common_settings.MEMORY_COUNTERS)
    consumable_shares: str = _brief(common_settings.CONSUMABLE_SHARES)
    vfio: bool = _brief(common_settings.VFIO)
    nvidia_cdi_hook_path: str = common_settings.NVIDIA_CDI_HOOK_PATH
    kubelet_plugins_directory_path: Path = PLUGINS

    @property
    def _is_made_up(self) -> bool:
        return bool(self.profile or self.instance_type)

    @property
    def _prints_slices(self) -> bool:
        return self.slices or self.template is not None

    def check(self) -> None:
        """Check that no option is missing or without effect."""
        if self.profile and self.instance_type:
            raise ValueError("which GPUs? give either --profile, or a cloud's --instance-type")
        if self.cdi and (self._is_made_up or self._prints_slices):
            raise ValueError("--cdi is only for this node: leave out --profile and --slices")
        for name in ("template", "driver_version"):
            if name in self.given and not self._is_made_up:
                raise ValueError(self.line(name, "give --profile, or a cloud's --instance-type"))
        for name in ("node_name", "count"):
            if name in self.given and not self._prints_slices:
                raise ValueError(
                    self.line(name, "works only with --slices: add that, or leave it out")
                )
        if self.slices and self.template is None and not self.node_name:
            raise ValueError(self.line("node_name", "is missing"))
        if self.template is not None and self.count > 1:
            raise ValueError("a template is for one node: leave out --count, or --template")

    def cli_cmd(self) -> None:
        """Print what was asked for. Raises DriverError if there is no such profile."""
        with ExitStack() as stack:
            roots, directory = self._made_up(stack) if self._is_made_up else self._here()
            excluded = gpu_words(self.exclude_gpus)
            inventory, refused = look(roots, directory, excluded, vfio=self.vfio)
            offered = replace(self._offered(), refused=refused)
            read = self.share_config
            config = kept_config(directory) if read is None else named_config(read)
            if self._prints_slices:
                text = self._slices(inventory, offered, config)
            else:
                share = self._shares(config, inventory)
                text = self._text(roots, inventory, replace(offered, share=share))
        sys.stdout.write(text)

    def _here(self) -> tuple[Roots, Path]:
        return roots_of(self), self.kubelet_plugins_directory_path / DRIVER_NAME

    def _made_up(self, stack: ExitStack) -> tuple[Roots, Path]:
        """Return the roots of a machine with such GPUs, and an empty folder of the driver."""
        nodes = _simulator()
        profile = nodes.profile_for(self.profile, self.instance_type, self.driver_version)
        machine = stack.enter_context(nodes.machine_of(profile))
        roots = Roots(
            driver=machine.driver_root,
            driver_on_host=str(machine.driver_root),
            dev=machine.dev_root / "dev",
            dev_on_host="/dev",
            proc=machine.proc_root,
            sys=machine.sys_root,
        )
        return roots, machine.driver_root / DRIVER_NAME

    def _offered(self) -> Offered:
        mig = mig_offer(self.mig, self.mig_profiles, version_numbers(self.kubernetes))
        return Offered(mig=mig, memory_counters=self.memory_counters)

    def _shares(self, config: NodeConfig, inventory: Inventory) -> ShareOffer:
        beside = WholeBesideShares(self.whole_gpus_beside_shares)
        kubernetes = version_numbers(self.kubernetes)
        return replace(
            shares_of(config, inventory),
            consumable=Consumable.of(self.consumable_shares),
            alone=beside.why_alone(lambda: kubernetes),
        )

    def _slices(self, inventory: Inventory, offered: Offered, config: NodeConfig) -> str:
        machines = self.instance_type or Path(self.profile).stem
        name = self.node_name or node_name_of(self.template, machines)
        slices: list[Object] = []
        for node in node_names(name, self.count):
            there = _simulator().on_node(inventory, node) if self._is_made_up else inventory
            share = self._shares(config, there)
            slices += slices_of(there, node, replace(offered, share=share))
        keep = frozenset({"driverVersion"} if self.driver_version else ())
        wanted = as_list(slices) if self.template is None else template(self.template, slices, keep)
        return printed(wanted, self.output)

    def _text(self, roots: Roots, inventory: Inventory, offered: Offered) -> str:
        edits: Mapping[str, Edits] = {}
        problems: Mapping[str, str] = {}
        if not self._is_made_up:
            cache = EditsCache(
                roots,
                hook_path=self.nvidia_cdi_hook_path,
                kernel_release=platform.release(),
                clock=time.monotonic,
                nvml_version=lambda: inventory.driver_version,
            )
            edits, problems = edits_of(inventory.gpus, cache)
        if self.cdi:
            return spec_text(edits, problems, self.output)
        if is_for_programs(self.output):
            return for_programs(as_json(report(inventory, problems, offered)), self.output)
        return table(inventory, problems, offered)


def mig_offer(mig: str, profiles: str, kubernetes: KubernetesVersion | None) -> MigOffer:
    """Return which MIG devices are offered on a node whose labels are unknown."""
    offer = MigSettings.of(mig, profiles).offer({}, kubernetes)
    if offer.source is not MigSource.AUTO:
        return offer
    why = f"on {named(kubernetes)}, unless the Node has label {MIG_MANAGER_LABEL}"
    return replace(offer, why=why)


def _simulator() -> Any:
    """Return the module that simulates nodes, which is in a separate distribution."""
    try:
        return importlib.import_module("dra_driver.simulator.nodes")
    except ModuleNotFoundError as error:
        raise SetupError(not_installed("simulator", "simulator")) from error


def look(
    roots: Roots, data_directory: Path, excluded: Collection[str], *, vfio: bool = False
) -> tuple[Inventory, Mapping[GpuUuid, Refusal]]:
    """Return the GPUs, and which of them refuse MIG mode, by the driver's notes."""
    at = data_directory, roots.proc
    session = DriverSession(
        driver_root=roots.driver,
        dev=roots.dev,
        proc_root=roots.proc,
        sys_root=roots.sys,
        made_here=lambda: _noted(lambda ledger: ledger.made().keys(), frozenset(), at),
        turned_on=lambda: _noted(lambda ledger: set(ledger.turned_on()), set(), at),
        leave_out=lambda there: without_excluded(there, excluded),
        with_passthrough=passthrough_gpus(roots).look if vfio else lambda inventory: inventory,
    )
    try:
        return session.look(), read_notes(data_directory).refused
    finally:
        session.close()


def _noted(question: Callable[[Ledger], T], nothing: T, at: tuple[Path, Path]) -> T:
    """Return the ledger's answer from a directory and a procfs; `nothing` if it is not readable."""
    directory, proc = at
    try:
        return question(Ledger(directory, boot_id=read_boot_id(proc)))
    except (SetupError, StateError):
        return nothing


def named_config(file: Path) -> NodeConfig:
    """Return the share config in a file that the user names. Raises ConfigError."""
    try:
        contents = read_whole(file)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from error
    if contents is None:
        raise ConfigError(f"there is no file {file}: name the share config's path on this machine")
    return read_node_config(contents[0], str(file))


def kept_config(data_directory: Path) -> NodeConfig:
    """Return the driver's last good share config; an empty one if there is none."""
    stored = kept(data_directory / CONFIG_FILE)
    try:
        return read_node_config(stored.data, stored.origin) if stored else NodeConfig()
    except ConfigError:
        return NodeConfig()  # of another version


def shares_of(config: NodeConfig, inventory: Inventory) -> ShareOffer:
    """Return what a share config offers on a node where no claim has a share."""
    return ShareOffer(**asdict(divide(config, inventory)))


def edits_of(gpus: Sequence[Gpu], content: EditsCache) -> tuple[dict[str, Edits], dict[str, str]]:
    """Return edits by device name, common ones under an empty name, and why others are missing."""
    if not gpus:
        return {}, {}  # there need not even be a GPU driver
    try:
        node = content.look()
    except (DeviceError, TransientError) as error:
        return {}, {"": str(error)}
    edits = {"": node.common}
    problems: dict[str, str] = {}
    for device in (each for gpu in gpus for each in _devices(gpu)):
        name = name_of(device.gpu, device.device)
        try:
            edits[name] = node.device(device)
        except (DeviceError, TransientError) as error:
            problems[name] = str(error)
    return edits, problems


def _devices(gpu: Gpu) -> Iterable[NodeDevice]:
    """Yield the GPU, unless MIG mode keeps containers off the whole of it, and its MIG devices."""
    if gpu.mig_mode is not MigMode.ENABLED:
        yield NodeDevice(gpu=gpu, device=whole(gpu))
    for device in mig_devices(gpu):
        yield NodeDevice(gpu=gpu, device=Device(base=mig_of(device)))
