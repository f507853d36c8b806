"""The kinds of API objects this driver speaks about, and one request as a value.

Rule: Kubernetes API conventions, "Resource URIs". Nothing here talks to a server.
"""

from urllib.parse import quote

from msgspec import Struct


class Resource(Struct, frozen=True, kw_only=True):
    """A kind as the API server's URLs name it. The core group is the empty string.

    One without a version is no kind: `plural` is then the path of a page, such as `version`.
    """

    group: str
    version: str
    plural: str
    namespaced: bool = False

    def __str__(self) -> str:
        """Name the kind as RBAC rules and kubectl do: `resourceclaims.resource.k8s.io`."""
        if not self.version:
            return f"/{self.plural}"
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        """Return the kind's `apiVersion`, such as `resource.k8s.io/v1` or `v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, name: str | None = None, *, namespace: str | None = None) -> str:
        """Return the URL path of one object, or of the collection when `name` is None.

        A namespaced kind without a namespace means the collection over all namespaces.
        """
        if not self.version:
            return f"/{self.plural}"
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"
        if self.namespaced and namespace is not None:
            root += f"/namespaces/{_quoted(namespace)}"
        path = f"{root}/{self.plural}"
        return path if name is None else f"{path}/{_quoted(name)}"


def _quoted(name: str) -> str:
    return quote(name, safe="", errors="replace")


CLAIM_TEMPLATES = Resource(
    group="resource.k8s.io", version="v1", plural="resourceclaimtemplates", namespaced=True
)
CONFIG_MAPS = Resource(group="", version="v1", plural="configmaps", namespaced=True)
DAEMON_SETS = Resource(group="apps", version="v1", plural="daemonsets", namespaced=True)
DEPLOYMENTS = Resource(group="apps", version="v1", plural="deployments", namespaced=True)
DEVICE_CLASSES = Resource(group="resource.k8s.io", version="v1", plural="deviceclasses")
DEVICE_TAINT_RULES = Resource(group="resource.k8s.io", version="v1", plural="devicetaintrules")
EVENTS = Resource(group="events.k8s.io", version="v1", plural="events", namespaced=True)
NAMESPACES = Resource(group="", version="v1", plural="namespaces")
NODES = Resource(group="", version="v1", plural="nodes")
PODS = Resource(group="", version="v1", plural="pods", namespaced=True)
POD_GROUPS = Resource(
    group="scheduling.k8s.io", version="v1beta1", plural="podgroups", namespaced=True
)
POLICIES = Resource(
    group="admissionregistration.k8s.io", version="v1", plural="validatingadmissionpolicies"
)
POLICY_BINDINGS = Resource(
    group="admissionregistration.k8s.io", version="v1", plural="validatingadmissionpolicybindings"
)
RESOURCE_CLAIMS = Resource(
    group="resource.k8s.io", version="v1", plural="resourceclaims", namespaced=True
)
RESOURCE_SLICES = Resource(group="resource.k8s.io", version="v1", plural="resourceslices")
SECRETS = Resource(group="", version="v1", plural="secrets", namespaced=True)
SELF_REVIEWS = Resource(
    group="authorization.k8s.io", version="v1", plural="selfsubjectaccessreviews"
)
SUBJECT_REVIEWS = Resource(
    group="authorization.k8s.io", version="v1", plural="subjectaccessreviews"
)
VERSION = Resource(group="", version="", plural="version")


class Call(Struct, frozen=True, kw_only=True):
    """One request: what is asked of which object. `verb` is an RBAC verb.

    `subresource` is a path below the object, such as `proxy/configz`.
    """

    verb: str
    resource: Resource
    name: str | None = None
    namespace: str | None = None
    subresource: str = ""

    def __str__(self) -> str:
        """Say the request in words a log or a pod event can carry."""
        words = [self.verb, self.permission.partition(".")[0]]
        if self.name:
            words.append(f"{self.namespace}/{self.name}" if self.namespace else self.name)
        elif self.namespace:
            words.append(f"in namespace {self.namespace}")
        return " ".join(words)

    @property
    def permission(self) -> str:
        """Return what RBAC grants the verb on, such as `nodes/proxy`."""
        part = self.subresource.partition("/")[0]
        plural, dot, group = str(self.resource).partition(".")
        return f"{plural}/{part}{dot}{group}" if part else str(self.resource)

    @property
    def path(self) -> str:
        """Return the URL path of the request, without a query."""
        path = self.resource.path(self.name, namespace=self.namespace)
        return f"{path}/{self.subresource}" if self.subresource else path
