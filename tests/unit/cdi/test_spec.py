"""How a CDI spec is laid out, and the version that it declares."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from cdi_rules import judge
from dra_driver.cdi.model import (
    DeviceNode,
    Edits,
    Hook,
    Mount,
    Spec,
    claim_device_id,
    claim_device_name,
    minimum_version,
    render,
)

SOME_EDITS = Edits(env=("A=b",))


def spec(*edits: Edits, common: Edits | None = None) -> Spec:
    devices = {f"gpu-{number}": one for number, one in enumerate(edits or (SOME_EDITS,))}
    return Spec(devices=devices, edits=common or Edits())


def node(**changes: object) -> DeviceNode:
    return replace(DeviceNode(path="/dev/nvidia0"), **changes)  # type: ignore[arg-type]


def rendered(wanted: Spec) -> dict[str, Any]:
    """What is rendered, as a runtime reads it."""
    read: dict[str, Any] = json.loads(json.dumps(render(wanted)))
    judge(read)
    return read


def test_a_whole_gpu_is_laid_out_as_the_cdi_fields_say() -> None:
    device = Edits(
        device_nodes=(
            node(host_path="/root/dev/nvidia0", major=195, minor=0, file_mode=0o666, gid=44),
        ),
        hooks=(Hook(hook_name="createContainer", path="/hook", args=("hook", "do"), env=("A=",)),),
        additional_gids=(44,),
    )
    common = Edits(
        env=("NVIDIA_VISIBLE_DEVICES=void",),
        mounts=(Mount(host_path="/h", container_path="/c", options=("ro",)),),
    )

    assert rendered(spec(device, common=common)) == {
        "cdiVersion": "0.7.0",
        "kind": "k8s.gpu.nvidia.com/claim",
        "devices": [
            {
                "name": "gpu-0",
                "containerEdits": {
                    "deviceNodes": [
                        {
                            "path": "/dev/nvidia0",
                            "hostPath": "/root/dev/nvidia0",
                            "type": "c",
                            "major": 195,
                            "minor": 0,
                            "fileMode": 438,
                            "permissions": "rwm",
                            "gid": 44,
                        }
                    ],
                    "hooks": [
                        {
                            "hookName": "createContainer",
                            "path": "/hook",
                            "args": ["hook", "do"],
                            "env": ["A="],
                        }
                    ],
                    "additionalGids": [44],
                },
            }
        ],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "mounts": [{"hostPath": "/h", "containerPath": "/c", "options": ["ro"]}],
        },
    }


def test_empty_common_edits_are_left_out() -> None:
    assert "containerEdits" not in render(spec())


def test_mounts_and_nodes_are_sorted_by_depth_then_path_and_env_is_not() -> None:
    edits = Edits(
        env=("B=1", "A=2"),
        device_nodes=(node(path="/dev/dri/card0"), node(path="/dev/b"), node(path="/dev/a")),
        mounts=tuple(
            Mount(host_path="/h", container_path=path, options=()) for path in ("/a/b", "/b", "/a")
        ),
    )
    [device] = rendered(spec(edits))["devices"]
    edited = device["containerEdits"]

    assert edited["env"] == ["B=1", "A=2"]
    assert edited["deviceNodes"][1] == {"path": "/dev/b", "type": "c", "permissions": "rwm"}
    assert [entry["path"] for entry in edited["deviceNodes"]] == [
        "/dev/a",
        "/dev/b",
        "/dev/dri/card0",
    ]
    assert [entry["containerPath"] for entry in edited["mounts"]] == ["/a", "/b", "/a/b"]


@pytest.mark.parametrize(
    ("one", "version"),
    [
        (spec(), "0.3.0"),
        (spec(Edits(device_nodes=(node(major=1),))), "0.3.0"),
        (spec(Edits(device_nodes=(node(host_path="/x"),))), "0.5.0"),
        (Spec(devices={"0a": SOME_EDITS}), "0.5.0"),
        (spec(common=Edits(additional_gids=(44,))), "0.7.0"),
        (spec(replace(SOME_EDITS, additional_gids=(44,))), "0.7.0"),
        (spec(replace(SOME_EDITS, additional_gids=(0,))), "0.3.0"),
    ],
)
def test_the_lowest_sufficient_version_is_declared(one: Spec, version: str) -> None:
    assert minimum_version(one) == version


def test_group_zero_is_not_written_because_a_loader_ignores_it() -> None:
    assert "additionalGids" not in str(render(spec(replace(SOME_EDITS, additional_gids=(0,)))))


def test_the_largest_numbers_are_written() -> None:
    largest = {"major": 2**63 - 1, "minor": 2**63 - 1, "file_mode": 2**32 - 1, "gid": 2**32 - 1}
    edits = Edits(device_nodes=(node(**largest),), additional_gids=(2**32 - 1,))
    written = rendered(spec(edits))["devices"][0]["containerEdits"]
    assert [one["major"] for one in written["deviceNodes"]] == [2**63 - 1]
    assert written["additionalGids"] == [2**32 - 1]


def test_claim_devices_are_named_as_the_peer_names_them() -> None:
    uid = "5c8f0b6a-0000-4000-8000-000000000000"

    assert claim_device_name(uid, "gpu-0") == f"{uid}-gpu-0"
    assert claim_device_id(uid, "gpu-0") == f"k8s.gpu.nvidia.com/claim={uid}-gpu-0"
    assert claim_device_id(uid, "gpu-0", "s1") == f"k8s.gpu.nvidia.com/claim={uid}-gpu-0-s1"
