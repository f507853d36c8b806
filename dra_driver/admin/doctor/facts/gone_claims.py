"""Prepared claims that lost the right to their devices, and whether pods still run with them."""

from collections.abc import Callable, Mapping

from msgspec import Struct, field

from dra_driver.admin.doctor.facts.places import Places
from dra_driver.admin.stored import stored_records
from dra_driver.claims.model.record import ClaimRecord, RecordState
from dra_driver.claims.state.records import written_at
from dra_driver.devices.model import Inventory
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.kubelet.pod_resources import PodResources
from dra_driver.node.still_running import still_running


class GoneFacts(Struct, frozen=True, kw_only=True):
    """What is known about prepared claims.

    Attributes:
        why_unknown: why the node cannot be asked which pods run; None if it can.
        kept: claims without a right to their devices, and why pods may still run with them.
        ended: the same, but no pod runs with them.
    """

    why_unknown: str | None
    kept: Mapping[str, str] = field(default_factory=dict)
    ended: tuple[str, ...] = ()


def gone_claims(
    places: Places, inventory: Inventory, why_gone: Callable[[ClaimRecord], str | None] | None
) -> GoneFacts:
    """Compare the records of claims with the API server, if it is known, and with what runs here.

    Raises DriverError if the records cannot be read or the API server does not answer.
    """
    directory = places.plugins / DRIVER_NAME
    records = stored_records(directory).records
    running = still_running(
        PodResources(places.plugins, places.roots.host_roots()),
        roots=places.roots,
        cgroup_root=places.cgroup_root,
        inventory=lambda: inventory,
    )
    kept: dict[str, str] = {}
    ended: list[str] = []
    for record in records:
        if why_gone is None or record.state is RecordState.RELEASED:
            continue
        if (reason := why_gone(record)) is None:
            continue
        others = [other for other in records if other is not record]
        why = running.why(record, others, written_at(directory, record.ref.uid))
        if why is None:
            ended.append(f"{record.ref}, which {reason}")
        else:
            kept[f"{record.ref} {reason}"] = why
    return GoneFacts(why_unknown=running.why_unknown(), kept=kept, ended=tuple(ended))
