"""What a node's software reports about GPUs: runtimes, kubelet, this driver, its slices.

In: the node's places, and the cluster if one is known. Out: documents of plain values. Only known
keys without secrets are taken from configs; from this driver's files what their own readers
understand; from the last lines of its log only the known keys. `learn` gets every name with its
kind, so that it can be replaced.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from dra_driver.admin.doctor.facts import node_facts
from dra_driver.admin.doctor.facts.cluster_facts import Cluster
from dra_driver.admin.doctor.facts.places import Places, names_in
from dra_driver.admin.gather.reading import Missing, plain, text_in
from dra_driver.admin.stored import read_notes
from dra_driver.claims.model.record import ClaimRecord, decode
from dra_driver.devices.health.record import read_health
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.errors import StateError, VersionError
from dra_driver.kube.fields import mapping, text

Learn = Callable[[str, str], object]

_KUBELET_FILES = (
    "/var/lib/kubelet/config.yaml",
    "/etc/kubernetes/kubelet/kubelet-config.json",
    "/etc/kubernetes/kubelet/config.json",
    "/home/kubernetes/kubelet-config.yaml",
    "/var/lib/k0s/kubelet-config.yaml",
)
_KUBELET_KEYS = (
    "cgroupDriver", "cgroupsPerQOS", "containerRuntimeEndpoint", "cpuManagerPolicy", "failSwapOn",
    "maxPods", "memoryManagerPolicy", "nodeStatusUpdateFrequency", "podPidsLimit",
    "serializeImagePulls", "shutdownGracePeriod", "topologyManagerPolicy", "topologyManagerScope",
)  # fmt: skip
_WORD = re.compile(r"[\w./:-]{1,128}")
_GATE = re.compile(r"[A-Z][A-Za-z0-9]{1,80}")
_MOST_RECORDS = 512
_MOST_LINES = 400
_LOG_TAIL = 256 * 1024
_LONGEST_VALUE = 2000
_CONTAINERS = frozenset({"kubelet-plugin", "mps-supervisor"})
_SPEC_KEYS = ("driver", "nodeName", "pool", "devices", "sharedCounters", "perDeviceNodeSelection")
_LOG_WORDS = """
timestamp level event reason gpu claim claim_uid advice seconds claims error driver file path
regarding cause consequence device gpus mode slice socket why devices index node origin count
endpoint fields group interval kept links mig_device operation port profile remedy resource start
state subject version address attribute awaiting_reset boot daemons deaths deployment directory
domain domains driver_version field folder gone holder holds kind kubernetes limited_by line
listening lock mig_devices_made missing mps_deployments of peer pid place pod pods pool probe
profiles published_as registration resources retry_seconds service setting shared_by sick slices
source status step strategy thread uuid view withdrawn work writes xid
"""
LOG_KEYS = frozenset(_LOG_WORDS.split())
"""The keys of this program's log lines."""


def config_document(places: Places, missing: Missing) -> dict[str, Any]:
    """Return the settings of the container runtimes and the kubelet that concern this driver."""
    runtimes = node_facts.runtime_configs(places, None)
    if runtimes is None:
        missing.add("the container runtime's files", places.why_without())
    files = {}
    for file in _KUBELET_FILES:
        path = places.on_host(file)
        content = None if path is None else text_in(path, missing)
        if content is not None:
            files[file] = _kubelet(content, file, missing)
    if not files:
        missing.add(", ".join(_KUBELET_FILES), places.why_without())
    return {
        "runtimes": plain(runtimes or ()),
        "kubelet": files,
        "cdiSpecs": plain(node_facts.spec_facts(places)),
        "registration": plain(node_facts.socket_facts(places)),
    }


def _kubelet(content: str, file: str, missing: Missing) -> dict[str, Any]:
    try:
        config = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        missing.add(file, f"it is not YAML ({type(error).__name__})")
        return {}
    if not isinstance(config, dict):
        return {}
    gates = config.get("featureGates")
    known: dict[str, Any] = {
        key: value
        for key in _KUBELET_KEYS
        if isinstance(value := config.get(key), bool | int)
        or (isinstance(value, str) and _WORD.fullmatch(value))
    }
    known["featureGates"] = {
        gate: value
        for gate, value in (gates.items() if isinstance(gates, dict) else ())
        if isinstance(value, bool) and _GATE.fullmatch(str(gate))
    }
    return known


def state_document(places: Places, learn: Learn, missing: Missing) -> dict[str, Any]:
    """Return what this driver keeps on the node: claims, notes, health."""
    directory = places.plugins / DRIVER_NAME
    if not directory.is_dir():
        missing.add(
            directory, "there is no such folder: the driver has not run here, or uses another"
        )
        return {}
    records = list(_records(directory / "claims", missing))
    for record in records:
        _learn(record, learn)
    try:
        health = plain(read_health(directory))
    except (StateError, VersionError) as error:
        missing.add(directory / "health.json", error)
        health = None
    return {
        "claims": [plain(record) for record in records],
        "shares": plain(read_notes(directory)),
        "health": health,
        "files": [name for name in names_in(directory) if re.fullmatch(r"[a-z.-]{1,64}", name)],
        "quarantined": len(names_in(directory / "quarantine")),
    }


def _records(folder: Path, missing: Missing) -> Iterator[ClaimRecord]:
    names = [name for name in names_in(folder) if re.fullmatch(r"\w[\w.-]*\.json", name)]
    if len(names) > _MOST_RECORDS:
        missing.add(folder, f"only {_MOST_RECORDS} of {len(names)} records were taken")
    for name in names[:_MOST_RECORDS]:
        content = text_in(folder / name, missing)
        try:
            if content is not None:
                yield decode(content.encode())
        except (StateError, VersionError) as error:
            missing.add(folder / name, error)


def _learn(record: ClaimRecord, learn: Learn) -> None:
    learn("claim-uid", record.ref.uid)
    learn("namespace", record.ref.namespace)
    learn("claim", record.ref.name)
    learn("claim", record.pod_claim_name)
    for pod in record.pods:
        learn("pod-uid", pod.uid)
        learn("pod", pod.name)
    for group in record.groups:
        learn("pod-group", group.name)
    for device in record.devices:
        learn("node", device.pool)


def log_document(places: Places, learn: Learn, missing: Missing) -> list[dict[str, Any]]:
    """Return the last lines of each container of this driver, as far as they are log lines."""
    folder = places.on_host("/var/log/pods")
    if folder is None:
        missing.add("/var/log/pods", places.why_without())
        return []
    logs = []
    for pod in names_in(folder):
        namespace, _, rest = pod.partition("_")
        name = rest.rpartition("_")[0]
        for container in names_in(folder / pod):
            if container not in _CONTAINERS:
                continue
            lines = list(_lines(folder / pod / container, missing))
            if not lines:
                continue
            learn("namespace", namespace)
            learn("pod", name)
            for line in lines:
                _learn_line(line, learn)
            logs.append({"container": container, "pod": name, "lines": lines[-_MOST_LINES:]})
    return logs


def _lines(folder: Path, missing: Missing) -> Iterator[dict[str, Any]]:
    """Yield the log lines of a container's newest file; other lines are skipped."""
    names = [name for name in names_in(folder) if re.fullmatch(r"\d{1,6}\.log", name)]
    if not names:
        return
    newest = max(names, key=lambda name: int(name.removesuffix(".log")))
    for line in _tail(folder / newest, missing).splitlines():
        start = line.find("{")
        try:
            said = json.loads(line[start:]) if start >= 0 else None
        except (ValueError, RecursionError):
            continue
        if isinstance(said, dict) and {"timestamp", "level", "event"} <= said.keys():
            yield {
                key: value if isinstance(value, int | float) else str(value)[:_LONGEST_VALUE]
                for key, value in said.items()
                if key in LOG_KEYS
            }


def _tail(path: Path, missing: Missing) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _LOG_TAIL))
            return file.read(_LOG_TAIL).decode(errors="replace")
    except OSError as error:
        missing.add(path, error)
        return ""


def _learn_line(line: Mapping[str, Any], learn: Learn) -> None:
    """Learn the names of objects under a line's keys, with or without namespace."""
    for key, kind in (("claim", "claim"), ("pod", "pod"), ("node", "node"), ("pool", "node")):
        namespace, _, name = str(line.get(key, "")).rpartition("/")
        learn(kind, name)
        learn("namespace", namespace)
    learn("claim-uid", str(line.get("claim_uid", "")))


def slices_document(cluster: Cluster, learn: Learn) -> list[dict[str, Any]]:
    """Return the ResourceSlices that this driver published for the node. Raises DriverError."""
    slices = cluster.slices()
    for slice_ in slices:
        learn("node", text(slice_, "spec", "nodeName"))
        learn("node", text(slice_, "spec", "pool", "name"))
        learn("slice", text(slice_, "metadata", "name"))  # it begins with the node's name
    return sorted(
        ({"name": text(each, "metadata", "name"), "spec": _spec(each)} for each in slices),
        key=lambda entry: str(entry["name"]),
    )


def _spec(resource_slice: Mapping[str, Any]) -> dict[str, Any]:
    spec = mapping(resource_slice, "spec")
    return {key: spec[key] for key in _SPEC_KEYS if key in spec}
