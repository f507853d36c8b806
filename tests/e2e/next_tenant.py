"""A pod in another namespace, which waits for what a tenant has."""

from collections.abc import Iterator
from contextlib import contextmanager

from testbed.api import Object
from testbed.pods import container, make_namespace, wait_gone

from e2e.scene import Scene

OTHER, NEXT = "e2e-next-tenant", "next"


@contextmanager
def namespace_of(scene: Scene) -> Iterator[None]:
    """Have the other namespace, and leave nothing of it."""
    make_namespace(scene.api, OTHER)
    try:
        yield
    finally:
        scene.api.delete("Pod", NEXT, OTHER)
        wait_gone(scene.api, OTHER, [NEXT])
        scene.api.delete("Namespace", OTHER)


def ask(scene: Scene, spec: Object) -> None:
    """Make a claim, and a pod that waits for it."""
    named = {"metadata": {"name": NEXT}}
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **named, "spec": spec}
    scene.api.create(claim, OTHER)
    body = {
        "resourceClaims": [{"name": "gpu", "resourceClaimName": NEXT}],
        "containers": [container("ctr", {"claims": [{"name": "gpu"}]})],
        "terminationGracePeriodSeconds": 1,
    }
    scene.api.create({"apiVersion": "v1", "kind": "Pod", **named, "spec": body}, OTHER)
