"""The kinds that this API server serves, and the URL paths of their objects.

In: a request's path. Out: a Target (kind, namespace, name, subresource), or None for a path that is
not served, which the real API server answers with a bare "404 page not found".
"""

from dataclasses import dataclass
from urllib.parse import unquote


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind; `with_status` means that status is written only through its own subresource."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = False
    with_status: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


def _kind(api_version: str, plural: str, kind: str, facts: str = "") -> Kind:
    group, _, version = api_version.rpartition("/")
    return Kind(
        group=group,
        version=version,
        plural=plural,
        kind=kind,
        namespaced="namespaced" in facts,
        with_status="status" in facts,
    )


_CORE, _DRA, _APPS = "v1", "resource.k8s.io/v1", "apps/v1"
_ADMISSION = "admissionregistration.k8s.io/v1"
KINDS = (
    _kind(_CORE, "nodes", "Node", "status"),
    _kind(_CORE, "pods", "Pod", "namespaced status"),
    _kind(_CORE, "configmaps", "ConfigMap", "namespaced"),
    _kind(_CORE, "namespaces", "Namespace"),
    _kind(_CORE, "secrets", "Secret", "namespaced"),
    _kind("events.k8s.io/v1", "events", "Event", "namespaced"),
    _kind(_DRA, "resourceclaims", "ResourceClaim", "namespaced status"),
    _kind(_DRA, "resourceclaimtemplates", "ResourceClaimTemplate", "namespaced"),
    _kind(_DRA, "resourceslices", "ResourceSlice"),
    _kind(_DRA, "deviceclasses", "DeviceClass"),
    _kind(_DRA, "devicetaintrules", "DeviceTaintRule"),
    _kind(_APPS, "deployments", "Deployment", "namespaced status"),
    _kind(_APPS, "daemonsets", "DaemonSet", "namespaced status"),
    _kind(_ADMISSION, "validatingadmissionpolicies", "ValidatingAdmissionPolicy"),
    _kind(_ADMISSION, "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding"),
)


SELECTED = {
    "events": {
        *(f"regarding.{part}" for part in ("kind", "namespace", "name", "uid", "fieldPath")),
        *("reason", "reportingController", "type"),
    },
    "pods": {
        *(f"spec.{part}" for part in ("nodeName", "restartPolicy", "schedulerName")),
        *("spec.serviceAccountName", "spec.hostNetwork"),
        *("status.phase", "status.podIP", "status.nominatedNodeName"),
    },
    "nodes": {"spec.unschedulable"},
    "namespaces": {"status.phase"},
    "secrets": {"type"},
    "resourceslices": {"spec.driver", "spec.nodeName"},
}
"""Fields by which objects can be selected, besides `metadata.name` and `metadata.namespace`: those
in the kinds' conversions of field labels in Kubernetes' pkg/apis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The target of a path; without a name, a collection."""

    kind: Kind
    namespace: str | None = None
    name: str | None = None
    subresource: str | None = None

    def __str__(self) -> str:
        """Return the resource with its group, such as `resourceclaims/status.resource.k8s.io`."""
        group = f".{self.kind.group}" if self.kind.group else ""
        part = f"/{self.subresource}" if self.subresource else ""
        return f"{self.kind.plural}{part}{group}"


def kind_of(api_version: str, kind: str) -> Kind:
    """Find the kind of an object."""
    for known in KINDS:
        if (known.api_version, known.kind) == (api_version, kind):
            return known
    raise LookupError(f"{api_version} {kind} is not served")


def target_of(path: str) -> Target | None:
    """Read a URL path."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    if parts[:2] == ["api", "v1"]:
        group, version, rest = "", "v1", parts[2:]
    elif parts[0] == "apis" and len(parts) >= 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = None
    if rest[:1] == ["namespaces"] and len(rest) >= 3:
        namespace, rest = rest[1], rest[2:]
    if not 1 <= len(rest) <= 3:
        return None
    for kind in KINDS:
        if (kind.group, kind.version, kind.plural) == (group, version, rest[0]):
            name, subresource = [*rest[1:], None, None][:2]
            if subresource not in {None, "status"} or (namespace and not kind.namespaced):
                return None
            return Target(kind=kind, namespace=namespace, name=name, subresource=subresource)
    return None
