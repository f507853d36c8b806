"""What containers are told of their devices: a file for each request, as KEP-5304 has it. Pure.

In: the record of a claim, and its GPUs as they are now. Out: what is in the files, and where
containers find them. Form and paths are those of Kubernetes' own library for drivers
(k8s.io/dynamic-resource-allocation, api/metadata): one JSON object after the other, each of which
says the same in one version of the API, newest first, so that a reader takes the first that it
knows. Attributes are those of the device's ResourceSlice, with the UUID of a MIG device that was
made for the claim, which no slice has.

A path is made of names that tenants choose. They are checked here, and lead nowhere but below one
folder within the claim's own containers.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dra_driver.claims.model.claim import is_label
from dra_driver.claims.model.devices import DeviceRecord, restored
from dra_driver.claims.model.record import ClaimRecord
from dra_driver.devices.model import Gpu, GpuUuid, Inventory
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.devices.nvlink import Joined, joined
from dra_driver.slices.attributes import Attributes, describe

VERSIONS = ("v1beta1", "v1alpha1")
"""Of the API metadata.resource.k8s.io, newest first; both have the same fields."""

CONTAINER_FOLDER = "/var/run/kubernetes.io/dra-device-attributes"
"""Below which containers find the files of all drivers."""

_FILE = f"{DRIVER_NAME}-metadata.json"
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")

Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What is told of the devices of one request; `metadata` lacks the generation."""

    metadata: Mapping[str, str]
    content: Mapping[str, object]

    def render(self, generation: int) -> bytes:
        """Return the bytes of a file; the same document gives the same bytes."""
        metadata = {**self.metadata, "generation": generation}
        return b"".join(
            json.dumps(
                {
                    "kind": "DeviceMetadata",
                    "apiVersion": f"metadata.resource.k8s.io/{version}",
                    "metadata": metadata,
                    **self.content,
                },
                indent=2,
            ).encode()
            + b"\n"
            for version in VERSIONS
        )


def container_paths(record: ClaimRecord) -> dict[str, str]:
    """Return where containers find the file of each request of a claim.

    A claim that was made from a template has a name that nobody knows beforehand, so it goes by
    what its pod calls it. Of a claim whose record does not say if there is such a name, nothing
    is told.
    """
    folder = _folder(record)
    if folder is None:
        return {}
    return {name: f"{folder}/{name}/{_FILE}" for name in _requests(record)}


def documents(
    record: ClaimRecord, gpus: Mapping[GpuUuid, Gpu], inventory: Inventory
) -> dict[str, Document]:
    """Return what is told of each request of a claim, all of whose devices exist.

    Args:
        record: the claim's.
        gpus: its GPUs.
        inventory: what else is known of the node.

    Raises:
        TransientError: a GPU does not say at this moment which MIG profiles it has.
    """
    if _folder(record) is None:
        return {}
    ref = record.ref
    groups = joined(inventory.gpus)
    return {
        name: Document(
            metadata={"name": ref.name, "namespace": ref.namespace, "uid": ref.uid},
            content={
                **({"podClaimName": record.pod_claim_name} if record.pod_claim_name else {}),
                "requests": [
                    {
                        "name": _full_name(name, entries[0]),
                        "devices": [
                            _device(entry, gpus[entry.device.gpu], inventory, groups)
                            for entry in entries
                        ],
                    }
                ],
            },
        )
        for name, entries in _requests(record).items()
    }


def _folder(record: ClaimRecord) -> str | None:
    """Return the folder of a claim's files in containers; None: nothing is told of the claim."""
    pod_claim_name, name = record.pod_claim_name, record.ref.name
    if pod_claim_name is None or not _SUBDOMAIN.fullmatch(name) or ".." in name:
        return None
    if is_label(pod_claim_name):
        return f"{CONTAINER_FOLDER}/resourceclaimtemplates/{pod_claim_name}"
    return f"{CONTAINER_FOLDER}/resourceclaims/{name}"


def _requests(record: ClaimRecord) -> dict[str, list[DeviceRecord]]:
    """Return the devices of a claim by request, in their order."""
    found: dict[str, list[DeviceRecord]] = {}
    for entry in record.devices:
        for name in filter(is_label, entry.request_names):
            found.setdefault(name, []).append(entry)
    return found


def _full_name(request: str, entry: DeviceRecord) -> str:
    """Return the name of a request with what was chosen of it, as the allocation has it."""
    chosen = entry.subrequest
    return f"{request}/{chosen}" if chosen is not None and is_label(chosen) else request


def _device(
    entry: DeviceRecord, gpu: Gpu, inventory: Inventory, groups: Mapping[GpuUuid, Joined]
) -> Object:
    attributes = Attributes(entry.name)
    describe(restored(entry.device, gpu), inventory, attributes, groups)
    return {
        "driver": DRIVER_NAME,
        "pool": entry.pool,
        "name": entry.name,
        "attributes": attributes.values,
    }
