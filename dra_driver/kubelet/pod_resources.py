"""Which pods of this node have claims, as the kubelet itself says: its PodResources API.

In: the kubelet's socket, and its folder of pods' logs. Out: the pods of claims. The kubelet answers
from what it runs (KEP-3695, on by default from Kubernetes 1.34), so a claim that was deleted in the
API server is still in it. Devices are told by the CDI names that this driver gave, which begin with
the claim's UID; a name alone may belong to another claim by now.

An answer says for sure which pods have a claim, but not that none has it: init containers are
missing, and so is a claim that the kubelet has forgotten in a restart.

PodResources has no UIDs of pods. They are in the names of the folders that the kubelet makes for
logs before a pod's first container starts (pkg/kubelet/kuberuntime, BuildPodLogsDirectory):

    /var/log/pods/<namespace>_<pod>_<uid>
"""

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import grpc
import structlog

from dra_driver.cdi.model import KIND
from dra_driver.claims.model.claim import ClaimRef, ClaimUid, ConsumerPod, PodName
from dra_driver.errors import TransientError
from dra_driver.host.worker import LogOnce
from dra_driver.kubelet.protos import pod_resources_v1_pb2, pod_resources_v1_pb2_grpc

_SOCKET = "pod-resources/kubelet.sock"
_LOGS = "var/log/pods"
_ANSWER_SECONDS = 5.0
_FRESH_SECONDS = 2.0
_LONGEST_ANSWER = 64 << 20
"""In bytes; large nodes' answers exceed gRPC's default of 4 MiB (dcgm-exporter#509)."""


log = structlog.get_logger()


def _log(reason: str) -> None:
    log.warning("pods of shared claims not known", reason=reason)


class PodResources:
    """Asks the kubelet. For any thread; an answer is used for two seconds.

    `plugins` is the kubelet's plugins directory, beside which it has its socket. `roots` are where
    the host's root may be mounted. `on_problem` is told once of each reason why pods are not known.
    """

    def __init__(
        self,
        plugins: Path,
        roots: Sequence[Path],
        *,
        on_problem: Callable[[str], None] = _log,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sockets = [plugins.parent / _SOCKET] + [
            root / str(plugins.parent).lstrip("/") / _SOCKET for root in roots
        ]
        self._folders = [root / _LOGS for root in roots]
        self._on_problem, self._once = on_problem, LogOnce()
        self._clock = clock
        self._answer: tuple[float, Mapping[str, set[PodName]]] = (float("-inf"), {})

    def names(self, uids: Collection[ClaimUid]) -> Mapping[ClaimUid, Sequence[PodName]]:
        """Return the pods that have these claims; claims that no pod has are left out.

        Raises TransientError if the kubelet does not answer.
        """
        at, pods_by_device = self._answer
        if self._clock() - at > _FRESH_SECONDS:
            pods_by_device = self._asked()
            self._answer = self._clock(), pods_by_device
        found: dict[ClaimUid, set[PodName]] = {}
        for device, pods in pods_by_device.items():
            for uid in uids:
                if device.startswith(f"{KIND}={uid}-"):
                    found.setdefault(uid, set()).update(pods)
        return {uid: sorted(pods) for uid, pods in found.items()}

    def pods(self, uids: Collection[ClaimUid]) -> Mapping[ClaimUid, Sequence[ConsumerPod]]:
        """Return the same with the pods' UIDs, as far as they are known.

        A pod that was made again under its name may have the former one's UID beside its own.
        """
        try:
            names = self.names(uids)
            pod_uids = self._pod_uids() if names else {}
        except TransientError as error:
            if self._once.is_new(str(error)):
                self._on_problem(str(error))
            return {}
        self._once.forget()
        return {
            uid: [
                ConsumerPod(name=pod.name, uid=pod_uid)
                for pod in pods
                for pod_uid in pod_uids.get(pod, ())
            ]
            for uid, pods in names.items()
        }

    def claims(self, uids: Collection[ClaimUid]) -> Mapping[ClaimUid, ClaimRef]:
        """Return the namespaces and names of claims that pods have. Raises TransientError."""
        return {
            uid: ClaimRef(uid=uid, namespace=claim.claim_namespace, name=claim.claim_name)
            for _, claim, device in self._listed()
            for uid in uids
            if device.startswith(f"{KIND}={uid}-")
        }

    def _asked(self) -> Mapping[str, set[PodName]]:
        """Return the pods by the CDI names of their devices."""
        found: dict[str, set[PodName]] = {}
        for pod, _, device in self._listed():
            found.setdefault(device, set()).add(pod)
        return found

    def _listed(self) -> Iterator[tuple[PodName, pod_resources_v1_pb2.DynamicResource, str]]:
        """Yield pod, claim and CDI name of each device that pods have by claims."""
        socket = next(filter(_is_socket, self._sockets), None)
        if socket is None:
            raise TransientError(
                f"the kubelet's PodResources API is not at {self._sockets[0]}: mount that folder "
                "into the driver's pod"
            )
        options = (("grpc.max_receive_message_length", _LONGEST_ANSWER),)
        try:
            with grpc.insecure_channel(f"unix:{socket}", options) as channel:
                lister = pod_resources_v1_pb2_grpc.PodResourcesListerStub(channel)  # type: ignore[no-untyped-call]
                answer = lister.List(
                    pod_resources_v1_pb2.ListPodResourcesRequest(), timeout=_ANSWER_SECONDS
                )
        except grpc.RpcError as error:
            raise TransientError(
                f"the kubelet does not say at {socket} which pods have claims: {error.details()}"
            ) from error
        for pod in answer.pod_resources:
            name = PodName(namespace=pod.namespace, name=pod.name)
            for container in pod.containers:
                for claim in container.dynamic_resources:
                    for resource in claim.claim_resources:
                        for device in resource.cdi_devices:
                            yield name, claim, device.name

    def _pod_uids(self) -> Mapping[PodName, Sequence[str]]:
        """Return the UIDs of the node's pods. Raises TransientError if the folder is not here."""
        for folder in self._folders:
            try:
                entries = os.listdir(folder)  # noqa: PTH208 (names are what is wanted)
            except OSError:
                continue
            found: dict[PodName, list[str]] = {}
            for entry in entries:
                match entry.split("_"):
                    case [namespace, name, uid]:
                        found.setdefault(PodName(namespace=namespace, name=name), []).append(uid)
            return found
        raise TransientError(
            f"the kubelet's folder of pods' logs, {_LOGS}, is not below "
            f"{' or '.join(map(str, dict.fromkeys(self._folders)))}"
        )


def _is_socket(path: Path) -> bool:
    with suppress(OSError):  # among others, this process may not look below another one's root
        return path.is_socket()
    return False
