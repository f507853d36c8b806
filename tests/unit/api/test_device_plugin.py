"""The device plugin's config file as this driver reads it."""

from typing import Any

import pytest

from resource_nvidia_com.device_plugin import (
    Memory,
    NodeConfig,
    OverLimit,
    SharedBy,
    SharedResource,
    decode_node_config,
)
from resource_nvidia_com.problems import InvalidConfigError
from resource_nvidia_com.share_devices import DeviceChoice

UUID = "b1028956-cfa2-0990-bf4a-5da9abb51763"


def sharing(*resources: dict[str, Any], by: str = "timeSlicing", **fields: Any) -> dict[str, Any]:
    return {"version": "v1", "sharing": {by: {"resources": list(resources)} | fields}}


def gpu(**fields: Any) -> dict[str, Any]:
    return {"name": "nvidia.com/gpu", "replicas": 4} | fields


def only(value: dict[str, Any]) -> SharedResource:
    (resource,) = decode_node_config(value).resources
    return resource


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"version": "v1"},
        {"version": None, "flags": None, "sharing": None},
        {"version": "", "sharing": {}, "flags": {}},
    ],
)
def test_an_empty_file_shares_nothing_by_default(value: object) -> None:
    assert decode_node_config(value) == NodeConfig()


def test_the_plugins_example_is_read() -> None:
    value = {
        "version": "v1",
        "flags": {"migStrategy": "mixed"},
        "sharing": {
            "mps": {
                "renameByDefault": True,
                "failRequestsGreaterThanOne": False,
                "resources": [
                    {"name": "nvidia.com/gpu", "replicas": 10},
                    {"name": "mig-1g.5gb", "rename": "small", "devices": ["0:1"], "replicas": 2},
                ],
            }
        },
    }
    assert decode_node_config(value) == NodeConfig(
        mig_strategy="mixed",
        shared_by=SharedBy.MPS,
        fail_requests_greater_than_one=False,
        resources=(
            SharedResource(
                name="nvidia.com/gpu",
                served_as="nvidia.com/gpu.shared",
                devices="all",
                replicas=10,
            ),
            SharedResource(
                name="nvidia.com/mig-1g.5gb",
                served_as="nvidia.com/small",
                devices=("0:1",),
                replicas=2,
            ),
        ),
        warnings=(),
    )


@pytest.mark.parametrize(
    ("by", "given", "fails"),
    [
        ("timeSlicing", {}, False),
        ("timeSlicing", {"failRequestsGreaterThanOne": True}, True),
        ("mps", {}, True),
        ("mps", {"failRequestsGreaterThanOne": False}, False),
    ],
)
def test_requests_for_several_replicas_fail_under_mps_by_default(
    by: str, given: dict[str, Any], fails: bool
) -> None:
    config = decode_node_config(sharing(gpu(), by=by, **given))
    assert config.shared_by == by
    assert config.fail_requests_greater_than_one is fails


@pytest.mark.parametrize(
    ("resource", "rename_by_default", "served_as"),
    [
        (gpu(), False, "nvidia.com/gpu"),
        (gpu(), True, "nvidia.com/gpu.shared"),
        (gpu(rename="slow"), False, "nvidia.com/slow"),
        (gpu(rename="nvidia.com/slow.gpu"), True, "nvidia.com/slow.gpu"),
        ({"name": "mig-1c.3g.20gb.me", "replicas": 2}, False, "nvidia.com/mig-1c.3g.20gb.me"),
    ],
)
def test_pods_ask_for_the_name_that_is_served(
    resource: dict[str, Any], rename_by_default: bool, served_as: str
) -> None:
    assert only(sharing(resource, renameByDefault=rename_by_default)).served_as == served_as


@pytest.mark.parametrize(
    ("devices", "choice"),
    [
        ("all", "all"),
        (2, 2),
        ([0, "1"], ("0", "1")),
        (["0:1", "10:11"], ("0:1", "10:11")),
        ([f"GPU-{UUID.upper()}"], (f"GPU-{UUID}",)),
        ([f"MIG-{UUID}"], (f"MIG-{UUID}",)),
        ([f"MIG-GPU-{UUID}/3/0"], (f"MIG-GPU-{UUID}/3/0",)),
    ],
)
def test_devices_are_all_or_a_count_or_these(devices: object, choice: DeviceChoice) -> None:
    assert only(sharing(gpu(devices=devices))).devices == choice


def test_a_reference_reads_as_it_was_written() -> None:
    written = ["0", "1:2", f"GPU-{UUID}", f"MIG-{UUID}", f"MIG-GPU-{UUID}/3/0"]
    choice = only(sharing(gpu(devices=written))).devices
    assert choice == tuple(written)


def test_one_resource_may_be_divided_in_two_ways_on_different_devices() -> None:
    first, second = gpu(devices=[0], rename="a"), gpu(devices=[1], replicas=2)
    config = decode_node_config(sharing(first, second))
    assert [(resource.served_as, resource.replicas) for resource in config.resources] == [
        ("nvidia.com/a", 4),
        ("nvidia.com/gpu", 2),
    ]


def test_one_replica_is_not_shared_and_gives_a_warning() -> None:
    config = decode_node_config(sharing(gpu(replicas=1), by="mps"))
    assert (config.shared_by, config.resources) == (None, ())
    assert config.fail_requests_greater_than_one is False
    (text,) = config.warnings
    one = "one replica is the whole device: nothing is shared"
    assert text.startswith(
        f"sharing.mps.resources[0]: {one}; programs of one claim share it by MPS"
    )
    (sliced,) = decode_node_config(sharing(gpu(replicas=1))).warnings
    assert sliced.endswith(one)


def test_a_name_of_both_shares_and_whole_gpus_is_reported() -> None:
    (warning,) = decode_node_config(sharing(gpu(devices=[0]), gpu(devices=[1]))).warnings
    assert warning == (
        "sharing.timeSlicing.resources[0]: any other device is nvidia.com/gpu as a whole, so a pod "
        "may get either: rename the shares, or divide all devices"
    )
    (warning,) = decode_node_config(sharing(gpu(devices=2), by="mps")).warnings
    assert "is nvidia.com/gpu as a whole" in warning
    for other in (gpu(), gpu(devices="all"), gpu(devices=[0], rename="small")):
        assert decode_node_config(sharing(other)).warnings == ()


def test_memory_and_over_limit_are_set_for_each_resource() -> None:
    said = only(sharing(gpu(memory="equal", overLimit="end")))
    assert (said.memory, said.over_limit) == (Memory.EQUAL, OverLimit.END)
    silent = only(sharing(gpu()))
    assert (silent.memory, silent.over_limit) == (Memory.SHARED, None)
    assert only(sharing(gpu(overLimit="report"), by="mps")).over_limit is OverLimit.REPORT


def test_an_over_limit_without_a_limit_is_reported() -> None:
    (warning,) = decode_node_config(sharing(gpu(overLimit="end"))).warnings
    assert warning.startswith("sharing.timeSlicing.resources[0].overLimit: has no effect without")
    for value in (
        sharing(gpu(overLimit="end", memory="equal")),
        sharing(gpu(overLimit="end"), by="mps"),
    ):
        assert decode_node_config(value).warnings == ()


@pytest.mark.parametrize(
    ("fields", "by", "text"),
    [
        ({"memory": "equal"}, "mps", r"resources\[0\].memory: mps always divides memory"),
        ({"memory": "half"}, "timeSlicing", 'memory: must be shared or equal, not "half"'),
        ({"overLimit": "kill"}, "mps", 'overLimit: must be report or end, not "kill"'),
    ],
)
def test_an_impossible_division_of_memory_is_refused(
    fields: dict[str, str], by: str, text: str
) -> None:
    with pytest.raises(InvalidConfigError, match=text):
        decode_node_config(sharing(gpu(**fields), by=by))


def test_a_name_in_an_error_is_on_one_line() -> None:
    with pytest.raises(InvalidConfigError) as caught:
        decode_node_config({"\n": None, "": None})
    assert "\n" not in str(caught.value.problems[0].text)


def test_fields_without_meaning_here_give_warnings() -> None:
    config = decode_node_config(
        {
            "version": "v1",
            "flags": {
                "migStrategy": "single",
                "failOnInitError": False,
                "plugin": {"passDeviceSpecs": True, "deviceListStrategy": ["envvar"]},
                "ofTheFuture": 1,
            },
            "resources": {"gpus": [{"pattern": "*", "name": "nvidia.com/gpu"}]},
            "imex": {"channelIDs": [0]},
        }
    )
    assert config.mig_strategy == "single"
    assert [warning.split(": ")[0] for warning in config.warnings] == [
        "flags.failOnInitError",
        "flags.ofTheFuture",
        "flags.plugin.passDeviceSpecs",
        "flags.plugin.deviceListStrategy",
        "resources",
        "imex",
    ]


def test_the_plugins_allocation_policy_is_accepted() -> None:
    def flags(policy: object) -> dict[str, object]:
        return {"flags": {"plugin": {"sharedDevicesAllocationPolicy": policy}}}

    packed = decode_node_config(flags("packed"))
    assert (packed.packed, packed.warnings) == (True, ())
    assert not decode_node_config(flags("distributed")).packed
    assert not decode_node_config(sharing(gpu())).packed
    with pytest.raises(InvalidConfigError, match="must be distributed or packed"):
        decode_node_config(flags("spread"))


def test_a_name_that_default_renaming_makes_too_long_is_refused() -> None:
    name = "mig-1g.5gb" + ".me" * 14
    assert only(sharing({"name": name, "replicas": 2})).served_as == f"nvidia.com/{name}"
    with pytest.raises(InvalidConfigError, match=r"is too long: with nvidia\.com/ it must have"):
        decode_node_config(sharing({"name": name, "replicas": 2}, renameByDefault=True))
