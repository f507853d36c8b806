"""The kinds this API server serves, and how a URL path names one of their objects.

In: a request's path. Out: a Target (kind, namespace, name, subresource), or None for a path nobody
serves, which the real API server answers with a bare "404 page not found".
"""

from dataclasses import dataclass
from urllib.parse import unquote


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind; `with_status` means that status is written through its own subresource only."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = False
    with_status: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


KINDS = (
    Kind(group="", version="v1", plural="nodes", kind="Node", with_status=True),
    Kind(group="", version="v1", plural="pods", kind="Pod", namespaced=True, with_status=True),
    Kind(group="", version="v1", plural="configmaps", kind="ConfigMap", namespaced=True),
    Kind(group="", version="v1", plural="namespaces", kind="Namespace"),
    Kind(group="", version="v1", plural="secrets", kind="Secret", namespaced=True),
    Kind(group="events.k8s.io", version="v1", plural="events", kind="Event", namespaced=True),
    Kind(
        group="resource.k8s.io",
        version="v1",
        plural="resourceclaims",
        kind="ResourceClaim",
        namespaced=True,
        with_status=True,
    ),
    Kind(
        group="resource.k8s.io",
        version="v1",
        plural="resourceclaimtemplates",
        kind="ResourceClaimTemplate",
        namespaced=True,
    ),
    Kind(group="resource.k8s.io", version="v1", plural="resourceslices", kind="ResourceSlice"),
    Kind(group="resource.k8s.io", version="v1", plural="deviceclasses", kind="DeviceClass"),
    Kind(group="resource.k8s.io", version="v1", plural="devicetaintrules", kind="DeviceTaintRule"),
    Kind(
        group="apps",
        version="v1",
        plural="deployments",
        kind="Deployment",
        namespaced=True,
        with_status=True,
    ),
    Kind(
        group="apps",
        version="v1",
        plural="daemonsets",
        kind="DaemonSet",
        namespaced=True,
        with_status=True,
    ),
    Kind(
        group="admissionregistration.k8s.io",
        version="v1",
        plural="validatingadmissionpolicies",
        kind="ValidatingAdmissionPolicy",
    ),
    Kind(
        group="admissionregistration.k8s.io",
        version="v1",
        plural="validatingadmissionpolicybindings",
        kind="ValidatingAdmissionPolicyBinding",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a path points at. No name: the collection."""

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
    """Find a kind by what an object says about itself."""
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
