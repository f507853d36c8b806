from typing import Any

import pytest

import make
from dra_driver.claims.model.claim import (
    ConfigSource,
    ConsumerGroup,
    ConsumerPod,
    Result,
    parse_claim,
)
from dra_driver.errors import ConfigError

DRIVER = "gpu.nvidia.com"


def config(source: str = "FromClaim", driver: str = DRIVER, **fields: Any) -> dict[str, Any]:
    return {"source": source, "opaque": {"driver": driver, "parameters": {"kind": "X"}}, **fields}


def test_only_what_belongs_to_the_driver_is_kept() -> None:
    claim = make.claim_object("gpu-0", configs=[config(driver="net.example.com"), config()])
    other = {"request": "nic", "driver": "net.example.com", "pool": "p", "device": "nic-0"}
    claim["status"]["allocation"]["devices"]["results"].append(other)
    parsed = parse_claim(claim, DRIVER)
    assert parsed.results == (Result(request="gpu", pool="node-1", device="gpu-0"),)
    assert [found.origin for found in parsed.configs] == ["spec.devices.config[1] of the claim"]


def test_another_drivers_config_is_not_read() -> None:
    class Hostile(dict[str, Any]):
        def __iter__(self) -> Any:
            raise AssertionError("it was looked through")

        items = keys = values = __len__ = __iter__

    theirs = config(driver="net.example.com")
    theirs["opaque"]["parameters"] = Hostile()
    claim = make.claim_object("gpu-0", configs=[theirs, config()])
    claim["spec"] = {"devices": {"config": [theirs, config()]}}
    assert len(parse_claim(claim, DRIVER).configs) == 1


def test_a_claim_of_a_pod_group_names_the_group_and_no_pod() -> None:
    found = make.claim_object("gpu-1")
    other = {"apiGroup": "example.com", "resource": "podgroups", "name": "not", "uid": "this"}
    found["status"]["reservedFor"] = [make.pod_group("gang"), other]
    parsed = parse_claim(found, DRIVER)
    assert parsed.pods == ()
    assert parsed.groups == (ConsumerGroup(name="gang", uid="uid-of-gang"),)


def test_names_uid_and_pods_are_read() -> None:
    parsed = parse_claim(make.claim_object("gpu-0", uid="u-1", name="c", namespace="n"), DRIVER)
    assert (parsed.ref.uid, str(parsed.ref)) == ("u-1", "n/c")
    assert parsed.pods == (ConsumerPod(name="pod", uid="pod-uid"),)


def test_admin_access_share_and_sub_request_are_read() -> None:
    claim = make.claim_object()
    claim["status"]["allocation"]["devices"]["results"] = [
        {
            "request": "gpu/large",
            "driver": DRIVER,
            "pool": "node-1",
            "device": "gpu-3",
            "adminAccess": True,
            "shareID": "a671734a-e8e5-11e4-8fde-42010af09327",
            "consumedCapacity": {"memory": "10Gi"},
        }
    ]
    (result,) = parse_claim(claim, DRIVER).results
    assert result.admin_access
    assert result.share_id == "a671734a-e8e5-11e4-8fde-42010af09327"
    assert (result.base_request, result.subrequest) == ("gpu", "large")


def test_the_pods_name_for_a_claim_is_in_the_annotation() -> None:
    claim = make.claim_object("gpu-0")
    assert parse_claim(claim, DRIVER).pod_claim_name == ""
    claim["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": "gpus", "x": "y"}
    assert parse_claim(claim, DRIVER).pod_claim_name == "gpus"


@pytest.mark.parametrize(
    "said", ["", ".", "..", "../../etc", "a/b", "a.b", "A", "-a", "a-", "a\n", "a\0", "ä", "a" * 64]
)
def test_an_impossible_annotation_is_ignored(said: str) -> None:
    claim = make.claim_object("gpu-0")
    claim["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": said}
    assert parse_claim(claim, DRIVER).pod_claim_name == ""


def test_class_configs_come_before_claim_configs() -> None:
    configs = [config(), config("FromClass", requests=["gpu"]), config()]
    parsed = parse_claim(make.claim_object("gpu-0", configs=configs), DRIVER)
    assert [found.source for found in parsed.configs] == [
        ConfigSource.CLASS,
        ConfigSource.CLAIM,
        ConfigSource.CLAIM,
    ]
    assert parsed.configs[0].origin == "config of the DeviceClass of request gpu"
    assert parsed.configs[2].origin == "spec.devices.config[1] of the claim"


def test_a_config_that_is_not_opaque_is_left_alone() -> None:
    configs = [{"source": "FromClaim", "requests": []}]
    assert parse_claim(make.claim_object("gpu-0", configs=configs), DRIVER).configs == ()


def test_a_claim_without_allocation_is_refused() -> None:
    claim = make.claim_object("gpu-0")
    del claim["status"]["allocation"]
    with pytest.raises(ConfigError, match="claim default/claim is not allocated"):
        parse_claim(claim, DRIVER)
    del claim["status"]
    with pytest.raises(ConfigError, match="claim default/claim is not allocated"):
        parse_claim(claim, DRIVER)


def test_an_unknown_config_source_is_refused() -> None:
    claim = make.claim_object("gpu-0", configs=[config("FromMars")])
    with pytest.raises(ConfigError, match="invalid config source: FromMars"):
        parse_claim(claim, DRIVER)


@pytest.mark.parametrize("value", [{}, {"metadata": None}, {"metadata": {"uid": "u"}}])
def test_objects_that_are_not_claims_are_refused(value: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"not a valid resource\.k8s\.io/v1 ResourceClaim"):
        parse_claim(value, DRIVER)


def consuming(**amounts: object) -> Any:
    claim = make.claim_object("gpu-0")
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    result |= {"shareID": "s1", "consumedCapacity": amounts}
    return claim


def test_consumed_amounts_are_read_in_bytes_and_numbers() -> None:
    claim = parse_claim(consuming(memory="10Gi", cores="20", shares="1"), "gpu.nvidia.com")
    (result,) = claim.results
    assert result.consumed == {"memory": 10 * 1024**3, "cores": 20, "shares": 1}
    assert result.allocation_id == "gpu-0/s1"


@pytest.mark.parametrize("amount", ["much", 20, None])
def test_a_consumed_amount_must_be_a_quantity(amount: object) -> None:
    with pytest.raises(ConfigError, match="not a valid resource"):
        parse_claim(consuming(memory=amount), "gpu.nvidia.com")
