"""Files with device metadata, read as Kubernetes' own reader does, and checked by the API's rules.

The reader (k8s.io/dynamic-resource-allocation/devicemetadata, 0.37.2) takes the first object of a
file whose version it knows, and refuses the file for any other flaw. Rules are those that
api/metadata/v1beta1 and api/resource/v1 declare; and, what only the API server checks yet, those of
attributes in slices: how long values are, and what a version is. That both agree is tested by
e2e/test_device_metadata.py.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

GROUP = "metadata.resource.k8s.io"
FOLDER = "/var/run/kubernetes.io/dra-device-attributes"
FILE = "gpu.nvidia.com-metadata.json"

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NAME = re.compile(r"([a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?/)?[A-Za-z_][A-Za-z0-9_]{0,31}")
_SEMVER = re.compile(r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)([-+][0-9A-Za-z.+-]+)?")
_MOST_ATTRIBUTES, _LONGEST_VALUE, _LONGEST_POOL = 32, 64, 253


def by_template(pod_claim_name: str, request: str) -> str:
    """Where a container finds the file of a claim that was made from a template."""
    return f"{FOLDER}/resourceclaimtemplates/{pod_claim_name}/{request}/{FILE}"


def by_claim(name: str, request: str) -> str:
    """Where a container finds the file of a claim that its pod names."""
    return f"{FOLDER}/resourceclaims/{name}/{request}/{FILE}"


def objects(data: str) -> Iterator[dict[str, Any]]:
    """The objects of a file, one after the other."""
    decoder, rest = json.JSONDecoder(), data.lstrip()
    while rest:
        found, end = decoder.raw_decode(rest)
        yield found
        rest = rest[end:].lstrip()


def read(data: str, *, known: Sequence[str] = ("v1beta1", "v1alpha1")) -> dict[str, Any]:
    """What a reader that knows these versions makes of a file."""
    versions = {f"{GROUP}/{version}" for version in known}
    for found in objects(data):
        assert isinstance(found, dict)
        assert {"kind", "apiVersion"} <= found.keys()
        if found["apiVersion"] in versions:
            assert found["kind"] == "DeviceMetadata"
            check(found)
            return found
    raise AssertionError(f"no version that is known: {data}")


def check(found: Mapping[str, Any]) -> None:
    """Fail where the API's validation would."""
    assert found.keys() <= {"kind", "apiVersion", "metadata", "podClaimName", "requests"}
    assert found["metadata"].keys() == {"name", "namespace", "uid", "generation"}
    assert found["metadata"]["generation"] >= 1
    assert isinstance(found["requests"], list)
    assert "podClaimName" not in found or _LABEL.fullmatch(found["podClaimName"])
    for request in found["requests"]:
        assert request.keys() == {"name", "devices"}
        assert all(map(_LABEL.fullmatch, request["name"].split("/", 1)))
        for device in request["devices"]:
            assert device.keys() == {"driver", "pool", "name", "attributes"}
            assert device["driver"] == "gpu.nvidia.com"
            assert 0 < len(device["pool"]) <= _LONGEST_POOL
            assert _LABEL.fullmatch(device["name"])
            _check_attributes(device["attributes"])


def _check_attributes(attributes: Mapping[str, Mapping[str, Any]]) -> None:
    assert len(attributes) <= _MOST_ATTRIBUTES
    for name, value in attributes.items():
        assert _NAME.fullmatch(name)
        ((kind, one),) = value.items()
        match kind:
            case "string":
                assert len(one.encode()) <= _LONGEST_VALUE
            case "version":
                assert _SEMVER.fullmatch(one)
                assert len(one) <= _LONGEST_VALUE
            case _:
                assert {"int": int, "bool": bool}[kind] is type(one)


def content(found: Mapping[str, Any]) -> dict[str, Any]:
    """What an object says beside its version and kind."""
    return {name: value for name, value in found.items() if name not in {"apiVersion", "kind"}}


def devices(data: str) -> list[dict[str, Any]]:
    """The devices of a file that is about one request."""
    (request,) = read(data)["requests"]
    found: list[dict[str, Any]] = request["devices"]
    return found
