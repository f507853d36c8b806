"""Which config holds for which device of a claim. Pure.

In: a claim's results and opaque configs. Out: groups of results that stand under one config. Rules:
resource.k8s.io/v1 DeviceAllocationConfiguration: configs of DeviceClasses first, then those of the
claim, later ones override, whole configs at a time; one that names no request is for all requests;
one that names a request covers its sub-requests too. A config for all requests skips devices of
another kind, one that names the request of such a device is an error.

Devices with admin access stand in no group: they are seen, never changed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import assert_never

from dra_driver.claims.model import Claim, OpaqueConfig, Result
from dra_driver.devices.kinds import DeviceKind
from dra_driver.errors import ConfigError
from resource_nvidia_com.decode import Config, decode
from resource_nvidia_com.problems import InvalidConfigError
from resource_nvidia_com.v1beta1.gpu import GpuConfig
from resource_nvidia_com.v1beta1.mig import MigDeviceConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigGroup:
    """Results that stand under the same config: with MPS, for one, they share a daemon."""

    config: Config
    results: tuple[Result, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    config: Config
    opaque: OpaqueConfig


def group_by_config(claim: Claim, kinds: Mapping[str, DeviceKind]) -> tuple[ConfigGroup, ...]:
    """Return the claim's results without admin access, by the config that holds for them.

    `kinds` has the kind of every device the claim's results name. All configs are read and checked,
    also those that hold for no result: their author should hear of a mistake now.

    Raises:
        ConfigError: a config is wrong, or is for another kind of device than its request got.
    """
    choices = _choices(claim.configs)
    # One group for each config and, for results without one, for each kind's default.
    groups: dict[int | DeviceKind, tuple[Config, list[Result]]] = {}
    for result in claim.results:
        if result.admin_access:
            continue
        kind = kinds[result.device]
        index = _winner(choices, result, kind)
        key, config = (kind, _default(kind)) if index is None else (index, choices[index].config)
        groups.setdefault(key, (config, []))[1].append(result)
    return tuple(
        ConfigGroup(config=config, results=tuple(results)) for config, results in groups.values()
    )


def _winner(choices: list[_Choice], result: Result, kind: DeviceKind) -> int | None:
    for index in reversed(range(len(choices))):
        choice = choices[index]
        named = choice.opaque.requests
        fits = isinstance(choice.config, type(_default(kind)))
        if not named and fits:
            return index
        if result.request in named or result.base_request in named:
            if fits:
                return index
            raise ConfigError(
                f'cannot apply {choice.config.kind} to device "{result.device}" of type "{kind}" '
                f"(request: {result.request}): {choice.opaque.origin} names that request; "
                f"write a {_default(kind).kind} there, or another request"
            )
    return None


def _choices(configs: Iterable[OpaqueConfig]) -> list[_Choice]:
    """Read all configs; who has several to mend should hear of all at once."""
    choices: list[_Choice] = []
    wrong: list[str] = []
    for opaque in configs:
        try:
            choices.append(_Choice(config=_decoded(opaque), opaque=opaque))
        except ConfigError as error:
            wrong.append(str(error))
    if wrong:
        raise ConfigError("; ".join(wrong))
    return choices


def _decoded(opaque: OpaqueConfig) -> Config:
    try:
        return decode(opaque.parameters).normalise()
    except InvalidConfigError as error:
        raise ConfigError(f"{opaque.origin}: {error}") from error


def _default(kind: DeviceKind) -> Config:
    """Return what a device of a kind has without a config; its type is what the kind takes."""
    match kind:
        case DeviceKind.GPU:
            return GpuConfig()
        case DeviceKind.MIG:
            return MigDeviceConfig()
        case _:
            assert_never(kind)
