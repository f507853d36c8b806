"""`dra-driver status`: who has which GPU of this node, how it is shared, and what is not in order.

In: the files of the driver and of the MPS supervisor below the kubelet's plugins directory; they
need not run. Out: on stdout a table for people or JSON for programs. Nothing is changed, and no
GPU, API server or driver is asked.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from dra_driver.boot import read_boot_id
from dra_driver.claims.checkpoint import StoredRecords, stored_records
from dra_driver.claims.devices import DeviceRecord, recorded_kind
from dra_driver.claims.record import ClaimRecord, RecordState
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.errors import SetupError
from dra_driver.mps.domain import DomainId, Status, claim_of
from dra_driver.mps.requests import DomainRequests
from dra_driver.settings import CommandSettings, KubeletPluginsDirectory, ProcRoot
from dra_driver.sharing import mps, time_slicing
from dra_driver.sharing.base import EXCLUSIVE, Description, DeviceUuid, SharingPlan
from dra_driver.sharing.mps import Mps
from dra_driver.sharing.time_slicing import TimeSlicing
from dra_driver.table import aligned

_COLUMNS = ("CLAIM", "PODS", "DEVICE", "STRATEGY", "SETTINGS", "STATE")
_ADMIN_ACCESS = "AdminAccess"

_DESCRIBE: Mapping[str, Callable[[SharingPlan, DeviceUuid], Description]] = MappingProxyType(
    {time_slicing.NAME: TimeSlicing.describe, mps.NAME: Mps.describe}
)
"""How each strategy describes its plans. One that is not known here shows by its name alone."""


class ShowStatus(CommandSettings):
    """Show this node's prepared claims, how their GPUs are shared, and what is not in order."""

    model_config = SettingsConfigDict(
        env_prefix="status_",  # for what is not a setting of the driver, and has no alias
        cli_prog_name="dra-driver status",
    )

    output: Literal["table", "json"] = Field("table", description="Form of what is printed.")
    kubelet_plugins_directory_path: KubeletPluginsDirectory = Field(
        description="Where the driver keeps its records, below gpu.nvidia.com.",
    )
    proc_root: ProcRoot

    def cli_cmd(self) -> None:
        """Look and print.

        Raises:
            SetupError: no driver has ever run here, or procfs is not where it should be.
            StateError: the files cannot be read.
        """
        node = look(self.kubelet_plugins_directory_path / DRIVER_NAME, read_boot_id(self.proc_root))
        sys.stdout.write(table(node) if self.output == "table" else report(node))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """What the files of a node say.

    Attributes:
        boot_id: of the present boot.
        stored: the records, and damaged ones.
        domains: MPS domains by id; None for one that no supervisor has taken up.
        supervisor_runs: whether an MPS supervisor runs.
    """

    boot_id: str
    stored: StoredRecords
    domains: Mapping[str, Status | None]
    supervisor_runs: bool

    @property
    def claims(self) -> list[ClaimRecord]:
        """The records of claims that have devices, by name."""
        found = [one for one in self.stored.records if one.state is not RecordState.RELEASED]
        return sorted(found, key=lambda one: (one.ref.namespace, one.ref.name, one.ref.uid))

    @property
    def strays(self) -> list[str]:
        """MPS domains that belong to no record."""
        known = {str(one.ref.uid) for one in self.stored.records}
        return sorted(domain for domain in self.domains if claim_of(DomainId(domain)) not in known)


def look(directory: Path, boot_id: str) -> NodeStatus:
    """Read the files below the driver's directory.

    Raises:
        SetupError: there are none.
        StateError: they cannot be read.
    """
    if not directory.is_dir():
        raise SetupError(
            f"{directory} is not there: the driver has not run on this node, or its directory is "
            "another one (--kubelet-plugins-directory-path)"
        )
    requests = DomainRequests(directory / "mps", lambda: 0.0)
    return NodeStatus(
        boot_id=boot_id,
        stored=stored_records(directory),
        domains={str(domain): requests.status(domain) for domain in requests.list()},
        supervisor_runs=requests.supervisor_runs(),
    )


def table(node: NodeStatus) -> str:
    """Return it for people."""
    rows = [_row(node, record, device) for record in node.claims for device in record.devices]
    lines = aligned([_COLUMNS, *rows]) if rows else ["no claim is prepared on this node"]
    sections = {
        "not taken back yet": _cleanups(node),
        "MPS domains without a claim": [f"{each} ({_health(node, each)})" for each in node.strays],
        "damaged records": [f"{name}: {why}" for name, why in node.stored.damaged.items()],
    }
    for title, entries in sections.items():
        if entries:
            lines += ["", f"{title}:", *(f"  {entry}" for entry in entries)]
    if node.domains and not node.supervisor_runs:
        lines += [
            "",
            "the MPS supervisor is not running: daemons go on, but nobody looks after them",
        ]
    return "\n".join(lines) + "\n"


def report(node: NodeStatus) -> str:
    """Return it as JSON, for programs."""
    document = {
        "claims": [_claim_json(node, record) for record in node.claims],
        "pendingCleanups": [
            {
                "claim": str(record.ref),
                "uid": record.ref.uid,
                "strategy": cleanup.name,
                "gpus": cleanup.gpus,
                "reason": cleanup.reason,
            }
            for record in node.stored.records
            for cleanup in record.pending
        ],
        "mps": {
            "supervisorRuns": node.supervisor_runs,
            "domainsWithoutClaim": node.strays,
        },
        "damagedRecords": dict(node.stored.damaged),
    }
    return json.dumps(document, indent=2) + "\n"


def _row(node: NodeStatus, record: ClaimRecord, device: DeviceRecord) -> tuple[str, ...]:
    return (
        str(record.ref),
        ", ".join(pod.name for pod in record.pods) or "-",
        device.name,
        _strategy(record, device),
        _description(record, device).words or "-",
        _state(node, record, device),
    )


def _claim_json(node: NodeStatus, record: ClaimRecord) -> dict[str, object]:
    domains = (_description(record, device).domain for device in record.devices)
    domain = next((one for one in domains if one in node.domains), None)
    return {
        "namespace": record.ref.namespace,
        "name": record.ref.name,
        "uid": record.ref.uid,
        "state": str(record.state),
        "ofThisBoot": record.boot_id == node.boot_id,
        "pods": [{"name": pod.name, "uid": pod.uid} for pod in record.pods],
        "devices": [
            {
                "name": device.name,
                "type": str(recorded_kind(device.device)),
                "uuid": device.device.device_uuid,
                "gpu": device.device.gpu,
                "requests": device.request_names,
                "strategy": _strategy(record, device),
                "settings": _description(record, device).settings,
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


def _plan_of(record: ClaimRecord, device: DeviceRecord) -> SharingPlan | None:
    if device.admin_access:
        return None
    return next((plan for plan in record.plans if device.device.part in plan.parts), None)


def _strategy(record: ClaimRecord, device: DeviceRecord) -> str:
    plan = _plan_of(record, device)
    if device.admin_access:
        return _ADMIN_ACCESS
    return plan.strategy if plan else EXCLUSIVE


def _description(record: ClaimRecord, device: DeviceRecord) -> Description:
    """Return what a device's containers are given, as its strategy describes it."""
    plan, uuid = _plan_of(record, device), device.device.device_uuid
    if plan is None or uuid is None or plan.strategy not in _DESCRIBE:
        return Description()
    return _DESCRIBE[plan.strategy](plan, uuid)


def _state(node: NodeStatus, record: ClaimRecord, device: DeviceRecord) -> str:
    if record.boot_id != node.boot_id:
        return "prepared before the last reboot"
    if record.state is RecordState.PREPARING:
        return "being prepared"
    domain = _description(record, device).domain
    return "prepared" if domain is None else _health(node, domain)


def _health(node: NodeStatus, domain: DomainId | str) -> str:
    status = node.domains.get(domain)
    if status is None:
        return "not taken up by the MPS supervisor"
    facts = [str(status.state)]
    if status.daemon is not None:
        facts.append(f"PID {status.daemon.pid}")
    if status.restarts:
        facts.append(f"daemon died {status.restarts} times")
    if status.reason:
        facts.append(status.reason)
    return ", ".join(facts)


def _cleanups(node: NodeStatus) -> list[str]:
    return [
        f"{record.ref}: {cleanup.name} on {', '.join(cleanup.gpus)}: {cleanup.reason}"
        for record in node.stored.records
        for cleanup in record.pending
    ]
