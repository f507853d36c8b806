"""What KubeVirt takes of device metadata: the PCI address of the GPU that a virtual machine gets.

In: the files that a container has of one request of a claim, by name. Out: the address, or why the
virtual machine does not start. Rules are those of KubeVirt 1.8 and 1.9 (pkg/dra/utils.go,
pkg/dra/metadata, pkg/virt-launcher/virtwrap/device/hostdevice/dra): one file, one device, the
request's own name, and only one version of the API.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import device_metadata as files_of

VERSION = f"{files_of.GROUP}/v1alpha1"
"""The only version that it understands; objects of others are passed over."""

SUFFIX = "-metadata.json"
_MEDIATED = "mdevUUID"
_ADDRESS = "resource.kubernetes.io/pciBusID"


class NoDeviceError(Exception):
    """The virtual machine gets no device; the text says why."""


def pci_address(files: Mapping[str, str], request: str) -> str:
    """The address of the device that libvirt is told of."""
    texts = [text for name, text in files.items() if name.endswith(SUFFIX)]
    if len(texts) != 1:
        raise NoDeviceError(f"{len(texts)} files of request {request}, and not one")
    found = next(_understood(texts[0]), None)
    if found is None:
        raise NoDeviceError(f"no object of {VERSION}")
    devices = [
        device
        for each in found.get("requests", [])
        if each["name"] == request
        for device in each["devices"]
    ]
    if len(devices) != 1:
        raise NoDeviceError(f"{len(devices)} devices of a request named {request}, and not one")
    attributes = devices[0].get("attributes", {})
    if _MEDIATED in attributes:
        raise NoDeviceError("it is taken for a mediated device (vGPU)")
    address = attributes.get(_ADDRESS, {}).get("string")
    if not isinstance(address, str) or not address:
        raise NoDeviceError(f"no attribute {_ADDRESS} with a string")
    return address


def _understood(text: str) -> Iterator[dict[str, Any]]:
    try:
        yield from (one for one in files_of.objects(text) if one.get("apiVersion") == VERSION)
    except json.JSONDecodeError as error:
        raise NoDeviceError(f"no stream of JSON objects: {error}") from error
