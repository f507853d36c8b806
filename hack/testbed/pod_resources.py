"""The claims' part of the kubelet's PodResources API, which monitoring uses.

In: the kubelet's socket. Out: the devices of a container's claims, from the list of all pods and
from the answer for one pod. dcgm-exporter and others use the same. Fields are read by their
numbers (k8s.io/kubelet pkg/apis/podresources/v1); other fields are skipped.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.unknown_fields import UnknownFieldSet
from google.protobuf.wrappers_pb2 import StringValue


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
    """Return the devices of one container in a kubelet's list of all pods; none without the pod.

    Raises grpc.RpcError if the kubelet does not answer.
    """
    pods = _fields(_ask(socket, "List", b""), 1)
    named = [each for each in pods if (_text(each, 2), _text(each, 1)) == (namespace, pod)]
    return [device for each in named for device in _devices(each, container)]


def devices_of_pod(socket: Path, namespace: str, pod: str, container: str) -> list[ToldDevice]:
    """Return the devices of one container from a kubelet's answer for its pod.

    Raises grpc.RpcError if the kubelet does not answer, or has no such pod.
    """
    name, of = (StringValue(value=text).SerializeToString() for text in (pod, namespace))
    second = b"\x12" + of[1:]  # the same as field 2
    (told,) = _fields(_ask(socket, "Get", name + second), 1)
    return list(_devices(told, container))


def _devices(pod: bytes, container: str) -> Iterator[ToldDevice]:
    claims = (
        claim
        for field in _fields(pod, 3)
        if _text(field, 1) == container
        for claim in _fields(field, 5)
    )
    for claim in claims:
        for resource in _fields(claim, 4):
            yield ToldDevice(
                claim=_text(claim, 2),
                driver=_text(resource, 2),
                pool=_text(resource, 3),
                device=_text(resource, 4),
                share_id=_text(resource, 5),
                cdi_ids=tuple(_text(device, 1) for device in _fields(resource, 1)),
            )


def _ask(socket: Path, method: str, request: bytes) -> bytes:
    """Call a method of PodResourcesLister; return its answer."""
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        ask = channel.unary_unary(f"/v1.PodResourcesLister/{method}", None, None)
        answer: bytes = ask(request, timeout=10)
        return answer


def _fields(message: bytes, number: int) -> list[bytes]:
    """The texts and messages in a message's fields of a number."""
    known = UnknownFieldSet(Empty.FromString(message))
    return [field.data for field in known if field.field_number == number]  # type: ignore[attr-defined]


def _text(message: bytes, number: int) -> str:
    return b"".join(_fields(message, number)).decode()
