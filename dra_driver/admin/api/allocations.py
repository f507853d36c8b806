"""Which devices a ResourceClaim has, and which pods use them.

In: a ResourceClaim as a dict. Out: one `Allocation` for each device that was allocated to it for
use. `status.allocation.devices.results` lists them from the scheduler's decision until the claim is
deallocated. A device that was allocated for admin access stays free for others (KEP-5018). With a
share id, a part of the device was allocated, with what it consumes of each capacity (KEP-5075). A
claim without an allocation, or in an unknown form, has none. Pure.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress

from msgspec import Struct

from dra_driver.admin.api.objects import full_name, nanos
from dra_driver.admin.api.slices import DeviceId
from dra_driver.kube.fields import Object, mapping, objects, text


class Allocation(Struct, frozen=True, kw_only=True):
    """One device that a claim has, or a part of one.

    Attributes:
        claim: the claim, as namespace/name.
        users: what the claim is reserved for: pods by name, anything else as resource/name.
        share_id: distinguishes parts of a device; None for the whole device.
        consumed: what the part takes of the device's capacities, in billionths of their units.
    """

    claim: str
    driver: str
    pool: str
    device: str
    users: tuple[str, ...]
    share_id: str | None = None
    consumed: Mapping[str, int] = {}

    @property
    def id(self) -> DeviceId:
        """The device's key."""
        return DeviceId(self.driver, self.pool, self.device)


def allocations_in(claim: Object, driver: str = "") -> Iterator[Allocation]:
    """Yield the devices that a claim has for use, of one driver or of all."""
    results = objects(claim, "status", "allocation", "devices", "results")
    if not results:
        return
    users = tuple(user_of(consumer) for consumer in objects(claim, "status", "reservedFor"))
    for result in results:
        if driver in ("", result.get("driver")) and not result.get("adminAccess"):
            yield Allocation(
                claim=full_name(claim),
                driver=str(result.get("driver")),
                pool=str(result.get("pool")),
                device=str(result.get("device")),
                users=users,
                share_id=_share_id(result),
                consumed=dict(_consumed(result)),
            )


def _share_id(result: Object) -> str | None:
    return text(result, "shareID") or None


def _consumed(result: Object) -> Iterator[tuple[str, int]]:
    if _share_id(result) is None:
        return
    for name, amount in mapping(result, "consumedCapacity").items():
        with suppress(ValueError):  # the API server rejects such an amount
            yield name, nanos(amount)


def user_of(reference: Object) -> str:
    """Return what a claim is reserved for: a pod by its name, anything else as resource/name."""
    resource, name = reference.get("resource"), str(reference.get("name"))
    return name if resource == "pods" else f"{resource}/{name}"
