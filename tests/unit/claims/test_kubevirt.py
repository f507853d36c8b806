"""The driver's files are such as KubeVirt reads them, and what KubeVirt would refuse is noticed."""

import json
from collections.abc import Mapping

import pytest

import make
from device_metadata import FILE, GROUP
from dra_driver.claims.model.record import DeviceRecord
from dra_driver.claims.prepare.device_metadata import documents, rendered
from dra_driver.devices.model import Gpu
from kubevirt import NoDeviceError, pci_address

GPUS = (make.gpu(0), make.gpu(1))
ADDRESS = "resource.kubernetes.io/pciBusID"


def written(*gpus: Gpu, chosen: str | None = None) -> dict[str, str]:
    """The files that a container has of a request for these GPUs, as the driver writes them."""
    entries = tuple(
        DeviceRecord(
            name=f"gpu-{gpu.minor}",
            device=make.device(gpu),
            pool="node-1",
            request_names=("gpu",),
            subrequest=chosen,
            cdi_device_ids=("k8s.gpu.nvidia.com/claim=x",),
        )
        for gpu in gpus
    )
    record = make.record(devices=entries, pod_claim_name="gpus")
    known = {gpu.uuid: gpu for gpu in gpus}
    (found,) = documents(record, known, make.inventory(*gpus), {}).values()
    return {FILE: rendered(found, 1).decode()}


def object_of(version: str = "v1alpha1", name: str = "gpu", **attributes: object) -> str:
    requests = [{"name": name, "devices": [{"name": "gpu-vfio-0", "attributes": attributes}]}]
    return json.dumps({"apiVersion": f"{GROUP}/{version}", "requests": requests})


def addressed(version: str = "v1alpha1", name: str = "gpu") -> str:
    return object_of(version, name, **{ADDRESS: {"string": "0000:41:00.0"}})


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: str(gpu.pci_address))
def test_the_driver_s_own_file_leads_to_the_gpu(gpu: Gpu) -> None:
    assert pci_address(written(gpu), "gpu") == gpu.pci_address


def test_objects_of_other_versions_are_passed_over() -> None:
    assert pci_address({FILE: addressed(version="v9") + addressed()}, "gpu") == "0000:41:00.0"


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "0 files of request gpu"),
        ({"a.json": addressed()}, "0 files of request gpu"),
        ({FILE: addressed(), "b-metadata.json": addressed()}, "2 files of request gpu"),
        (written(*GPUS), "2 devices of a request named gpu"),
        (written(GPUS[0], chosen="fast"), "0 devices of a request named gpu"),
        ({FILE: addressed(name="other")}, "0 devices of a request named gpu"),
        ({FILE: addressed(version="v1beta1")}, "no object of metadata.resource.k8s.io/v1alpha1"),
        ({FILE: ""}, "no object of metadata.resource.k8s.io/v1alpha1"),
        ({FILE: addressed(version="v9") + "{"}, "no stream of JSON objects"),
        ({FILE: object_of()}, f"no attribute {ADDRESS}"),
        ({FILE: object_of(**{ADDRESS: {"int": 1}})}, f"no attribute {ADDRESS}"),
        ({FILE: object_of(mdevUUID={"string": "u"})}, "taken for a mediated device"),
    ],
)
def test_what_kubevirt_refuses_is_reported(files: Mapping[str, str], why: str) -> None:
    with pytest.raises(NoDeviceError, match=why):
        pci_address(files, "gpu")
