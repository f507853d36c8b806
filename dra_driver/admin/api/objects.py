"""Kinds of API objects, and forms of their fields, that only commands for people read.

What the driver reads, too, is in kube/resource.py and fields.py.
"""

from functools import lru_cache

from dra_driver.kube.fields import Object, entries, mapping, text
from dra_driver.kube.resource import Resource
from resource_nvidia_com.quantity import Quantity

CLAIM_TEMPLATES = Resource("resource.k8s.io", "v1", "resourceclaimtemplates", namespaced=True)
CONFIG_MAPS = Resource("", "v1", "configmaps", namespaced=True)
DAEMON_SETS = Resource("apps", "v1", "daemonsets", namespaced=True)
DEPLOYMENTS = Resource("apps", "v1", "deployments", namespaced=True)
DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses")
DEVICE_TAINT_RULES = Resource("resource.k8s.io", "v1", "devicetaintrules")
NAMESPACES = Resource("", "v1", "namespaces")
POLICIES = Resource("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies")
POLICY_BINDINGS = Resource(
    "admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings"
)
SECRETS = Resource("", "v1", "secrets", namespaced=True)
SELF_REVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews")
SUBJECT_REVIEWS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews")


def texts(holder: object, *path: str | int) -> tuple[str, ...]:
    """Return the strings of a list."""
    return tuple(map(str, entries(holder, *path)))


@lru_cache(maxsize=4096)
def quantity(value: str) -> Quantity:
    """Return a quantity; many devices have the same few. Raises ValueError."""
    return Quantity.parse(value)


def nanos(value: object) -> int:
    """Return a quantity in billionths of its unit. Raises ValueError."""
    return quantity(str(value)).nanos


def full_name(thing: Object) -> str:
    """Return an object's namespace and name."""
    metadata = mapping(thing, "metadata")
    return f"{text(metadata, 'namespace')}/{text(metadata, 'name')}"
