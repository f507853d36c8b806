"""Brings the slices of this node on the API server in line with an inventory.

In: an inventory. Out: the deletes, updates and creates of slices/publish/writes.py on the API
server, and log lines about what was left out. Rules: the API server silently drops fields of
disabled features, so each reply is compared with the request. A device that is not safe without a
dropped field is withdrawn until the driver is restarted: without counters, for example, a GPU and
its partitions could both be allocated. Writing stops at the first such reply, so what comes after
it is never published: counters come before the devices that consume them. A write that was not
stored as requested is not repeated. Without counters only devices that need none stay; without
consumable capacity each device stays for one claim. Other drivers' slices are never touched: if one
has a name of ours, our slice gets another.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol, assert_never

import structlog
from msgspec.structs import asdict

from dra_driver.devices.model import Inventory
from dra_driver.errors import InvalidError, NotFoundError, StaleError, UnavailableError
from dra_driver.kube.client import KubeClient
from dra_driver.kube.fields import Object, at, mapping, objects
from dra_driver.kube.resource import RESOURCE_SLICES
from dra_driver.ops.metrics import Metrics, SliceWrite
from dra_driver.slices.attributes import Omitted
from dra_driver.slices.consumable import ALLOWS_MULTIPLE, GATED_FIELDS, REQUEST_POLICY
from dra_driver.slices.pool import DesiredPool, build_slices, new_tag
from dra_driver.slices.project import Note, Projection, Withheld
from dra_driver.slices.publish.writes import (
    Create,
    Delete,
    Difference,
    Kind,
    Settled,
    Update,
    Write,
    differences,
    owner_reference,
    writes_for,
)
from dra_driver.slices.taints import TAINTS, without_taints
from dra_driver.slices.wire import WireDevice

log = structlog.get_logger()

CONSUMES_COUNTERS = "consumesCounters"
"""The field of a device that an API server without counters drops."""

_CONSUMABLE = "each device is for one claim, whatever --consumable-shares is"
_WITHOUT = {
    CONSUMES_COUNTERS: (
        "DRAPartitionableDevices",
        "no MIG devices are made on demand, and quotas by the counter memory admit nothing",
    ),
    TAINTS: ("DRADeviceTaints", "GPUs that are not well are left out"),
    ALLOWS_MULTIPLE: ("DRAConsumableCapacity", _CONSUMABLE),
    REQUEST_POLICY: ("DRAConsumableCapacity", _CONSUMABLE),
}
"""For each field of devices that an API server may lack, its feature gate, and what follows."""

_REQUEST_SECONDS = 10.0

_LeftOut = Withheld | Note | Omitted

_MOST_ROUNDS = 5
"""Rounds of writing, comparing and withdrawing: each finds one more field, so few are enough."""

_MOST_PATHS = 8
"""How many differences one log line names."""


class Project(Protocol):
    """Turns an inventory into devices; without counters, only into those that need none."""

    def __call__(
        self, inventory: Inventory, *, with_counters: bool, with_consumables: bool
    ) -> Projection:
        """Return what to publish; without consumables, a device is for one claim at a time."""
        ...


class Publication:
    """Publishes one inventory after another, and remembers what the API server does not store."""

    def __init__(
        self,
        api: KubeClient,
        *,
        driver: str,
        node_name: str,
        observer: Metrics,
        project: Project,
        check_may_publish: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the target; `check_may_publish` raises UnavailableError while others publish."""
        self._check_may_publish = check_may_publish
        self._project = project
        self.api = api
        self.observer = observer
        self._driver = driver
        self._node_name = node_name
        self._owner: Object | None = None
        self._unsupported: frozenset[str] = frozenset()
        self._settled: dict[str, Settled] = {}
        self._left_out: frozenset[_LeftOut] = frozenset()
        self._is_first = True

    @property
    def selectors(self) -> dict[str, str]:
        """Return the query that selects the slices of this driver on this node."""
        return {"fieldSelector": f"spec.driver={self._driver},spec.nodeName={self._node_name}"}

    def publish(self, inventory: Inventory) -> int:
        """Bring the API server in line; return the number of writes, 0 if nothing changed.

        Raises DriverError if the API server refuses or is away. Completed writes stay; call again.
        """
        writes = 0
        for _ in range(_MOST_ROUNDS):
            slices = self._projected(inventory)
            self._tell_left_out(slices)
            unsupported = self._unsupported
            devices = tuple(
                device for device in slices.devices if unsupported.isdisjoint(features(device))
            )
            pool = build_slices(
                devices,
                driver=self._driver,
                node_name=self._node_name,
                counter_sets=slices.counter_sets,
            )
            try:
                writes += self._write(pool)
            except InvalidError as error:
                self._withdraw_refused(error)
            if self._unsupported == unsupported:
                break
        self.observer.published(slices=len(pool.contents), devices=len(devices))
        if writes or self._is_first:
            self._is_first = False
            log.info(
                "slices published",
                pool=self._node_name,
                devices=len(devices),
                slices=len(pool.contents),
                writes=writes,
            )
        return writes

    def _projected(self, inventory: Inventory) -> Projection:
        """Return what to publish, as far as the API server stores it."""
        self._check_may_publish()
        slices = self._project(
            inventory,
            with_counters=CONSUMES_COUNTERS not in self._unsupported,
            with_consumables=self._unsupported.isdisjoint(GATED_FIELDS),
        )
        return without_taints(slices) if TAINTS in self._unsupported else slices

    def _write(self, pool: DesiredPool) -> int:
        # From the API server, because a cache could be older than our writes.
        existing = tuple(filter(self._is_ours, self._listed(self.selectors)))
        owner = self._owner
        writes: tuple[Write, ...] = ()
        if owner is not None:
            writes = writes_for(pool, existing, owner=owner, settled=self._settled)
        if owner is None or writes:
            # A node that was deleted and created again has another UID, and no slices of ours.
            owner = self._owner = self._read_owner()
            writes = writes_for(pool, existing, owner=owner, settled=self._settled)
        unsupported = self._unsupported
        for done, write in enumerate(writes, start=1):
            self._do(write, pool)
            if self._unsupported != unsupported:
                return done
        return len(writes)

    def _listed(self, query: Mapping[str, str]) -> tuple[Object, ...]:
        answer = self.api.list(RESOURCE_SLICES, query=query, timeout=_REQUEST_SECONDS)
        return objects(answer, "items")

    def _is_ours(self, entry: Object) -> bool:
        spec = mapping(entry, "spec")
        return (spec.get("driver"), spec.get("nodeName")) == (self._driver, self._node_name)

    def _read_owner(self) -> Object:
        node = self.api.get_node(self._node_name, timeout=_REQUEST_SECONDS)
        uid = at(node, "metadata", "uid")
        if not isinstance(uid, str):
            raise UnavailableError(f"node {self._node_name} has no uid")
        return owner_reference(self._node_name, uid)

    def _do(self, write: Write, pool: DesiredPool) -> None:
        match write:
            case Delete():
                self._delete(write)
                self._settled.pop(write.name, None)
                self.observer.slice_written(SliceWrite.DELETE)
            case Update():
                answer = self.api.update(
                    RESOURCE_SLICES, write.name, write.body, timeout=_REQUEST_SECONDS
                )
                self.observer.slice_written(SliceWrite.UPDATE)
                self._compare(write, answer)
            case Create():
                write, answer = self._create(write, pool)
                self.observer.slice_written(SliceWrite.CREATE)
                self._compare(write, answer)

    def _create(self, write: Create, pool: DesiredPool) -> tuple[Create, dict[str, object]]:
        """Create a slice, with another name if somebody else's slice has its name."""
        try:
            return write, self.api.create(RESOURCE_SLICES, write.body, timeout=_REQUEST_SECONDS)
        except StaleError:
            named = self._listed({"fieldSelector": f"metadata.name={write.name}"})
            if not named or any(map(self._is_ours, named)):
                raise  # it is gone, or another driver of this node has just created it
        other = write.renamed(pool.slice_name(write.index, tag=new_tag()))
        log.warning(
            "slice name taken by others",
            slice=write.name,
            holder=_holder(named[0]),
            published_as=other.name,
            advice="another node or driver wrote that slice and should not have: find out why,"
            f" delete it (kubectl delete resourceslice {write.name}), and apply the driver's"
            " manifests again, whose policy own-node refuses such slices",
        )
        return other, self.api.create(RESOURCE_SLICES, other.body, timeout=_REQUEST_SECONDS)

    def _delete(self, write: Delete) -> None:
        preconditions = {"uid": write.uid, "resourceVersion": write.resource_version}
        try:
            self.api.delete(
                RESOURCE_SLICES, write.name, preconditions=preconditions, timeout=_REQUEST_SECONDS
            )
        except NotFoundError:
            log.debug("slice was gone already", slice=write.name)

    def _compare(self, write: Update | Create, answer: Object) -> None:
        """Note what the server did not store as requested, so that it is not requested again."""
        asked, answered = write.body["spec"], answer.get("spec")
        if not (isinstance(asked, dict) and isinstance(answered, dict)):
            raise UnavailableError(f"the API server's response for slice {write.name} has no spec")
        differing = tuple(differences(asked, answered))
        if not differing:
            self._settled.pop(write.name, None)
            return
        self._settled[write.name] = Settled(asked=asked, answered=answered)
        self._tell_differences(write.name, differing)
        self._withdraw(filter(None, map(_feature, differing)), "the API server does not store it")

    def _withdraw_refused(self, error: InvalidError) -> None:
        """Withdraw the fields that the API server has named as invalid; raise if it named none.

        Kubernetes 1.34 refuses devices that consume counters of another slice, and the effect None.
        """
        named = {field for field in (CONSUMES_COUNTERS, TAINTS) if field in str(error)}
        if named <= self._unsupported:
            raise error
        self._withdraw(named, str(error))

    def _withdraw(self, fields: Iterable[str], reason: str) -> None:
        """Publish no more devices that are not safe without these fields."""
        for field in sorted(set(fields) - self._unsupported):
            gate, consequence = _WITHOUT[field]
            log.warning(
                "devices published without a field",
                field=field,
                reason=reason,
                consequence=consequence,
                advice=f"enable the feature gate {gate} on the API server and the scheduler, then"
                " restart this driver",
            )
            self._unsupported |= {field}

    def _tell_differences(self, name: str, differing: Sequence[Difference]) -> None:
        fields = [str(difference) for difference in differing[:_MOST_PATHS]]
        if all(difference.kind is Kind.ADDED for difference in differing):
            log.info("slice got fields from the api server", slice=name, fields=fields)
            return
        self.observer.fields_dropped(len(differing))
        log.warning("slice not stored as requested", slice=name, fields=fields)

    def _tell_left_out(self, slices: Projection) -> None:
        """Log once what is not published, not at each publication or when another GPU changes."""
        left_out: tuple[_LeftOut, ...] = (*slices.withheld, *slices.notes, *slices.omitted)
        told, self._left_out = self._left_out, frozenset(left_out)
        for entry in [entry for entry in left_out if entry not in told]:
            match entry:
                case Withheld():
                    log.warning("gpu withheld", index=entry.index, reason=entry.reason)
                case Note():
                    log.info("gpu published in part", index=entry.index, reason=entry.text)
                case Omitted():
                    log.warning("attribute omitted", **asdict(entry))
                case _:
                    assert_never(entry)


def _holder(entry: Object) -> str:
    spec = mapping(entry, "spec")
    return f"driver {spec.get('driver')}, node {spec.get('nodeName') or 'none'}"


def features(device: WireDevice) -> AbstractSet[str]:
    """Return the fields of a device and of its capacities that depend on feature gates."""
    capacities = mapping(device, "capacity").values()
    inner = (set(entry) for entry in capacities if isinstance(entry, Mapping))
    return _WITHOUT.keys() & frozenset(device).union(*inner)


def _feature(difference: Difference) -> str | None:
    """Return the unsupported field of devices that a difference shows; None if it shows none."""
    if difference.kind is not Kind.DROPPED:
        return None
    match difference.path:
        case ("sharedCounters", *_):
            return CONSUMES_COUNTERS
        case ("devices", int(), "capacity", _, str(name), *_) | ("devices", int(), str(name), *_):
            return name if name in _WITHOUT else None
    return None
