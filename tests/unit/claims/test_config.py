from typing import Any

import pytest
from msgspec.structs import replace

import make
from dra_driver.claims.model.claim import Claim, parse_claim
from dra_driver.claims.model.config import DeviceKind, group_by_config
from dra_driver.errors import ConfigError

GPUS = {f"gpu-{minor}": DeviceKind.GPU for minor in range(8)}
TIME_SLICING = {"sharing": {"strategy": "TimeSlicing"}}
MPS = {"sharing": {"strategy": "MPS"}}


def claim(*requests: str, configs: list[dict[str, Any]] | None = None) -> Claim:
    """A claim whose requests got gpu-0, gpu-1 ... in their order."""
    value = make.claim_object(
        *(f"gpu-{index}" for index in range(len(requests))), configs=configs or []
    )
    results = value["status"]["allocation"]["devices"]["results"]
    for result, request in zip(results, requests, strict=True):
        result["request"] = request
    return parse_claim(value, "gpu.nvidia.com")


def scheduled(*requests: str, configs: list[dict[str, Any]]) -> Claim:
    """The same, as the scheduler of Kubernetes 1.37 writes it."""
    value = make.claim_object(*(f"gpu-{index}" for index in range(len(requests))))
    results = value["status"]["allocation"]["devices"]["results"]
    for result, request in zip(results, requests, strict=True):
        result["request"] = request
    make.schedule_configs(value, *configs)
    return parse_claim(value, "gpu.nvidia.com")


def strategies(value: Claim, kinds: dict[str, DeviceKind] = GPUS) -> dict[str, str | None]:
    """The strategy that holds for each device."""
    found: dict[str, str | None] = {}
    for config, results in group_by_config(value, kinds):
        sharing = config.sharing if config else None
        for result in results:
            found[result.device] = str(sharing.strategy) if sharing else None
    return found


def test_without_configs_all_devices_have_the_default() -> None:
    ((config, results),) = group_by_config(claim("a", "b"), GPUS)
    assert config is None
    assert [result.device for result in results] == ["gpu-0", "gpu-1"]


def test_devices_of_the_same_config_are_one_group() -> None:
    configs = [make.config("a", "b", **MPS), make.config("c", **MPS)]
    groups = group_by_config(claim("a", "b", "c", configs=configs), GPUS)
    assert [[result.request for result in results] for _, results in groups] == [["a", "b"], ["c"]]


def test_a_config_of_another_kind_for_all_requests_is_passed_over() -> None:
    configs = [make.config(**MPS), make.config(kind="MigDeviceConfig", **TIME_SLICING)]
    kinds = {"gpu-0": DeviceKind.GPU, "gpu-1": DeviceKind.MIG}
    found = strategies(claim("a", "b", configs=configs), kinds)
    assert found == {"gpu-0": "MPS", "gpu-1": "TimeSlicing"}


def test_a_config_of_another_kind_for_the_request_is_an_error_that_names_both() -> None:
    configs = [make.config("a", kind="MigDeviceConfig")]
    with pytest.raises(ConfigError) as caught:
        group_by_config(claim("a", configs=configs), GPUS)
    assert str(caught.value) == (
        'cannot apply MigDeviceConfig to device "gpu-0" of type "gpu" (request: a): '
        "spec.devices.config[0] of the claim names that request; write a GpuConfig there, "
        "or another request"
    )


def test_a_wrong_config_is_refused_even_without_devices() -> None:
    configs = [make.config(), make.config("z", sharingg={})]
    with pytest.raises(ConfigError, match=r"spec\.devices\.config\[1\] of the claim: unknown"):
        group_by_config(claim("a", configs=configs), GPUS)


def test_all_wrong_configs_are_named_at_once() -> None:
    configs = [make.config(sharings={}), make.config(**MPS), make.config(kind="MigConfig")]
    with pytest.raises(ConfigError) as caught:
        group_by_config(claim("a", configs=configs), GPUS)
    first, second = str(caught.value).split("; spec.", 1)
    assert first.startswith('spec.devices.config[0] of the claim: unknown field "sharings"')
    assert second.startswith('devices.config[2] of the claim: unknown kind "MigConfig"')


def test_an_error_is_short_however_many_configs_are_wrong_and_whatever_they_name() -> None:
    requests = [f"{number:02}{'r' * 61}" for number in range(32)]
    wrong = {f"field{number}": 1 for number in range(500)}
    configs = [make.config(*requests, source="FromClass", **wrong) for _ in range(32)]
    with pytest.raises(ConfigError) as caught:
        group_by_config(claim("a", configs=configs), GPUS)
    assert f"request {', '.join(requests[:5])} and 27 more: unknown" in str(caught.value)
    assert str(caught.value).endswith(f"; and {32 * 500 - 5} more")
    assert len(str(caught.value)) < 1024
    seen = claim(*requests, configs=[make.config(**MPS)])
    seen = replace(seen, results=tuple(replace(one, admin_access=True) for one in seen.results))
    with pytest.raises(ConfigError, match=f"request {requests[0]}, .* and 27 more has adminAcc"):
        group_by_config(seen, GPUS)


def test_a_class_config_holds_only_for_the_requests_of_its_class() -> None:
    configs = [make.config("a", source="FromClass", **MPS)]
    assert strategies(claim("a", "b", configs=configs)) == {"gpu-0": "MPS", "gpu-1": None}


def test_a_class_config_that_is_written_later_still_comes_first() -> None:
    configs = [make.config(**MPS), make.config(source="FromClass", **TIME_SLICING)]
    assert strategies(claim("a", "b", configs=configs)) == {"gpu-0": "MPS", "gpu-1": "MPS"}


def test_another_drivers_wrong_config_is_ignored() -> None:
    foreign = make.config(sharings={})
    foreign["opaque"]["driver"] = "net.example.com"
    assert strategies(claim("a", configs=[foreign, make.config(**MPS)])) == {"gpu-0": "MPS"}


def test_a_vfio_config_is_for_gpus_that_are_passed_through() -> None:
    config = make.config(kind="VfioDeviceConfig")
    ((found, _),) = group_by_config(
        claim("a", configs=[make.config(**MPS), config]), dict.fromkeys(GPUS, DeviceKind.VFIO)
    )
    assert found is not None
    assert found.kind == "VfioDeviceConfig"
    with pytest.raises(
        ConfigError, match=r"the VfioDeviceConfig has no effect: .* write a GpuConf"
    ):
        group_by_config(claim("a", configs=[config]), GPUS)
    named = make.config("a", **MPS)
    with pytest.raises(
        ConfigError, match=r'cannot apply GpuConfig .* "vfio" .*; write a VfioDevic'
    ):
        group_by_config(claim("a", configs=[named]), dict.fromkeys(GPUS, DeviceKind.VFIO))


def test_devices_with_admin_access_stand_in_no_group() -> None:
    value = make.claim_object("gpu-0", "gpu-1", configs=[make.config(**MPS)])
    value["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    assert strategies(parse_claim(value, "gpu.nvidia.com")) == {"gpu-1": "MPS"}


MIGS = dict.fromkeys(GPUS, DeviceKind.MIG)
ON_MIG = make.config(kind="MigDeviceConfig", **MPS)


def test_the_only_request_is_named_in_the_spec_where_the_allocation_names_none() -> None:
    with pytest.raises(ConfigError) as caught:
        strategies(scheduled("m", configs=[make.config("m", **MPS)]), MIGS)
    assert str(caught.value) == (
        'cannot apply GpuConfig to device "gpu-0" of type "mig" (request: m): '
        "spec.devices.config[0] of the claim names that request; write a MigDeviceConfig there, "
        "or another request"
    )


def test_configs_are_named_by_their_place_in_the_spec() -> None:
    """The scheduler leaves out what is for an alternative that it has not chosen."""
    configs = [
        make.config("r/large", **MPS),
        make.config("r/small", **TIME_SLICING),
        make.config("r/small", kind="MigDeviceConfig"),
    ]
    assert strategies(scheduled("r/large", configs=configs)) == {"gpu-0": "MPS"}
    with pytest.raises(ConfigError, match=r"spec\.devices\.config\[2\] of the claim names that"):
        strategies(scheduled("r/small", configs=configs))


def test_equal_configs_keep_their_own_requests() -> None:
    configs = [make.config("r/small", **MPS), make.config("r", **MPS)]
    assert strategies(scheduled("r/large", configs=configs)) == {"gpu-0": "MPS"}
    assert strategies(scheduled("r/small", configs=configs)) == {"gpu-0": "MPS"}


def test_a_spec_that_is_not_what_was_allocated_is_not_used() -> None:
    value = make.claim_object("gpu-0", configs=[make.config(**MPS)])
    value["spec"] = {"devices": {"config": []}}
    assert strategies(parse_claim(value, "gpu.nvidia.com")) == {"gpu-0": "MPS"}
    value["spec"]["devices"]["config"] = [make.config("gpu", **MPS), make.config("gpu")]
    assert strategies(parse_claim(value, "gpu.nvidia.com")) == {"gpu-0": "MPS"}


def test_a_config_for_all_requests_that_fits_no_device_is_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        strategies(scheduled("a", "b", configs=[make.config(**MPS)]), MIGS)
    assert str(caught.value) == (
        "spec.devices.config[0] of the claim: the GpuConfig has no effect: it does not fit the "
        'devices of this claim: "gpu-0" (request: a) is of type "mig"; write a MigDeviceConfig, '
        "or remove the config"
    )
    of_class = make.config("a", source="FromClass", kind="MigDeviceConfig")
    with pytest.raises(ConfigError, match="the GpuConfig has no effect"):
        strategies(claim("a", configs=[of_class, make.config(**MPS)]), MIGS)


def test_configs_of_both_kinds_for_all_requests_are_for_either() -> None:
    configs = [make.config(**TIME_SLICING), ON_MIG]
    assert strategies(scheduled("a", configs=configs), MIGS) == {"gpu-0": "MPS"}
    assert strategies(scheduled("a", configs=configs), GPUS) == {"gpu-0": "TimeSlicing"}


def test_a_config_may_be_for_an_alternative_that_was_not_chosen() -> None:
    assert strategies(scheduled("r/mig", configs=[make.config(**MPS)]), MIGS) == {"gpu-0": None}
    configs = [make.config("r/gpu", **MPS)]
    assert strategies(scheduled("r/mig", configs=configs), MIGS) == {"gpu-0": None}


def test_a_config_for_requests_that_got_devices_of_other_drivers_is_passed_over() -> None:
    value = make.claim_object("gpu-0")
    other = {"request": "nic", "driver": "net.example.com", "pool": "p", "device": "nic-0"}
    value["status"]["allocation"]["devices"]["results"].append(other)
    make.schedule_configs(value, make.config("nic", **MPS))
    assert strategies(parse_claim(value, "gpu.nvidia.com")) == {"gpu-0": None}


def test_a_config_of_a_class_may_be_for_another_kind() -> None:
    configs = [make.config("a", source="FromClass", kind="MigDeviceConfig")]
    assert strategies(claim("a", configs=configs)) == {"gpu-0": None}
    assert strategies(claim("a", configs=[ON_MIG | {"source": "FromClass"}])) == {"gpu-0": None}


def test_a_config_for_requests_with_admin_access_alone_is_an_error() -> None:
    value = make.claim_object("gpu-0", "gpu-1")
    value["status"]["allocation"]["devices"]["results"][0] |= {"request": "a", "adminAccess": True}
    make.schedule_configs(value, make.config("a", **MPS))
    with pytest.raises(ConfigError, match="request a has adminAccess, which sees devices and"):
        strategies(parse_claim(value, "gpu.nvidia.com"))


def test_claims_taken_over_keep_configs_without_effect() -> None:
    found = claim("a", configs=[make.config(**MPS)])
    ((applies, _),) = group_by_config(found, MIGS, all_hold=False)
    assert applies is None
