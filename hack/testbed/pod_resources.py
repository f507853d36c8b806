"""What a kubelet tells monitoring of its pods: the PodResources API, as far as claims are in it.

In: the kubelet's socket. Out: the devices of a container's claims. dcgm-exporter and others ask for
the same. The few messages that are read are described here by field number
(k8s.io/kubelet pkg/apis/podresources/v1); what else an answer has is skipped.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_MESSAGES: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "ListPodResourcesResponse": {"pod_resources": (1, "PodResources*")},
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
"""Fields by message: number, and `text`, or the message that it is a list of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldDevice:
    """One device of a container's claims."""

    claim: str
    driver: str
    pool: str
    device: str
    share_id: str
    cdi_ids: tuple[str, ...]


def told_devices(socket: Path, namespace: str, pod: str, container: str) -> list[ToldDevice]:
    """Return the devices that a kubelet tells of one container.

    Raises:
        grpc.RpcError: The kubelet does not answer.
    """
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        ask = channel.unary_unary(
            "/v1.PodResourcesLister/List",
            request_serializer=lambda _: b"",
            response_deserializer=_response().FromString,
        )
        answer: Any = ask(None, timeout=10)
    return [
        ToldDevice(
            claim=claim.claim_name,
            driver=one.driver_name,
            pool=one.pool_name,
            device=one.device_name,
            share_id=one.share_id,
            cdi_ids=tuple(each.name for each in one.cdi_devices),
        )
        for found in answer.pod_resources
        if (found.namespace, found.name) == (namespace, pod)
        for each in found.containers
        if each.name == container
        for claim in each.dynamic_resources
        for one in claim.claim_resources
    ]


def _response() -> Any:
    """Return the class of the answer."""
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
                added.type = kinds.TYPE_MESSAGE
                added.type_name = f".{file.package}.{kind[:-1]}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindMessageTypeByName(f"{file.package}.ListPodResourcesResponse")
    return message_factory.GetMessageClass(found)
