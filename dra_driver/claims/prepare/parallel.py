"""Does the same thing for several values side by side: eight GPUs take no longer than one."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from dra_driver.errors import DriverError
from dra_driver.host.turns import waiting

T = TypeVar("T")
R = TypeVar("R")


def all_or_error(values: Sequence[T], call: Callable[[T], R]) -> list[R]:
    """Call for each value on a thread of its own; return the results when all have ended.

    Raises the first DriverError that one of the calls raised.
    """
    results: list[R] = []
    for found in _outcomes(values, call):
        if isinstance(found, DriverError):
            raise found
        results.append(found)
    return results


def failures(values: Sequence[T], call: Callable[[T], object]) -> list[tuple[T, DriverError]]:
    """Call for each value on a thread of its own; return those that failed when all have ended."""
    ends = zip(values, _outcomes(values, call), strict=True)
    return [(value, end) for value, end in ends if isinstance(end, DriverError)]


def _outcomes(values: Sequence[T], call: Callable[[T], R]) -> list[R | DriverError]:
    def outcome(value: T) -> R | DriverError:
        try:
            return call(value)
        except DriverError as error:
            return error

    if len(values) <= 1:
        return [outcome(value) for value in values]
    # Each with what this thread's log lines say of the claim.
    contexts = [copy_context() for _ in values]
    with waiting(), ThreadPoolExecutor(len(values), thread_name_prefix="claim-step") as pool:
        return list(pool.map(lambda context, value: context.run(outcome, value), contexts, values))
