"""The kinds of API objects this driver speaks about, and one request as a value.

Rule: Kubernetes API conventions, "Resource URIs". Nothing here talks to a server.
"""

from urllib.parse import quote

from msgspec import Struct


class Resource(Struct, frozen=True):
    """A kind as the API server's URLs name it. The core group is the empty string.

    Without a version it is not a kind: `plural` is then the path of a page, such as `version`.
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


EVENTS = Resource("events.k8s.io", "v1", "events", namespaced=True)
NODES = Resource("", "v1", "nodes")
PODS = Resource("", "v1", "pods", namespaced=True)
POD_GROUPS = Resource("scheduling.k8s.io", "v1beta1", "podgroups", namespaced=True)
RESOURCE_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", namespaced=True)
RESOURCE_SLICES = Resource("resource.k8s.io", "v1", "resourceslices")
VERSION = Resource("", "", "version")


class Call(Struct, frozen=True, kw_only=True):
    """One request: a verb and an object.

    `verb` is an RBAC verb. `subresource` is a path below the object, such as `proxy/configz`.
    """

    verb: str
    resource: Resource
    name: str | None = None
    namespace: str | None = None
    subresource: str = ""

    def __str__(self) -> str:
        """Describe the request in words for a log or a pod event."""
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
