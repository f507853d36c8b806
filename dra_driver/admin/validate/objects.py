"""What is wrong with an object, as far as it concerns this driver: its version, moved fields, keys.

It looks at ResourceClaims, ResourceClaimTemplates, DeviceClasses and pods, by themselves and in
workloads. The API server checks fields and values, but does not say what to write in place of an
older version or a misplaced field. What each version of Kubernetes serves: k8s.io/api/resource.
"""

import re
from collections.abc import Iterator, Mapping

from dra_driver.admin.validate import claim_fields, pods, selectors
from dra_driver.admin.validate.claim_fields import CLAIMS, CONVERTS, DEVICES
from dra_driver.kube.fields import at, entries
from resource_nvidia_com.printable import plain
from resource_nvidia_com.problems import DuplicateKeys, Path, Problem, dotted, parts

_GROUP = "resource.k8s.io"
_VERSION = f"{_GROUP}/v1"
_OLDEST = "Kubernetes 1.34"
"""The oldest version that this driver supports, and the first with resource.k8s.io/v1."""

_OFF = f"{_OLDEST} and newer serve it only if an admin has enabled it"
_GONE = f"{_OLDEST} and newer do not serve it"
NO_KIND = Problem(
    path=("kind",), text="kind: missing, so this is not checked, and kubectl refuses it"
)

OLD_CONFIGS = "gpu.nvidia.com/v1alpha1"
"""The former name of the group of claim configs."""

_WITHOUT_DEVICES = re.compile(
    r"resource\.k8s\.io/v1alpha[12] .*"
    r"|resource\.k8s\.io/\S+ (ResourceClass|Resource(Class|Claim)Parameters)(List)?"
    r"|(nas\.)?gpu\.resource\.nvidia\.com/.*"
    rf"|{re.escape(OLD_CONFIGS)} .*Parameters"
)
"""Versions and kinds of objects for clusters without DeviceClasses, and of their parameters."""

_POD_TEMPLATES: Mapping[tuple[str, str], Path] = {
    **dict.fromkeys(
        [("apps/v1", kind) for kind in ("Deployment", "DaemonSet", "ReplicaSet", "StatefulSet")]
        + [("batch/v1", "Job"), ("v1", "ReplicationController")],
        ("spec", "template"),
    ),
    ("v1", "Pod"): (),
    ("batch/v1", "CronJob"): ("spec", "jobTemplate", "spec", "template"),
}
"""Where workloads have their pods."""


def objects_of(value: object, path: Path = ()) -> Iterator[tuple[Path, Mapping[str, object]]]:
    """Yield (path, object) of a document, or of the objects of a list."""
    if not is_list(value):
        yield path, value if isinstance(value, Mapping) else {}
        return
    kind = str(at(value, "kind")).removesuffix("List")
    # The items of a typed list may leave out what the list says.
    known = {"apiVersion": at(value, "apiVersion"), "kind": kind} if kind else {}
    for index, item in enumerate(entries(value, "items")):
        if isinstance(item, Mapping):
            full = item if "kind" in item else {**known, **item}
            yield from objects_of(full, (*path, "items", index))


def is_list(value: object) -> bool:
    """Return whether a document is a list of objects."""
    return str(at(value, "kind")).endswith("List") and isinstance(at(value, "items"), list)


def name_of_kind(value: Mapping[str, object]) -> str:
    """Return the kind and group of an object, such as Rollout.argoproj.io; empty without a kind."""
    group, slash, _ = str(value.get("apiVersion") or "").rpartition("/")
    return (
        f"{plain(str(kind))}{'.' * bool(slash)}{plain(group)}"
        if (kind := value.get("kind"))
        else ""
    )


def problems(value: Mapping[str, object]) -> Iterator[Problem]:
    """Yield what no cluster accepts in an object, and what kubectl drops."""
    if {"apiVersion", "kind"} <= value.keys():
        yield from doubled(value)
    version, kind = str(value.get("apiVersion", "")), str(value.get("kind", ""))
    if text := _outdated(version, kind):
        yield Problem(path=(text.partition(":")[0],), text=text)
    if kind in DEVICES and is_of_devices(value):
        if kind in CLAIMS:
            yield from claim_fields.misplaced(value)
            yield from claim_fields.resource_names(value)
        yield from selectors.refused(value)
    if pod := pod_of(value):
        yield from pods.refused(*pod)


def is_looked_at(value: Mapping[str, object]) -> bool:
    """Return whether anything but an object's keys is checked."""
    version, kind = str(value.get("apiVersion", "")), str(value.get("kind", ""))
    is_known = kind in DEVICES and is_of_devices(value)
    return is_known or pod_of(value) is not None or bool(_outdated(version, kind))


def is_of_devices(value: Mapping[str, object]) -> bool:
    """Return whether an object is of the API group of ResourceClaims, in any version."""
    return str(value.get("apiVersion", "")).startswith(f"{_GROUP}/")


def pod_of(value: Mapping[str, object]) -> tuple[object, Path] | None:
    """Return the pod that an object is, or its pod template, and its path; None without any."""
    kind = str(value.get("apiVersion", "")), str(value.get("kind", ""))
    path = _POD_TEMPLATES.get(kind)
    return None if path is None else (at(value, *path), path)


def _outdated(version: str, kind: str) -> str:
    """Return why no cluster accepts this version of a kind, after the field; empty if one does."""
    if is_without_devices(version, kind):
        return (
            f"apiVersion: {plain(version)} with {plain(kind)} is for clusters older than "
            f"Kubernetes 1.31, and nothing reads it now: write a claim or template of {_VERSION} "
            "that asks for devices of a DeviceClass, with settings for sharing in devices.config "
            "(docs/writing-pods.md)"
        )
    single = kind.removesuffix("List")
    if version.startswith(f"{_GROUP}/") and single in DEVICES and version != _VERSION:
        why = _OFF if "beta" in version else _GONE
        return f"apiVersion: {plain(version)}: {why}: write {_VERSION}; {CONVERTS}"
    return ""


def is_without_devices(version: str, kind: str) -> bool:
    """Return whether a kind is of Kubernetes before 1.31, where drivers allocated claims."""
    return bool(_WITHOUT_DEVICES.fullmatch(f"{version} {kind}"))


def doubled(value: object) -> Iterator[Problem]:
    """Yield duplicate keys; kubectl silently sends only the last one."""
    for path, part in parts(value):
        for key in part.duplicates if isinstance(part, DuplicateKeys) else ():
            where = (*path, key)
            text = f"{dotted(where)}: this key is duplicated, and all but the last are dropped"
            yield Problem(path=where, text=f"{text}: keep only one")
