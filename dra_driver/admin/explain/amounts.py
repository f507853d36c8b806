"""What a request consumes of a device's capacities, and whether enough is left.

As in KEP-5075, every capacity is consumed: the requested amount, rounded up to what the policy
allows; without a request the default, or else everything. A device for one claim is compared by the
same amounts, but nothing of it is left for others. Amounts are in billionths of their units. Pure.
"""

from collections.abc import Mapping

from msgspec import Struct

from dra_driver.admin.api.slices import Capacity, Policy

_NANO = 10**9
_MILLI = 10**6
_INT64_MAX = 2**63 - 1


class NotCountableError(Exception):
    """An amount that the scheduler cannot count, so that it gives up on the claim."""


class Shortage(Struct, frozen=True, kw_only=True):
    """A capacity of which a device has too little, or whose policy does not allow the amount.

    Attributes:
        wanted: how much is consumed; 0 if the device has no such capacity.
        total: how much there is; None if the device has no such capacity.
        taken: what others consume of it.
        refused: whether its policy does not allow the amount.
    """

    name: str
    wanted: int
    total: int | None
    taken: int = 0
    refused: bool = False


def consumed(capacities: Mapping[str, Capacity], asked: Mapping[str, int]) -> dict[str, int]:
    """Return what is consumed of each capacity. Raises NotCountableError."""
    return {name: _amount(capacity, asked.get(name)) for name, capacity in capacities.items()}


def shortage(
    capacities: Mapping[str, Capacity],
    asked: Mapping[str, int],
    *taken: Mapping[str, int],
) -> Shortage | None:
    """Return the first capacity that is not enough; None if all are. Raises NotCountableError."""
    for name in asked:
        if name not in capacities:
            return Shortage(name=name, wanted=asked[name], total=None)
    amounts = consumed(capacities, asked)
    for name, capacity in capacities.items():
        there = sum(each.get(name, 0) for each in taken)
        refused = capacity.policy is not None and not _allows(capacity.policy, amounts[name])
        if refused or amounts[name] + there > capacity.total:
            return Shortage(
                name=name, wanted=amounts[name], total=capacity.total, taken=there, refused=refused
            )
    return None


def _amount(capacity: Capacity, asked: int | None) -> int:
    policy = capacity.policy
    if asked is None:
        return capacity.default
    if policy is None:
        return asked
    if policy.least is not None:
        return _stepped(policy, policy.least, asked)
    return next((value for value in policy.values if asked <= value), asked)


def _stepped(policy: Policy, least: int, asked: int) -> int:
    if asked < least:
        return least
    if policy.step is None:
        return asked
    unit = _unit(policy)
    if unit == _MILLI and asked % _MILLI:
        raise NotCountableError("the amount must be a multiple of 0.001")
    if asked > _INT64_MAX * unit:
        raise NotCountableError("the amount is too large to be counted")
    start, step, wanted = (_whole(amount, unit) for amount in (least, policy.step, asked))
    steps = start - (start - wanted) // step * step
    if steps > _INT64_MAX:
        raise NotCountableError("the amount is too large to be counted")
    return steps * unit


def _allows(policy: Policy, amount: int) -> bool:
    if amount == policy.default:
        return True
    if policy.least is not None or policy.most is not None or policy.step is not None:
        if policy.most is not None and amount > policy.most:
            return False
        if policy.step is None:
            return True
        unit = _unit(policy)
        if unit == _MILLI and amount % _MILLI:
            return False
        steps = _whole(amount, unit) - _whole(policy.least or 0, unit)
        return steps % _whole(policy.step, unit) == 0
    return not policy.values or amount in policy.values


def _unit(policy: Policy) -> int:
    """Return the unit for counting a range: thousandths if its bounds are multiples of one."""
    bounds = [bound for bound in (policy.least, policy.most, policy.step) if bound is not None]
    fine = all(bound % _MILLI == 0 and bound // _MILLI <= _INT64_MAX for bound in bounds)
    return _MILLI if fine and policy.step else _NANO


def _whole(amount: int, unit: int) -> int:
    return -(-amount // unit)
