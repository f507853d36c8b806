"""Decides which config applies to which device of a claim. Pure.

In: a claim's results and opaque configs. Out: groups of results to which the same config applies.
Rules (DeviceAllocationConfiguration of resource.k8s.io/v1): configs of DeviceClasses come first,
then those of the claim; a later config replaces an earlier one as a whole. A config that names no
request is for all requests; one that names a request covers its sub-requests too.

A config for all requests skips devices of another kind. So does a DeviceClass's config, as its
author does not know the claim. A claim's config that names the request of such a device is an
error. So is one that applies to nothing while a device that may have been meant has no config of
the claim.

Devices with admin access are in no group, because they are never changed.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, assert_never

from msgspec import Struct

from dra_driver.claims.model.claim import Claim, ConfigSource, OpaqueConfig, Result
from dra_driver.devices.device import DeviceKind
from dra_driver.errors import ConfigError
from dra_driver.host.words import named
from resource_nvidia_com.printable import listed
from resource_nvidia_com.problems import InvalidConfigError

if TYPE_CHECKING:
    from resource_nvidia_com.decode import Config


class _Choice(Struct, frozen=True, kw_only=True):
    config: "Config"
    opaque: OpaqueConfig

    @property
    def of_claim(self) -> bool:
        return self.opaque.source is ConfigSource.CLAIM

    def fits(self, kind: DeviceKind) -> bool:
        return self.config.kind == _kind_for(kind)

    def is_for(self, result: Result) -> bool:
        requests = self.opaque.requests
        return not requests or result.request in requests or result.base_request in requests


def group_by_config(
    claim: Claim, kinds: Mapping[str, DeviceKind], *, all_hold: bool = True
) -> "list[tuple[Config | None, list[Result]]]":
    """Return the claim's results without admin access, by the config that applies to them.

    The config is None for devices of one kind that have none.

    `kinds` is keyed by device name. All configs are checked, even if they apply to no result, so
    that their authors hear of mistakes now. With `all_hold`, a claim's config that applies to
    nothing is a ConfigError.
    """
    choices = _choices(claim.configs)
    # One group for each config, and one for each kind of device without a config.
    groups: dict[int | DeviceKind, tuple[Config | None, list[Result]]] = {}
    without: list[Result] = []
    for result in claim.results:
        if result.admin_access:
            continue
        kind = kinds[result.device]
        index = _winner(choices, result, kind)
        if index is None or not choices[index].of_claim:
            without.append(result)
        key, config = (kind, None) if index is None else (index, choices[index].config)
        groups.setdefault(key, (config, []))[1].append(result)
    if all_hold:
        for choice in choices:
            _check_holds(choice, claim.results, kinds, without)
    return list(groups.values())


def _winner(choices: list[_Choice], result: Result, kind: DeviceKind) -> int | None:
    for index in reversed(range(len(choices))):
        choice = choices[index]
        if not choice.is_for(result):
            continue
        if choice.fits(kind):
            return index
        if choice.opaque.requests and choice.of_claim:
            raise ConfigError(
                f'cannot apply {choice.config.kind} to device "{result.device}" of type "{kind}" '
                f"(request: {result.request}): {choice.opaque.origin} names that request; "
                f"write a {_kind_for(kind)} there, or another request"
            )
    return None


def _check_holds(
    choice: _Choice,
    results: Iterable[Result],
    kinds: Mapping[str, DeviceKind],
    without: Iterable[Result],
) -> None:
    """Raise ConfigError if a claim's config has no effect. `without` have no config of the claim.

    A config may have no effect if its requests got devices of other drivers, or if it is for an
    alternative of `firstAvailable` that was not chosen.
    """
    meant = [result for result in results if choice.is_for(result)]
    if not choice.of_claim or not meant:
        return
    kind, origin = choice.config.kind, choice.opaque.origin
    changed = [result for result in meant if not result.admin_access]
    if not changed:
        names = named(dict.fromkeys(result.request for result in meant))
        raise ConfigError(
            f"{origin}: the {kind} has no effect: request {names} has adminAccess, which sees "
            "devices and never changes them; remove the config"
        )
    if any(choice.fits(kinds[each.device]) or each.subrequest for each in changed):
        return
    for result in without:
        if choice.is_for(result):
            kind_here = kinds[result.device]
            raise ConfigError(
                f"{origin}: the {kind} has no effect: it does not fit the devices of this claim: "
                f'"{result.device}" (request: {result.request}) is of type "{kind_here}"; write a '
                f"{_kind_for(kind_here)}, or remove the config"
            )


def _choices(configs: Iterable[OpaqueConfig]) -> list[_Choice]:
    """Read all configs. An error is about all of them, so that they can be mended together."""
    choices: list[_Choice] = []
    wrong: list[str] = []
    for opaque in configs:
        try:
            choices.append(_Choice(config=_decoded(opaque), opaque=opaque))
        except InvalidConfigError as error:
            first, *others = (problem.text for problem in error.problems)
            wrong += [f"{opaque.origin}: {first}", *others]
    if wrong:
        raise ConfigError(listed(wrong))
    return choices


def _decoded(opaque: OpaqueConfig) -> "Config":
    # Imported here, so that pydantic is loaded only on nodes where a claim has a config.
    from resource_nvidia_com.decode import decode  # noqa: PLC0415

    return decode(opaque.parameters).normalise()


def _kind_for(kind: DeviceKind) -> str:
    """Return the kind of config that a kind of device takes."""
    match kind:
        case DeviceKind.GPU:
            return "GpuConfig"
        case DeviceKind.MIG:
            return "MigDeviceConfig"
        case DeviceKind.VFIO:
            return "VfioDeviceConfig"
        case _:
            assert_never(kind)
