"""Whether the API server stores what devices consume, asked before anything is published.

In: the devices to be published. Out: yes or no, by a create with `dryRun=All`, which stores
nothing. Rule: an API server whose feature gate DRAPartitionableDevices is off silently drops
counters from devices. A whole GPU and its MIG devices would then be published side by side, each
free to be allocated, until the loss is noticed in the reply: too late for a pod that is scheduled
in between.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import structlog

from dra_driver.errors import InvalidError, UnavailableError
from dra_driver.fields import Object
from dra_driver.kube.resource import RESOURCE_SLICES, Resource
from dra_driver.slices.pool import build_slices, new_tag
from dra_driver.slices.publish.difference import Kind, differences

log = structlog.get_logger()

CONSUMES_COUNTERS = "consumesCounters"
"""The field of a device that a server without counters drops."""


class DryRun(Protocol):
    """What the question needs of the API server's client."""

    def create(
        self, resource: Resource, body: Mapping[str, object], *, dry_run: bool, timeout: float
    ) -> dict[str, object]:
        """Go through the creation of an object; return what would be stored."""
        ...


def stores_counters(
    api: DryRun, devices: Sequence[Object], *, driver: str, node_name: str, timeout: float
) -> bool:
    """Tell whether the API server keeps the counters that devices consume.

    Args:
        api: the client.
        devices: what is to be published; without one that consumes counters the answer is yes.
        driver: the DRA driver's name.
        node_name: the node.
        timeout: seconds for the request.

    Raises:
        DriverError: the API server is away, or does not let us create slices.
    """
    device = next((device for device in devices if device.get(CONSUMES_COUNTERS)), None)
    if device is None:
        return True
    try:
        return stores(
            api, device, CONSUMES_COUNTERS, driver=driver, node_name=node_name, timeout=timeout
        )
    except InvalidError as error:
        # Kubernetes 1.34 wants counters in the same slice as devices, and is not served them so.
        log.warning("api server refuses devices that consume counters", error=str(error))
        return False


def stores_taints(
    api: DryRun, device: Object, *, driver: str, node_name: str, timeout: float
) -> bool:
    """Tell whether the API server keeps the taints of a device; arguments as of `stores`.

    Raises:
        DriverError: the API server is away, or does not let us create slices.
    """
    alone = {key: value for key, value in device.items() if key != CONSUMES_COUNTERS}
    try:
        return stores(api, alone, "taints", driver=driver, node_name=node_name, timeout=timeout)
    except InvalidError as error:
        log.warning("api server refuses a device's taints", error=str(error))
        return False


def stores(
    api: DryRun, device: Object, field: str, *, driver: str, node_name: str, timeout: float
) -> bool:
    """Tell whether the API server keeps a field of a device.

    Args:
        api: the client.
        device: a device with that field.
        field: its name.
        driver: the DRA driver's name.
        node_name: the node.
        timeout: seconds for the request.

    Raises:
        InvalidError: the server takes no such device.
        DriverError: the API server is away, or does not let us create slices.
    """
    # A name that nobody knows: the slices themselves may be there already, and so may others'.
    name = build_slices((), driver=driver, node_name=node_name).slice_name(0, tag=new_tag())
    pool = {"name": node_name, "generation": 0, "resourceSliceCount": 1}
    asked = {"driver": driver, "nodeName": node_name, "pool": pool, "devices": [device]}
    body: dict[str, object] = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": asked,
    }
    answer = api.create(RESOURCE_SLICES, body, dry_run=True, timeout=timeout)
    stored = answer.get("spec")
    if not isinstance(stored, dict):
        raise UnavailableError("the API server's response for a trial slice has no spec")
    return not any(
        difference.kind is Kind.DROPPED and field in difference.path
        for difference in differences(asked, stored)
    )
