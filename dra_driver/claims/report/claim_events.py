"""Posts Kubernetes events on claims, and on the pods and PodGroups that have them reserved.

Events are of type Warning (kube/events.py) and name this node.
"""

from collections.abc import Iterable
from functools import partial

from dra_driver.claims.model.claim import ClaimRef, ConsumerGroup, ConsumerPod
from dra_driver.claims.state.validity import allocated, stored_claim
from dra_driver.devices.names import CONTROLLER
from dra_driver.kube.client import KubeClient
from dra_driver.kube.events import Events, Regarding
from dra_driver.kube.outbox import Message, Outbox
from dra_driver.kube.resource import POD_GROUPS, RESOURCE_CLAIMS

_REQUEST_SECONDS = 10.0


class ClaimEvents(Events):
    """Posts events for one node."""

    def __init__(self, api: KubeClient, outbox: Outbox, *, node: str) -> None:
        super().__init__(api, outbox, controller=CONTROLLER, node=node)

    def post_on_claim(self, ref: ClaimRef, *, reason: str, action: str, note: str) -> None:
        """Have an event posted on a claim, and on the pods and PodGroups that it is reserved for.

        Never blocks. A claim that is gone by then has none.
        """
        self._outbox.put(
            ("event", ref.uid, reason, note),
            partial(self._post_on_all, ref, reason=reason, action=action, note=note),
            Message(kind="event", about={"claim": str(ref)}),
        )

    def _post_on_all(self, ref: ClaimRef, *, reason: str, action: str, note: str) -> None:
        claim = allocated(stored_claim(self._api, ref, timeout=_REQUEST_SECONDS))
        for about in about_all(claim.ref, claim.pods, claim.groups) if claim else ():
            self.post(about, reason=reason, action=action, note=note)


def about_all(
    ref: ClaimRef, pods: Iterable[ConsumerPod], groups: Iterable[ConsumerGroup] = ()
) -> list[Regarding]:
    """Return what events on a claim and those that have it are about."""
    return [
        about_claim(ref),
        *(about_pod(ref.namespace, pod) for pod in pods),
        *(_about(POD_GROUPS.api_version, "PodGroup", ref.namespace, group) for group in groups),
    ]


def about_claim(ref: ClaimRef) -> Regarding:
    """Return what an event on a claim is about."""
    return _about(RESOURCE_CLAIMS.api_version, "ResourceClaim", ref.namespace, ref)


def about_pod(namespace: str, pod: ConsumerPod) -> Regarding:
    """Return what an event on a pod is about."""
    return _about("v1", "Pod", namespace, pod)


def _about(
    version: str, kind: str, namespace: str, one: ClaimRef | ConsumerPod | ConsumerGroup
) -> Regarding:
    return Regarding(
        api_version=version, kind=kind, namespace=namespace, name=one.name, uid=one.uid
    )
