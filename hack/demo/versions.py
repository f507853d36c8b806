"""How a demo depends on the version of Kubernetes: features, and who makes MIG devices.

In: a version as a person writes it, and what a demo needs. Out: reasons why it cannot be shown, and
whether the driver makes MIG devices of GPUs in MIG mode by default.
"""

from collections.abc import Collection

from cluster.errors import ClusterError
from cluster.versions import DEFAULT_MINOR, resolve
from testbed.commands import TestbedError

from dra_driver.admin.doctor.checks.cluster_checks import ALL_FEATURES_ON
from dra_driver.slices.offer.mig import has_cheap_counters

Minor = tuple[int, int]


def minor_of(version: str) -> Minor:
    """Return the minor version of a Kubernetes of hack/cluster; the empty text is the default.

    Raises TestbedError if it has no such version; the text lists those that it has.
    """
    try:
        major, minor = resolve(version or DEFAULT_MINOR).minor.split(".")
    except ClusterError as error:
        raise TestbedError(str(error)) from error
    return int(major), int(minor)


def makes_mig(kubernetes: Minor) -> bool:
    """Tell whether the driver makes MIG devices on GPUs in MIG mode there by default."""
    return has_cheap_counters(kubernetes)


def switched_off(features: Collection[str], kubernetes: Minor) -> list[str]:
    """Return which of some features are off in a version of Kubernetes."""
    return [] if kubernetes >= ALL_FEATURES_ON else sorted(features)


DEFAULT = minor_of("")
"""The minor version that a demo runs on by default."""
