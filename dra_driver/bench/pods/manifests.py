"""A case as objects of the API: a namespace, claims, and pods that use them. Pure.

Tenants of a shared device name one claim; tenants with separate devices have one request each, of
one claim, too, so that their devices are on one GPU. A pod learns when to begin from its own
annotation, which the kubelet shows it as a file, so it needs no token, network or permission for
that.
"""

import json
import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

from dra_driver.bench import commands, lines
from dra_driver.bench.strategies import UNDER_MPS, Part, Sharing, Strategy, watcher
from dra_driver.cdi.driver_edits import HOOKLESS_LIBRARIES
from dra_driver.claims.report.claim_status import stored_entries
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.kube.fields import objects

JsonObject = dict[str, object]

LABEL = "bench.resource.nvidia.com/run"
START = "bench.resource.nvidia.com/start"
CLAIM = "work"
TENANT = "tenant"
LATENCIES = "/dev/termination-log"
"""Where a command writes its latencies: the API shows the content, up to 4096 bytes."""

PULL_SECRET = "image-pull"  # noqa: S105 (its name)
_FOLDER = "/bench"
_LIBRARIES = f"/usr/local/nvidia/lib:{HOOKLESS_LIBRARIES}"
"""Where CUDA images look, too: a plain one would not find libcuda without CDI hooks."""

_TOLERATIONS = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
"""The taint that keeps pods without GPUs off many clusters' GPU nodes."""

_API = "resource.nvidia.com/v1beta1"
_MIG_CLASS = "mig.nvidia.com"


class Place(Struct, frozen=True, kw_only=True):
    """What all pods of a run have: image, node, and the resource name of shares.

    `command_image` is that of a command, if it differs: it needs `sh`, but no Python.
    `pull_secret`, as NAMESPACE/NAME, is a Secret that is copied into the run's namespace.
    """

    image: str
    command_image: str = ""
    node: str = ""
    shares: str = ""
    pull_secret: str = ""
    patience: float = 600.0


def namespace(name: str, run: str) -> JsonObject:
    """Return the namespace of a run."""
    metadata = {"name": name, "labels": {LABEL: run}}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def pull_secret(secret: Mapping[str, object]) -> JsonObject:
    """Return the copy of a Secret for pulling images."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": PULL_SECRET},
        "type": secret.get("type"),
        "data": secret.get("data") or {},
    }


def device_class(strategy: Strategy) -> str:
    """Return the DeviceClass of a strategy's devices."""
    return _MIG_CLASS if strategy.sharing is Sharing.MIG else DRIVER_NAME


def requests(strategy: Strategy) -> list[JsonObject]:
    """Return the requests of a strategy's claim: one for each tenant that has its own device."""
    names = _request_names(strategy)
    asked: list[JsonObject] = []
    for number, name in enumerate(names):
        exactly: JsonObject = {"deviceClassName": device_class(strategy)}
        if profile := strategy.profiles[number]:
            expression = f"device.attributes['{DRIVER_NAME}'].profile == '{profile}'"
            exactly["selectors"] = [{"cel": {"expression": expression}}]
        if strategy.parts[number].gpus > 1:
            exactly["count"] = strategy.parts[number].gpus
        asked.append({"name": name, "exactly": exactly})
    return asked


def claim_config(strategy: Strategy) -> JsonObject | None:
    """Return the opaque config of a strategy's claim; None if it needs none."""
    if strategy.sharing in (Sharing.ALONE, Sharing.WHOLE_GPUS, Sharing.MIG, Sharing.SHARES):
        return None
    sharing: JsonObject = {"strategy": "TimeSlicing"}
    if strategy.sharing in UNDER_MPS:
        limits: JsonObject = {}
        if strategy.thread_percentage is not None:
            limits["defaultActiveThreadPercentage"] = strategy.thread_percentage
        if strategy.memory_mib is not None:
            limits["defaultPinnedDeviceMemoryLimit"] = f"{strategy.memory_mib}Mi"
        sharing = {"strategy": "MPS", **({"mpsConfig": limits} if limits else {})}
    parameters = {"apiVersion": _API, "kind": "GpuConfig", "sharing": sharing}
    return {"driver": DRIVER_NAME, "parameters": parameters}


def claim(strategy: Strategy) -> JsonObject | None:
    """Return the claim of a case; None for shares, which pods ask for by a resource name."""
    if strategy.sharing is Sharing.SHARES:
        return None
    names = _request_names(strategy)
    devices: JsonObject = {"requests": requests(strategy)}
    if config := claim_config(strategy):
        devices["config"] = [{"requests": list(names), "opaque": config}]
    if len(names) > 1 and strategy.sharing is Sharing.MIG:
        attribute = f"{DRIVER_NAME}/parentUUID"
        devices["constraints"] = [{"requests": list(names), "matchAttribute": attribute}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": CLAIM},
        "spec": {"devices": devices},
    }


def pod(strategy: Strategy, seats: Sequence[Part], number: int, place: Place) -> JsonObject:
    """Return the pod of one tenant of `seats`, which are the strategy's with a seed."""
    seat, environment = seats[number], seats[number].environment()
    container: JsonObject = {
        "name": TENANT,
        "image": (seat.is_command and place.command_image) or place.image,
        "imagePullPolicy": "IfNotPresent",
        "command": _command(seats, number, place),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    spec: JsonObject = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        # Pods that a killed run leaves end by themselves, which frees their GPU.
        "activeDeadlineSeconds": math.ceil(
            place.patience + seat.after + seat.work.warm_up + seat.work.seconds
        )
        + 60,
        "tolerations": _TOLERATIONS,
    }
    shown = {"fieldPath": f"metadata.annotations['{START}']"}
    start = {"items": [{"path": "start", "fieldRef": shown}]}
    spec["volumes"] = [{"name": "bench", "downwardAPI": start}]
    container["volumeMounts"] = [{"name": "bench", "mountPath": _FOLDER, "readOnly": True}]
    if not seat.is_command:
        environment["LD_LIBRARY_PATH"] = _LIBRARIES
    if environment:
        container["env"] = [{"name": name, "value": value} for name, value in environment.items()]
    if place.pull_secret:
        spec["imagePullSecrets"] = [{"name": PULL_SECRET}]
    if strategy.sharing is Sharing.SHARES:
        container["resources"] = {"limits": {place.shares: "1"}}
    else:
        spec["resourceClaims"] = [{"name": CLAIM, "resourceClaimName": CLAIM}]
        names = _request_names(strategy)
        request = {"request": names[number]} if len(names) > 1 else {}
        container["resources"] = {"claims": [{"name": CLAIM, **request}]}
    if place.node:
        spec["affinity"] = _only_on(place.node)
    spec["containers"] = [container]
    name = pod_name(number)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _only_on(node: str) -> JsonObject:
    """Return the affinity to one node, by its name: its label of the host name may differ."""
    named = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = [{"matchFields": [named]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"nodeAffinity": required}


def pod_name(number: int) -> str:
    """Return the name of a tenant's pod."""
    return f"tenant-{number}"


def beginning(moment: float) -> JsonObject:
    """Return the patch that tells a pod when to begin."""
    return {"metadata": {"annotations": {START: f"{moment:.3f}"}}}


def _request_names(strategy: Strategy) -> Sequence[str]:
    if strategy.sharing in (Sharing.MIG, Sharing.WHOLE_GPUS):
        return tuple(f"gpu-{number}" for number in range(strategy.tenants))
    return ("gpu",)


def _command(seats: Sequence[Part], number: int, place: Place) -> list[str]:
    start, work = f"{_FOLDER}/start", seats[number].work
    if seats[number].is_command:
        words = commands.words(work, LATENCIES)
        if place.command_image:
            return list(commands.held_by_sh(start, words))
        held = ("-m", "dra_driver.bench.tenant.supervised", "--start", start)
        return ["python3", *held, *words]
    spec = lines.Spec(
        number=number,
        work=work,
        start=start,
        patience=place.patience,
        watches=number == watcher(seats),
    )
    return ["python3", "-m", "dra_driver.bench.tenant.program", spec.model_dump_json()]


def allocated(thing: Mapping[str, object]) -> str:
    """Return which devices a claim has, in a few words; empty if it has none."""
    given = objects(thing, "status", "allocation", "devices", "results")
    devices = sorted({f"{result.get('pool')}/{result.get('device')}" for result in given})
    return ", ".join(devices)


def sharing_said(thing: Mapping[str, object]) -> tuple[str, ...]:
    """Return what the driver has written about how a claim's devices are shared."""
    said = [(entry.get("data") or {}).get("sharing") for entry in stored_entries(thing).values()]
    return tuple(dict.fromkeys(json.dumps(config, sort_keys=True) for config in said if config))
