"""The rules a container runtime applies to a CDI spec, each broken once."""

import pytest
from msgspec.structs import replace

from dra_driver.cdi.model import DeviceNode, Edits, Hook, Mount, Spec, SpecDevice
from dra_driver.cdi.spec import (
    KIND,
    claim_device_id,
    claim_device_name,
    minimum_version,
    render,
)
from dra_driver.errors import StateError

SOME_EDITS = Edits(env=("A=b",))


def spec(*edits: Edits, common: Edits | None = None, kind: str = KIND) -> Spec:
    devices = tuple(
        SpecDevice(name=f"gpu-{number}", edits=one)
        for number, one in enumerate(edits or (SOME_EDITS,))
    )
    return Spec(kind=kind, devices=devices, edits=common or Edits())


def node(**changes: object) -> DeviceNode:
    return replace(DeviceNode(path="/dev/nvidia0"), **changes)  # type: ignore[arg-type]


def test_a_whole_gpu_is_laid_out_as_the_cdi_fields_say() -> None:
    device = Edits(
        device_nodes=(
            node(
                host_path="/root/dev/nvidia0",
                type="c",
                major=195,
                minor=0,
                file_mode=0o666,
                permissions="rwm",
                gid=44,
            ),
        ),
        hooks=(Hook(hook_name="createContainer", path="/hook", args=("hook", "do"), env=("A=",)),),
        additional_gids=(44,),
    )
    common = Edits(
        env=("NVIDIA_VISIBLE_DEVICES=void",),
        mounts=(Mount(host_path="/h", container_path="/c", options=("ro",)),),
    )

    assert render(spec(device, common=common)) == {
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
        device_nodes=(
            node(path="/dev/dri/card0"),
            node(path="/dev/b", permissions=""),
            node(path="/dev/a"),
        ),
        mounts=tuple(
            Mount(host_path="/h", container_path=path, options=()) for path in ("/a/b", "/b", "/a")
        ),
    )
    [device] = render(spec(edits))["devices"]  # type: ignore[misc]
    edited = device["containerEdits"]  # type: ignore[has-type]

    assert edited["env"] == ["B=1", "A=2"]
    assert edited["deviceNodes"][1] == {"path": "/dev/b"}
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
        (spec(Edits(device_nodes=(node(type="c", major=1),))), "0.3.0"),
        (spec(Edits(device_nodes=(node(host_path="/x"),))), "0.5.0"),
        (Spec(kind=KIND, devices=(SpecDevice(name="0a", edits=SOME_EDITS),)), "0.5.0"),
        (spec(kind="vendor.com/class.sub"), "0.6.0"),
        (spec(kind="vendor.com/class"), "0.3.0"),
        (spec(common=Edits(additional_gids=(44,))), "0.7.0"),
        (spec(replace(SOME_EDITS, additional_gids=(44,))), "0.7.0"),
        (spec(replace(SOME_EDITS, additional_gids=(0,))), "0.3.0"),
    ],
)
def test_the_lowest_sufficient_version_is_declared(one: Spec, version: str) -> None:
    assert minimum_version(one) == version


def test_group_zero_is_not_written_because_a_loader_ignores_it() -> None:
    assert "additionalGids" not in str(render(spec(replace(SOME_EDITS, additional_gids=(0,)))))


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (Spec(kind=KIND, devices=()), ": it has no device, but needs at least one"),
        (
            Spec(kind=KIND, devices=(SpecDevice(name="a", edits=SOME_EDITS),) * 2),
            "2 devices have the name 'a'",
        ),
        (spec(kind="nvidia.com"), "not of the form vendor/class"),
        (spec(kind="v/claim"), "vendor 'v' must have 2 to 253 characters"),
        (spec(kind="vendor/c"), "class 'c' must have 2 to 63 characters"),
        (spec(kind="1vendor/class"), "vendor '1vendor' is not valid"),
        (spec(kind="vendor/class-"), "and must start with a letter and end with a letter or"),
        (spec(kind=f"{'v' * 254}/claim"), "must have 2 to 253 characters"),
        (spec(kind=f"vendor/{'c' * 64}"), "must have 2 to 63 characters"),
        (spec(kind="vendor/class/more"), "class 'class/more' is not valid"),
        (
            Spec(kind=KIND, devices=(SpecDevice(name="1g+me", edits=SOME_EDITS),)),
            "'1g+me' is not valid",
        ),
        (Spec(kind=KIND, devices=(SpecDevice(name="", edits=SOME_EDITS),)), "name '' is not valid"),
        (
            Spec(kind=KIND, devices=(SpecDevice(name="a\n", edits=SOME_EDITS),)),
            "is not valid: it may have only letters, digits and _ - . :, and must start",
        ),
        (spec(Edits()), "'gpu-0' has no container edits"),
        (spec(Edits(additional_gids=(0,))), "'gpu-0' has no container edits"),
        (
            spec(Edits(env=("NOVALUE",))),
            "written: device 'gpu-0': env 'NOVALUE' is not of the form NAME=value",
        ),
        (spec(Edits(env=("=x",))), "env '=x'"),
        (spec(Edits(env=("=x=y",))), "env '=x=y'"),
        (spec(common=Edits(env=("A=\0",))), "common edits: env"),
        (spec(Edits(device_nodes=(node(path=""),))), "device node '': the path is not absolute"),
        (spec(Edits(device_nodes=(node(path="/dev/a\0"),))), "the path is not absolute"),
        (spec(Edits(device_nodes=(node(host_path=""),))), "host path '' is not absolute"),
        (spec(Edits(device_nodes=(node(type="x"),))), "type 'x' is not one of b, c, u, p"),
        (spec(Edits(device_nodes=(node(permissions="rwX"),))), "permissions 'rwX'"),
        (spec(Edits(device_nodes=(node(major=-1),))), "major -1 is not between"),
        (
            spec(Edits(device_nodes=(node(file_mode=2**32),))),
            "file_mode 4294967296 is not between 0 and 4294967295",
        ),
        (spec(Edits(device_nodes=(node(major=2**63),))), "not between 0 and 9223372036854775807"),
        (
            spec(Edits(mounts=(Mount(host_path="", container_path="/c", options=()),))),
            "mount '' to '/c': both must be absolute paths",
        ),
        (
            spec(Edits(mounts=(Mount(host_path="/h", container_path="c", options=()),))),
            "mount '/h' to 'c'",
        ),
        (
            spec(Edits(hooks=(Hook(hook_name="later", path="/h"),))),
            "hook 'later': the name is not one of prestart, createRuntime, createContainer, start",
        ),
        (spec(Edits(hooks=(Hook(hook_name="prestart", path=""),))), "path '' is not absolute"),
        (
            spec(Edits(hooks=(Hook(hook_name="prestart", path="/h", env=("A",)),))),
            "hook 'prestart': env 'A'",
        ),
        (spec(Edits(env=("A=",), additional_gids=(-1,))), "group id -1"),
        (spec(Edits(env=("A=",), additional_gids=(2**32,))), "group id 4294967296"),
    ],
)
def test_a_broken_rule_is_named(broken: Spec, problem: str) -> None:
    with pytest.raises(StateError, match="cannot be written") as caught:
        render(broken)

    assert problem in str(caught.value)


def test_the_largest_numbers_and_every_kind_of_hook_and_node_are_written() -> None:
    largest = {"major": 2**63 - 1, "minor": 2**63 - 1, "file_mode": 2**32 - 1, "gid": 2**32 - 1}
    nodes = tuple(node(path=f"/dev/{kind}", type=kind, **largest) for kind in "bcup")
    names = (
        *("prestart", "createRuntime", "createContainer", "startContainer"),
        *("poststart", "poststop"),
    )
    hooks = tuple(Hook(hook_name=name, path="/hook") for name in names)
    edits = Edits(device_nodes=nodes, hooks=hooks, additional_gids=(2**32 - 1,))
    written = render(spec(edits))["devices"][0]["containerEdits"]  # type: ignore[index]
    assert [hook["hookName"] for hook in written["hooks"]] == list(names)
    assert {one["type"]: one["major"] for one in written["deviceNodes"]} == dict.fromkeys(
        "bcup", 2**63 - 1
    )
    assert written["additionalGids"] == [2**32 - 1]


@pytest.mark.parametrize("kind", ["ve/cl", f"{'v' * 253}/{'c' * 63}"])
def test_the_shortest_and_the_longest_kinds_are_written(kind: str) -> None:
    assert render(spec(kind=kind))["kind"] == kind


def test_claim_devices_are_named_as_the_peer_names_them() -> None:
    uid = "5c8f0b6a-0000-4000-8000-000000000000"

    assert claim_device_name(uid, "gpu-0") == f"{uid}-gpu-0"
    assert claim_device_id(uid, "gpu-0") == f"k8s.gpu.nvidia.com/claim={uid}-gpu-0"
    assert claim_device_id(uid, "gpu-0", "s1") == f"k8s.gpu.nvidia.com/claim={uid}-gpu-0-s1"
