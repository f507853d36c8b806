"""The generated protocols: as the kubelet has them, and as the generator makes them."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kubelet.protos import (
    dra_health_v1_pb2,
    dra_health_v1alpha1_pb2,
    dra_v1_pb2,
    pluginregistration_v1_pb2,
)

ROOT = Path(__file__).resolve().parents[3]


def methods(file: Any) -> list[str]:
    return [
        f"/{service.full_name}/{method.name}"
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]


def fields(message: Any) -> dict[str, int]:
    return {field.name: field.number for field in message.DESCRIPTOR.fields}


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (
            pluginregistration_v1_pb2,
            [
                "/pluginregistration.Registration/GetInfo",
                "/pluginregistration.Registration/NotifyRegistrationStatus",
            ],
        ),
        (
            dra_v1_pb2,
            [
                "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
                "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
            ],
        ),
        (dra_health_v1_pb2, ["/v1.DRAResourceHealth/NodeWatchResources"]),
        (dra_health_v1alpha1_pb2, ["/v1alpha1.DRAResourceHealth/NodeWatchResources"]),
    ],
)
def test_methods_have_the_kubelets_names(file: Any, expected: list[str]) -> None:
    assert methods(file) == expected


def test_fields_have_the_kubelets_numbers() -> None:
    assert fields(dra_v1_pb2.Device) == {
        "request_names": 1,
        "pool_name": 2,
        "device_name": 3,
        "cdi_device_ids": 4,
        "share_id": 5,
    }
    assert fields(dra_v1_pb2.Claim) == {"namespace": 1, "uid": 2, "name": 3}
    assert fields(dra_v1_pb2.NodePrepareResourceResponse) == {"devices": 1, "error": 2}
    assert fields(dra_v1_pb2.NodeUnprepareResourceResponse) == {"error": 1}
    assert fields(pluginregistration_v1_pb2.PluginInfo) == {
        "type": 1,
        "name": 2,
        "endpoint": 3,
        "supported_versions": 4,
    }


@pytest.mark.parametrize("version", [dra_health_v1_pb2, dra_health_v1alpha1_pb2])
def test_health_has_the_kubelets_numbers(version: Any) -> None:
    assert fields(version.NodeWatchResourcesResponse) == {"devices": 1}
    assert fields(version.DeviceIdentifier) == {"pool_name": 1, "device_name": 2}
    assert fields(version.DeviceHealth) == {
        "device": 1,
        "health": 2,
        "last_updated_time": 3,
        "health_check_timeout_seconds": 4,
        "message": 5,
    }
    assert dict(version.HealthStatus.items()) == {"UNKNOWN": 0, "HEALTHY": 1, "UNHEALTHY": 2}


def test_a_device_without_share_id_says_so() -> None:
    assert not dra_v1_pb2.Device().HasField("share_id")


def test_grpc_is_never_older_than_the_generator_of_our_stubs() -> None:
    # The generated code refuses to load under an older grpcio.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (pin,) = project["dependency-groups"]["generate"]
    (floor,) = (d for d in project["project"]["dependencies"] if re.match(r"grpcio>", d))
    generator = [int(part) for part in pin.rpartition("==")[2].split(".")]
    oldest = [int(part) for part in re.findall(r">=([\d.]+)", floor)[0].split(".")]
    assert oldest >= generator[: len(oldest)]
