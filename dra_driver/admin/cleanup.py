"""`dra-driver cleanup`: removes everything of this driver from a node, after its uninstallation.

In: the driver's directory, the CDI folder and the kubelet's, and the GPUs. It runs as root, where
the host's mounts can be changed: on the host, or in a container like the MPS supervisor's. Out: a
node as it was before, and the list of what was removed; or an error, with what is left.

It does nothing while the driver or its supervisor runs, nor, unless forced, while claims are
prepared. It can be repeated at any time. It also undoes what NVIDIA's DRA driver has prepared in
this boot, and renames its checkpoint, because that driver refuses a GPU that one of its claims has,
and does not start with a damaged checkpoint.
"""

import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

from msgspec import Struct

from dra_driver.admin.api.reads import each
from dra_driver.admin.connect import NODE_NAME, connect
from dra_driver.admin.removal import Removal, look
from dra_driver.admin.stored import is_folder, supervisor_runs
from dra_driver.admin.takeover import checkpoint_file, peer_claims
from dra_driver.admin.takeover.take_over import TakeOver
from dra_driver.cdi.edits_cache import EditsCache
from dra_driver.cdi.roots import Roots, roots_of
from dra_driver.cdi.store import SpecStore
from dra_driver.claims.prepare.node_claims import NodeClaims
from dra_driver.claims.state.ledger import Ledger
from dra_driver.claims.state.locks import locks_of
from dra_driver.commands import common_settings
from dra_driver.commands.command_line import changed, option
from dra_driver.devices import control_groups
from dra_driver.devices.holders import Holders
from dra_driver.devices.mig.making import MigInstances
from dra_driver.devices.mig.refusals import Refusals
from dra_driver.devices.model import Inventory
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.devices.nvml.calls import NvmlCalls
from dra_driver.devices.session import DriverSession
from dra_driver.errors import (
    ApiError,
    ConflictError,
    DriverError,
    NotFoundError,
    SetupError,
    TransientError,
)
from dra_driver.host.ofd_lock import holder_of
from dra_driver.host.process import read_boot_id
from dra_driver.kube.resource import RESOURCE_SLICES
from dra_driver.kubelet.sockets import is_live
from dra_driver.mps.daemon import mounts
from dra_driver.mps.requests import DomainRequests
from dra_driver.mps.supervisor import command as mps_cli
from dra_driver.mps.supervisor.cgroup import GROUP, hierarchies
from dra_driver.node.passthrough import passthrough_gpus
from dra_driver.node.sharing import node_memory, node_sharing
from dra_driver.ops.logs import configure_logs

_EMPTY_SECONDS = 5.0
_MPS_SECONDS = 30.0
_LOOK_SECONDS = 0.01
_REQUEST_SECONDS = 20.0
_THEIR_FILES = ("cp.lock", "pu.lock", "nvidia-cdi-hook", "mps")
"""What NVIDIA's DRA driver keeps in the directory that it shares with this one."""

_LOOK = (
    "what could not be read was not undone: look for MIG devices (nvidia-smi mig -lgi) and "
    "time-slices that are no longer needed"
)
_THEIR_DAEMON = re.compile(r".+-[0-9a-f]{5}")


_PUT_ASIDE = "checkpoint.json.put-aside"
"""The name of a checkpoint that could not be taken over: kept for people, and never read."""


class Cleanup(common_settings.RootSettings):
    """Remove what this driver left on the node, after it was uninstalled."""

    example = "dra-driver cleanup --dry-run"

    dry_run: bool = option(default=False, help="List what would be removed, and change nothing.")
    force: bool = option(
        default=False,
        help="Clean up even while claims are prepared: their pods lose their settings, and cannot "
        "restart.",
    )
    node_name: str = option(
        default="",
        check=NODE_NAME,
        variable=True,
        help="Name of the Node whose ResourceSlices to delete; unset: none.",
    )
    kubeconfig: Path | None = option(
        default=None,
        variable=True,
        help="Kubeconfig file that may delete ResourceSlices; unset: KUBECONFIG, ~/.kube/config, "
        "or the pod's ServiceAccount.",
    )
    kubelet_plugins_directory_path: Path = common_settings.KUBELET_PLUGINS_DIRECTORY_PATH
    kubelet_registrar_directory_path: Path = common_settings.KUBELET_REGISTRAR_DIRECTORY_PATH
    cdi_root: Path = common_settings.CDI_ROOT
    cgroup_root: Path | None = changed(
        common_settings.CGROUP_ROOT, help="The host's cgroup file system; unset: /sys/fs/cgroup."
    )

    def cli_cmd(self) -> None:
        """Clean up."""
        configure_logs(level="warning", form="auto", stream=sys.stderr)
        print("\n".join(clean(self, os.environ)) or "nothing of this driver is on the node")  # noqa: T201


def clean(settings: Cleanup, environment: Mapping[str, str]) -> list[str]:
    """Remove what is there, or with `dry_run` only list it; return lines for people."""
    directory = settings.kubelet_plugins_directory_path / DRIVER_NAME
    is_there = is_folder(directory)
    _check_not_running(settings, directory)
    things: list[str] = []
    problems: list[str] = []
    specs = SpecStore(settings.cdi_root)
    stays: list[str] = []
    if is_there or specs.uids():
        boot_id = read_boot_id(settings.proc_root)
        left, peers = look(directory, specs, boot_id), peer_claims.look(directory, boot_id)
        things += left.things
        things += [f"{peer_claims.named(claim)} of NVIDIA's DRA driver" for claim in peers.claims]
        things += [f"MPS domain {domain}" for domain in sorted(_requests(directory).list())]
        prepared = [*left.prepared, *peers.in_use(specs)]
        if prepared and not settings.force:
            text = f"claims are prepared on this node: {'; '.join(prepared)}"
            if not settings.dry_run:
                raise SetupError(
                    f"{text}; without a driver their pods cannot end: bring it back (with the "
                    "chart, cleanup.enabled=false), drain the node, and run this again; or add "
                    "--force, which makes their pods lose their settings"
                )
            stays.append(f"without --force, would refuse: {text}")
        if not settings.dry_run:
            with _node(settings, directory) as node:
                problems = node.take_back()
        stays += [] if problems else _put_aside(directory, specs, dry_run=settings.dry_run)
    files = [*_sockets(settings, directory), *_remains(directory)]
    groups = group_folders(settings.cgroup_root or control_groups.USUAL)
    things += [str(path) for path in (*files, *groups)]
    if not settings.dry_run and not problems:
        problems = [*_remove(directory, files), *_remove_groups(groups)]
    said, failed = _slices(settings, environment)
    if problems or failed:
        raise SetupError(
            f"{'; '.join([*problems, *failed])}; everything else was removed; run the command "
            "again later"
        )
    did = "would remove" if settings.dry_run else "removed"
    return [*(f"{did}: {thing}" for thing in things), *stays, *said]


def _check_not_running(settings: Cleanup, directory: Path) -> None:
    live = [path for path in _sockets(settings, directory) if is_live(path)]
    if live:
        raise SetupError(
            f"a driver runs on this node and listens on {live[0]}: uninstall it first, then run "
            "this again"
        )
    if holder_of(directory / "mps" / "supervisor.lock") is not None:
        raise SetupError(
            "the MPS supervisor runs on this node: uninstall it first, then run this again"
        )


def _requests(directory: Path) -> DomainRequests:
    return DomainRequests(directory / "mps", time.monotonic)


def _sockets(settings: Cleanup, directory: Path) -> list[Path]:
    registrar = settings.kubelet_registrar_directory_path
    return sorted([*registrar.glob(f"{DRIVER_NAME}*-reg.sock"), *directory.glob("dra*.sock")])


class _Node(Struct, frozen=True, kw_only=True):
    """How to undo what claims have on this node."""

    take_over: TakeOver
    removal: Removal
    requests: DomainRequests
    settings: Cleanup

    def take_back(self) -> list[str]:
        """Undo all of it; return what could not be undone."""
        with self._serving_mps():
            self.take_over.run()
            problems = [
                f"{f'claim UID {uid}' if uid else checkpoint_file.FILE} of NVIDIA's DRA driver: "
                f"{error}"
                for uid, error in self.take_over.left.items()
                if isinstance(error, ConflictError | TransientError)
            ]
            problems += self.removal.run()
            end = time.monotonic() + _MPS_SECONDS
            for domain in sorted(self.requests.list()):
                try:
                    self.requests.remove(domain)
                    self.requests.wait_gone(domain, end)
                except DriverError as error:
                    problems.append(f"MPS domain {domain}: {error}")
        return problems

    @contextmanager
    def _serving_mps(self) -> Iterator[None]:
        """Run a supervisor while there are daemons to stop."""
        if not self.requests.list():
            yield
            return
        supervisor = mps_cli.build(
            mps_cli.MpsSupervisor(
                kubelet_plugins_directory_path=self.settings.kubelet_plugins_directory_path,
                nvidia_driver_root=self.settings.nvidia_driver_root,
                container_driver_root=self.settings.container_driver_root,
                nvidia_dev_root=self.settings.nvidia_dev_root,
                proc_root=self.settings.proc_root,
            )
        )
        supervisor.start()
        try:
            # Without a running supervisor, `wait_gone` would fail at once.
            end = time.monotonic() + _MPS_SECONDS
            mps = self.settings.kubelet_plugins_directory_path / DRIVER_NAME / "mps"
            while not supervisor_runs(mps) and time.monotonic() < end:
                time.sleep(_LOOK_SECONDS)
            yield
        finally:
            supervisor.stop(_MPS_SECONDS)


class _Seen:
    """The GPUs as they were when the command began."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory

    def current(self) -> Inventory:
        return self._inventory


def _session(roots: Roots, ledger: Ledger) -> DriverSession:
    return DriverSession(
        driver_root=roots.driver,
        dev=roots.dev,
        proc_root=roots.proc,
        sys_root=roots.sys,
        made_here=lambda: ledger.made().keys(),
        turned_on=lambda: set(ledger.turned_on()),
        calls=NvmlCalls(clock=time.monotonic),
        with_passthrough=passthrough_gpus(roots).look,
    )


@contextmanager
def _node(settings: Cleanup, directory: Path) -> Iterator[_Node]:
    clock = time.monotonic
    roots = roots_of(settings)
    boot_id, ours = read_boot_id(roots.proc), version("dra-driver")
    ledger = Ledger(directory, boot_id=boot_id, version=ours)
    session = _session(roots, ledger)
    seen = _Seen(session.look())
    memory = node_memory(session, roots, ledger, cgroup_root=settings.cgroup_root)
    locks = locks_of(ledger, clock)
    holders = Holders(procs=(roots.proc, Path("/proc")), devs=(Path("/dev"),), clock=clock)
    sharing = node_sharing(
        session,
        roots,
        locks=locks,
        mps_folder=directory / "mps",
        mps_ready_seconds=_MPS_SECONDS,
        memory=memory,
        clock=clock,
    )
    claims = NodeClaims(
        ledger,
        locks,
        clock=clock,
        inventory=seen,
        edits=EditsCache(
            roots,
            hook_path="",
            kernel_release=platform.release(),
            clock=clock,
            nvml_version=lambda: seen.current().driver_version,
        ),
        specs=SpecStore(settings.cdi_root),
        sharing=sharing.sharing,
        mig=MigInstances(session.mig, holders.of),
        switches=Refusals(clock, lambda: None),
        switches_modes=False,  # what was switched for claims is put back all the same
        tidy=sharing.domains.tidy,
    )
    try:
        # Where their file does not say whether MIG devices were made for claims, they stay.
        take_over = TakeOver(ledger, locks, seen, False, clock)
        yield _Node(
            take_over=take_over,
            removal=Removal(claims, clock),
            requests=sharing.domains,
            settings=settings,
        )
    finally:
        locks.close()
        session.close()


def _put_aside(directory: Path, specs: SpecStore, *, dry_run: bool) -> list[str]:
    """Rename a checkpoint of NVIDIA's DRA driver that lists claims, or is damaged; say what stays.

    The CDI specs of its claims are removed: their pods have ended, or `--force` was given.
    """
    left = peer_claims.look(directory, None)
    if left.file is None or (dry_run and left.problem is None and not left.unread):
        return []
    why = [f"{peer_claims.named(claim)}: {claim.reason}" for claim in left.unread]
    if left.problem is not None:
        why.append(left.problem)
    if not dry_run:
        for uid in specs.peers():
            specs.delete(uid)
        left.file.replace(directory / _PUT_ASIDE)
    did = "would put aside" if dry_run else "put aside"
    return [f"{did}: {left.file}, as {'; '.join(why)}; {_LOOK}"]


def _remains(directory: Path) -> list[Path]:
    """Return what to remove below the driver's directory, or the directory itself.

    If NVIDIA's DRA driver has a checkpoint there, its files stay, except daemons of ended claims.
    """
    if not directory.is_dir():
        return []
    names = (checkpoint_file.FILE, _PUT_ASIDE)
    if not any((directory / name).exists() for name in names):
        return [directory]
    ours = [path for path in directory.iterdir() if path.name not in (*names, *_THEIR_FILES)]
    ours += [
        path for path in (directory / "mps").glob("*") if _THEIR_DAEMON.fullmatch(path.name) is None
    ]
    return sorted(ours)


def _remove(directory: Path, files: list[Path]) -> list[str]:
    """Unmount what is mounted below these files, and remove them; return what failed."""
    problems: list[str] = []
    for path in files:
        try:
            for folder in sorted(path.rglob("*"), reverse=True) if path.is_dir() else ():
                if folder.is_dir() and not folder.is_symlink() and mounts.layers(folder):
                    mounts.unmount_all(folder)
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except (OSError, DriverError) as error:
            problems.append(f"{path} cannot be removed: {error}")
    with suppress(OSError):
        directory.rmdir()  # unless something else is in it
    return problems


def group_folders(root: Path) -> list[Path]:
    """Return the folders of the daemons' control group; rmdir(2) removes an empty one."""
    return [each / GROUP for each in hierarchies(root) if (each / GROUP).is_dir()]


def _remove_groups(groups: list[Path]) -> list[str]:
    """Remove control groups, whose last processes may still be ending; return what failed."""
    problems: list[str] = []
    end = time.monotonic() + _EMPTY_SECONDS
    for group in groups:
        while True:
            try:
                group.rmdir()
            except FileNotFoundError:
                pass
            except OSError as error:
                if time.monotonic() < end:
                    time.sleep(0.05)
                    continue
                problems.append(f"{group} cannot be removed: {error.strerror}")
            break
    return problems


def _slices(settings: Cleanup, environment: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Delete the node's slices; return what to report, and what could not be done.

    A running kubelet deletes them 30 s after it has lost the driver; they also go with their Node.
    """
    name = settings.node_name or "NODE"
    by_hand = (
        "ResourceSlices were not checked: a running kubelet deletes them half a minute after the "
        "driver has gone; delete any that stay: kubectl delete resourceslices "
        f"--field-selector spec.driver={DRIVER_NAME},spec.nodeName={name}"
    )
    if not settings.node_name:
        return [by_hand], []
    try:
        api = connect(settings.kubeconfig, "", environment=environment)
    except SetupError:
        return [by_hand], []
    said: list[str] = []
    failed: list[str] = []
    query = {"fieldSelector": f"spec.driver={DRIVER_NAME},spec.nodeName={settings.node_name}"}
    try:
        for slice_ in list(each(api, RESOURCE_SLICES, query=query, timeout=_REQUEST_SECONDS)):
            metadata = slice_["metadata"]
            slice_name = str(metadata["name"]) if isinstance(metadata, dict) else ""
            try:
                if not settings.dry_run:
                    api.delete(RESOURCE_SLICES, slice_name, timeout=_REQUEST_SECONDS)
            except NotFoundError:
                continue  # the kubelet was first
            except ApiError as error:
                failed.append(f"ResourceSlice {slice_name}: {error}")
                continue
            said.append(
                f"{'would remove' if settings.dry_run else 'removed'}: ResourceSlice {slice_name}"
            )
    except DriverError as error:
        failed.append(f"ResourceSlices: {error}")
    finally:
        api.close()
    return said, failed
