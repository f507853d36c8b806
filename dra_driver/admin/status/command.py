"""`dra-driver status`: which claims have this node's GPUs, how they are shared, what is wrong.

In: the files of the driver and of the MPS supervisor below the kubelet's plugins directory; neither
has to run. Out: on stdout a table for people or JSON for programs. Nothing is changed, and no GPU,
API server or driver is asked. With `--cluster` it reads none of these files, and asks the API
server what all nodes offer (cluster/).
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, field

from dra_driver.admin.connect import KUBECONFIG, NODE_NAME
from dra_driver.admin.output import WIDE_OUTPUT, WideOutput, aligned, for_programs, is_for_programs
from dra_driver.admin.status import gone_part, health_part, shares_part
from dra_driver.admin.status.usage_command import PLUGINS
from dra_driver.admin.stored import (
    StoredRecords,
    is_folder,
    read_notes,
    stored_records,
    supervisor_runs,
)
from dra_driver.claims.model.claim import ClaimUid
from dra_driver.claims.model.record import ClaimRecord, DeviceRecord, RecordState
from dra_driver.claims.report.descriptions import description_of, strategy_of
from dra_driver.commands import common_settings
from dra_driver.commands.command_line import CommandSettings, changed, option
from dra_driver.devices.names import DRIVER_NAME, in_order, undivided_name
from dra_driver.errors import SetupError, StateError
from dra_driver.host.process import read_boot_id
from dra_driver.host.words import count
from dra_driver.mps.domain import DomainId, Status
from dra_driver.mps.requests import DomainRequests
from dra_driver.shares.notes import ShareNotes

_CLUSTER = "The whole cluster"
_COLUMNS = ("CLAIM", "PODS", "DEVICE", "STRATEGY", "SETTINGS", "STATE")


class ShowStatus(CommandSettings):
    """Show this node's claims and how their GPUs are shared, or what the whole cluster offers.

    `dra-driver usage` shows how much of these GPUs is used.
    """

    example = "dra-driver status --cluster -o wide"
    cluster: bool = option(
        group=_CLUSTER,
        default=False,
        help="Show the whole cluster instead: what each node offers, and what is used and free, "
        "by resource name. Runs on any machine that reaches the API server.",
    )
    output: WideOutput = WIDE_OUTPUT
    context: str = option(
        group=_CLUSTER, default="", help="With --cluster: context of the kubeconfig."
    )
    node: str = option(
        group=_CLUSTER,
        default="",
        check=NODE_NAME,
        help="With --cluster: only this node.",
    )
    kubeconfig: Path | None = changed(
        KUBECONFIG,
        group=_CLUSTER,
        help="With --cluster: kubeconfig file; unset: KUBECONFIG, ~/.kube/config, or the pod's "
        "ServiceAccount.",
    )
    kubelet_plugins_directory_path: Path = PLUGINS
    proc_root: Path = common_settings.PROC_ROOT

    def check(self) -> None:
        """Check that no option is without effect."""
        if self.cluster:
            self._check_cluster()
            return
        for name in ("kubeconfig", "context", "node"):
            if getattr(self, name):
                raise ValueError(
                    self.line(name, "works only with --cluster: add that, or leave it out")
                )

    def _check_cluster(self) -> None:
        for name in ("kubelet_plugins_directory_path", "proc_root"):
            # Every pod of the driver has them as variables, which is not the user's choice.
            usual = {str(self.options[name].default), os.environ.get(name.upper())}
            if str(getattr(self, name)) not in usual:
                raise ValueError(
                    self.line(
                        name, "does not work with --cluster, which reads no files of this node"
                    )
                )

    def cli_cmd(self) -> None:
        """Print the status."""
        sys.stdout.write(self._of_the_cluster() if self.cluster else self._of_this_node())

    def _of_this_node(self) -> str:
        directory = self.kubelet_plugins_directory_path / DRIVER_NAME
        node = look(directory, read_boot_id(self.proc_root), self.proc_root)
        return (
            for_programs(report(node), self.output) if is_for_programs(self.output) else table(node)
        )

    def _of_the_cluster(self) -> str:
        # Not imported above: a node's own status needs no client of the API server.
        from dra_driver.admin.cluster import command  # noqa: PLC0415

        return command.shown(
            self.kubeconfig,
            self.context,
            node=self.node,
            output=self.output,
            environment=os.environ,
        )


class NodeStatus(Struct, frozen=True, kw_only=True):
    """The content of a node's files.

    Attributes:
        domains: MPS domains by id; None for one that the supervisor has not handled yet.
        domain_claims: UIDs of the claims that have joined a domain, by its id.
        gone: what happened to devices that no longer exist, by claim's UID and device's name.
    """

    boot_id: str
    stored: StoredRecords
    domains: Mapping[str, Status | None]
    domain_claims: Mapping[str, frozenset[str]]
    supervisor_runs: bool
    gone: Mapping[tuple[str, str], str] = {}
    shares: ShareNotes = field(default_factory=ShareNotes)
    health: health_part.HealthNotes = field(default_factory=health_part.HealthNotes)

    @property
    def claims(self) -> list[ClaimRecord]:
        """The records of claims that have devices, by name."""
        claims = [
            record for record in self.stored.records if record.state is not RecordState.RELEASED
        ]
        return sorted(claims, key=lambda each: (each.ref.namespace, each.ref.name, each.ref.uid))

    @property
    def strays(self) -> list[str]:
        """MPS domains that no claim with a record has joined."""
        known = {str(record.ref.uid) for record in self.stored.records}
        used = {domain for domain, claims in self.domain_claims.items() if claims & known}
        return sorted(self.domains.keys() - used)


def look(directory: Path, boot_id: str, proc_root: Path | None = None) -> NodeStatus:
    """Read the files below the driver's directory. Raises SetupError without it, or StateError.

    Without `proc_root`, the GPU driver's own files are not read.
    """
    if not is_folder(directory):
        raise SetupError(
            f"{directory} does not exist: the driver has not run on this node, or uses another "
            "directory (--kubelet-plugins-directory-path); on any machine, --cluster shows what "
            "the cluster offers"
        )
    requests = DomainRequests(directory / "mps", lambda: 0.0)
    domains = requests.list()
    stored = stored_records(directory)
    prepared = [
        record
        for record in stored.records
        if record.boot_id == boot_id and record.state is RecordState.PREPARED
    ]
    return NodeStatus(
        boot_id=boot_id,
        stored=stored,
        gone=gone_part.gone(prepared, proc_root) if proc_root else {},
        domains={str(domain): _read(partial(requests.status, domain)) for domain in domains},
        domain_claims={
            str(domain): _read(partial(requests.members, domain)) or frozenset()
            for domain in domains
        },
        supervisor_runs=supervisor_runs(directory / "mps"),
        shares=read_notes(directory),
        health=health_part.read_notes(directory, boot_id),
    )


T = TypeVar("T")


def _read(read: Callable[[], T]) -> T | None:
    """Return a file's content; None if the disk fails, so that other files are still shown."""
    try:
        return read()
    except StateError:
        return None


def table(node: NodeStatus) -> str:
    """Return the node's status as text for people."""
    rows = [row for record in node.claims for row in _rows(node, record)]
    lines = aligned([_COLUMNS, *rows]) if rows else ["no claim is prepared on this node"]
    lines += health_part.lines(node.health)
    lines += shares_part.lines(node.shares, node.claims)
    names = {record.ref.uid: record.ref for record in node.claims}
    sections = {
        "devices that are gone (delete their pods; the claims are then unprepared)": [
            f"{names[ClaimUid(uid)]}: {name}: {why}" for (uid, name), why in node.gone.items()
        ],
        "not undone yet": _cleanups(node),
        "MPS domains without a claim": [f"{each} ({_health(node, each)})" for each in node.strays],
        "damaged records": [f"{name}: {why}" for name, why in node.stored.damaged.items()],
    }
    for title, entries in sections.items():
        if entries:
            lines += ["", f"{title}:", *(f"  {entry}" for entry in entries)]
    if node.domains and not node.supervisor_runs:
        lines += [
            "",
            "the MPS supervisor is not running: daemons keep running, but are not supervised",
        ]
    return "\n".join(lines) + "\n"


def report(node: NodeStatus) -> str:
    """Return the node's status as JSON, for programs."""
    document = {
        "claims": [_claim_json(node, record) for record in node.claims],
        "pendingCleanups": [
            {
                "claim": str(record.ref),
                "uid": record.ref.uid,
                "strategy": cleanup.of.name,
                "gpus": cleanup.of.gpus,
                "reason": cleanup.reason,
            }
            for record in node.stored.records
            for cleanup in record.pending
        ],
        "mps": {
            "supervisorRuns": node.supervisor_runs,
            "domainsWithoutClaim": node.strays,
        },
        "health": health_part.as_json(node.health),
        "shares": shares_part.as_json(node.shares, node.claims),
        "damagedRecords": dict(node.stored.damaged),
    }
    return json.dumps(document, indent=2) + "\n"


def _rows(node: NodeStatus, record: ClaimRecord) -> list[tuple[str, ...]]:
    """Return the claim's lines: one for each device and strategy, even for several shares of it.

    The settings then include the number of the claim's shares, and their sum.
    """
    rows = {
        (
            str(record.ref),
            ", ".join(_users(record)) or "-",
            undivided_name(device.name),
            strategy_of(record, device),
            ", ".join(description_of(record, device).words) or "-",
            _state(node, record, device),
        )
        for device in record.devices
    }
    return sorted(rows, key=lambda row: (in_order(row[2]), row))


def _users(record: ClaimRecord) -> Iterator[str]:
    """Yield the pods and PodGroups for which a claim was reserved when it was prepared."""
    yield from (pod.name for pod in record.pods)
    yield from (f"podgroups/{group.name}" for group in record.groups)


def _claim_json(node: NodeStatus, record: ClaimRecord) -> dict[str, object]:
    domains = (description_of(record, device).domain for device in record.devices)
    domain = next((each for each in domains if each in node.domains), None)
    return {
        "namespace": record.ref.namespace,
        "name": record.ref.name,
        "uid": record.ref.uid,
        "state": str(record.state),
        "ofThisBoot": record.boot_id == node.boot_id,
        "pods": [{"name": pod.name, "uid": pod.uid} for pod in record.pods],
        "podGroups": [{"name": group.name, "uid": group.uid} for group in record.groups],
        "devices": [
            {
                "name": device.name,
                "type": str(device.device.kind),
                "uuid": device.device.uuid,
                "gpu": device.device.gpu,
                "requests": device.request_names,
                "strategy": strategy_of(record, device),
                "settings": description_of(record, device).settings,
                "gone": node.gone.get((record.ref.uid, device.name)),
            }
            for device in record.devices
        ],
        "mpsDomain": None if domain is None else _domain_json(node.domains[domain]),
    }


def _domain_json(status: Status | None) -> dict[str, object]:
    if status is None:
        return {"state": "unknown"}
    return {
        "state": str(status.state),
        "reason": status.reason,
        "daemonPID": status.daemon.pid if status.daemon else None,
        "restarts": status.restarts,
        "activeThreadPercentage": status.active_thread_percentage,
        "pinnedMemoryMiB": dict(status.pinned_memory_mib),
    }


def _state(node: NodeStatus, record: ClaimRecord, device: DeviceRecord) -> str:
    if record.boot_id != node.boot_id:
        return "prepared before the last reboot"
    if record.state is RecordState.PREPARING:
        return "being prepared"
    if (record.ref.uid, device.name) in node.gone:
        return "device is gone"
    domain = description_of(record, device).domain
    return "prepared" if domain is None else _health(node, domain)


def _health(node: NodeStatus, domain: DomainId | str) -> str:
    status = node.domains.get(domain)
    if status is None:
        return "the MPS supervisor has not handled it yet"
    facts = [str(status.state)]
    if status.daemon is not None:
        facts.append(f"PID {status.daemon.pid}")
    if status.restarts:
        facts.append(f"daemon died {count(status.restarts, 'time')}")
    if status.reason:
        facts.append(status.reason)
    return ", ".join(facts)


def _cleanups(node: NodeStatus) -> list[str]:
    return [
        f"{record.ref}: {cleanup.of.name} on {', '.join(cleanup.of.gpus)}: {cleanup.reason}"
        for record in node.stored.records
        for cleanup in record.pending
    ]
