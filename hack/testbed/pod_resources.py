"""What a kubelet tells monitoring of its pods: the PodResources API, as far as claims are in it.

In: the kubelet's socket. Out: the devices of a container's claims, as its list of all pods has them
and as it tells them of one pod. dcgm-exporter and others ask for the same. The few messages that
are needed are described here by field number (k8s.io/kubelet pkg/apis/podresources/v1); what else
an answer has is skipped.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_MESSAGES: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "ListPodResourcesRequest": {},
    "ListPodResourcesResponse": {"pod_resources": (1, "PodResources*")},
    "GetPodResourcesRequest": {"pod_name": (1, "text"), "pod_namespace": (2, "text")},
    "GetPodResourcesResponse": {"pod_resources": (1, "PodResources")},
    "PodResources": {
        "name": (1, "text"),
        "namespace": (2, "text"),
        "containers": (3, "ContainerResources*"),
    },
    "ContainerResources": {"name": (1, "text"), "dynamic_resources": (5, "DynamicResource*")},
    "DynamicResource": {
        "claim_name": (2, "text"),
        "claim_namespace": (3, "text"),
        "claim_resources": (4, "ClaimResource*"),
    },
    "ClaimResource": {
        "cdi_devices": (1, "CDIDevice*"),
        "driver_name": (2, "text"),
        "pool_name": (3, "text"),
        "device_name": (4, "text"),
        "share_id": (5, "text"),
    },
    "CDIDevice": {"name": (1, "text")},
}
"""Fields by message: number, and `text`, or a message, with a star where there is a list of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldDevice:
    """One device of a container's claims."""

    claim: str
    driver: str
    pool: str
    device: str
    share_id: str
    cdi_ids: tuple[str, ...]


def listed_devices(socket: Path, namespace: str, pod: str, container: str) -> list[ToldDevice]:
    """Return the devices of one container in a kubelet's list of all pods; none for no such pod.

    Raises:
        grpc.RpcError: The kubelet does not answer.
    """
    answer = _ask(socket, "List")
    named = (
        resource
        for resource in answer.pod_resources
        if (resource.namespace, resource.name) == (namespace, pod)
    )
    return [device for one in named for device in _devices(one, container)]


def devices_of_pod(socket: Path, namespace: str, pod: str, container: str) -> list[ToldDevice]:
    """Return the devices of one container as a kubelet that is asked for its pod alone tells them.

    Raises:
        grpc.RpcError: The kubelet does not answer, or has no such pod.
    """
    answer = _ask(socket, "Get", pod_name=pod, pod_namespace=namespace)
    return _devices(answer.pod_resources, container)


def _devices(pod: Any, container: str) -> list[ToldDevice]:
    return [
        ToldDevice(
            claim=claim.claim_name,
            driver=resource.driver_name,
            pool=resource.pool_name,
            device=resource.device_name,
            share_id=resource.share_id,
            cdi_ids=tuple(each.name for each in resource.cdi_devices),
        )
        for each in pod.containers
        if each.name == container
        for claim in each.dynamic_resources
        for resource in claim.claim_resources
    ]


def _ask(socket: Path, method: str, **facts: str) -> Any:
    """Call a method of PodResourcesLister with a request of these fields; return its answer."""
    request, response = _messages(f"{method}PodResourcesRequest", f"{method}PodResourcesResponse")
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        ask = channel.unary_unary(
            f"/v1.PodResourcesLister/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        return ask(request(**facts), timeout=10)


def _messages(*names: str) -> list[Any]:
    """Return the classes of messages."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="testbed/podresources.proto", package="testbed.podresources", syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            added = message.field.add(name=field, number=number)
            added.label = kinds.LABEL_OPTIONAL
            added.type = kinds.TYPE_STRING
            if kind.endswith("*"):
                added.label = kinds.LABEL_REPEATED
            if kind != "text":
                added.type = kinds.TYPE_MESSAGE
                added.type_name = f".{file.package}.{kind.removesuffix('*')}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return [
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}"))
        for name in names
    ]
