"""Brings the slices of this node on the API server in line with an inventory.

In: an inventory. Out: the deletes, updates and creates of slices/publish/writes.py on the API
server, and log lines about what was left out. Rules: the API server silently drops fields of
disabled features, so each reply is compared with the request. A device that is not safe without a
dropped field is withdrawn until the driver is restarted: without counters, for example, a GPU and
its partitions could both be allocated. A write that was not stored as requested is not repeated.
Whether the server stores counters is tested before any are published, by a create with
`dryRun=All`, because a pod could be scheduled before a reply is compared. Without counters only
devices that need none stay; without consumable capacity each device stays for one claim. Other
drivers' slices are never touched: if one has a name of ours, our slice gets another.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, assert_never

import structlog

from dra_driver.devices.model import Inventory
from dra_driver.errors import InvalidError, NotFoundError, StaleError, UnavailableError
from dra_driver.fields import Object, at, mapping, objects
from dra_driver.kube.client import KubeClient
from dra_driver.kube.resource import RESOURCE_SLICES, Resource
from dra_driver.ops.metrics import Metrics, SliceWrite
from dra_driver.slices.attributes import Omitted
from dra_driver.slices.consumable import GATED_FIELDS
from dra_driver.slices.pool import DesiredPool, build_slices, new_tag
from dra_driver.slices.project import Note, Projection, Withheld
from dra_driver.slices.publish.writes import (
    Create,
    Delete,
    Difference,
    Kind,
    Owner,
    Settled,
    Update,
    Write,
    differences,
    slice_body,
    writes_for,
)
from dra_driver.slices.taints import TAINTS, without_taints
from dra_driver.slices.wire import WireDevice

log = structlog.get_logger()

CONSUMES_COUNTERS = "consumesCounters"
"""The field of a device that an API server without counters drops."""

_REQUEST_SECONDS = 10.0

_LeftOut = Withheld | Note | Omitted

_MOST_ROUNDS = 5
"""Rounds of writing, comparing and withdrawing: each finds one more field, so few are enough."""

_MOST_PATHS = 8
"""How many differences one log line names."""


class DryRun(Protocol):
    """The part of an API client that `stores` needs; doctor has its own client."""

    def create(
        self, resource: Resource, body: Mapping[str, object], *, dry_run: bool, timeout: float
    ) -> dict[str, object]:
        """Create an object, or only test that with `dry_run`; return what the server stores."""
        ...


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
        self._owner: Owner | None = None
        self._unsupported: frozenset[str] = frozenset()
        self._settled: dict[str, Settled] = {}
        self._left_out: frozenset[_LeftOut] = frozenset()
        self._are_counters_known = False
        self._effects_known: frozenset[str] = frozenset()
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
            slices = self._as_stored(self._projected(inventory))
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
            writes += self._write(pool)
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
        """Return what to publish, with counters if the API server is known to store them."""
        if CONSUMES_COUNTERS not in self._unsupported:
            slices = self._find(inventory, with_counters=True)
            if not slices.counter_sets or self._has_counters(slices):
                return slices
        return self._find(inventory, with_counters=False)

    def _as_stored(self, slices: Projection) -> Projection:
        """Return what to publish; without unhealthy GPUs if the API server stores no taints.

        That is tested once for each effect, because not all versions know all effects.
        """
        unknown = (each for each in slices.devices if _effects(each) - self._effects_known)
        device = next(unknown, None)
        if device is not None and TAINTS not in self._unsupported:
            # Without counters, because Kubernetes 1.34 expects their set in the same slice.
            alone = {key: value for key, value in device.items() if key != CONSUMES_COUNTERS}
            if not self._stores(alone, TAINTS, "api server refuses a device's taints"):
                self._lacks(
                    TAINTS,
                    "gpus that are not well are left out",
                    reason="the API server does not store taints",
                    gate="DRADeviceTaints",
                )
            self._effects_known |= _effects(device)
        return without_taints(slices) if TAINTS in self._unsupported else slices

    def _find(self, inventory: Inventory, *, with_counters: bool) -> Projection:
        self._check_may_publish()
        can_be_shared = self._unsupported.isdisjoint(GATED_FIELDS)
        return self._project(inventory, with_counters=with_counters, with_consumables=can_be_shared)

    def _has_counters(self, slices: Projection) -> bool:
        """Test once whether the API server stores counters; later drops are noticed as well."""
        if not self._are_counters_known:
            device = next((each for each in slices.devices if each.get(CONSUMES_COUNTERS)), None)
            refusal = "api server refuses devices that consume counters"
            if device is not None and not self._stores(device, CONSUMES_COUNTERS, refusal):
                self._lacks(
                    CONSUMES_COUNTERS,
                    "devices published without counters",
                    reason="the API server does not store them: no MIG devices are made on demand,"
                    " and quotas by the counter memory admit nothing",
                    gate="DRAPartitionableDevices",
                )
            self._are_counters_known = True
        return CONSUMES_COUNTERS not in self._unsupported

    def _lacks(self, field: str, event: str, *, reason: str, gate: str) -> None:
        """Note that the API server does not store a field, and log how to change that."""
        self._unsupported |= {field}
        self.observer.fields_dropped(1)
        advice = f"enable {gate} on the API server and the scheduler, then restart this driver"
        log.warning(event, reason=reason, advice=advice)

    def _stores(self, device: WireDevice, field: str, refusal: str) -> bool:
        """Test whether the API server keeps a field; log `refusal` if it refuses the device.

        Kubernetes 1.34 refuses a device that consumes counters of another slice.
        """
        try:
            return stores(
                self.api,
                device,
                field,
                driver=self._driver,
                node_name=self._node_name,
                timeout=_REQUEST_SECONDS,
            )
        except InvalidError as error:
            log.warning(refusal, error=str(error))
            return False

    def _write(self, pool: DesiredPool) -> int:
        existing = self._existing()
        owner = self._owner
        writes: tuple[Write, ...] = ()
        if owner is not None:
            writes = writes_for(pool, existing, owner=owner, settled=self._settled)
        if owner is None or writes:
            # A node that was deleted and created again has another UID, and no slices of ours.
            owner = self._owner = self._read_owner()
            writes = writes_for(pool, existing, owner=owner, settled=self._settled)
        for write in writes:
            self._do(write, pool)
        return len(writes)

    def _existing(self) -> tuple[Object, ...]:
        """Return our slices from the API server, because a cache could be older than our writes."""
        return tuple(filter(self._is_ours, self._listed(self.selectors)))

    def _listed(self, query: Mapping[str, str]) -> tuple[Object, ...]:
        answer = self.api.list(RESOURCE_SLICES, query=query, timeout=_REQUEST_SECONDS)
        return objects(answer, "items")

    def _is_ours(self, entry: Object) -> bool:
        spec = mapping(entry, "spec")
        return (spec.get("driver"), spec.get("nodeName")) == (self._driver, self._node_name)

    def _read_owner(self) -> Owner:
        node = self.api.get_node(self._node_name, timeout=_REQUEST_SECONDS)
        uid = at(node, "metadata", "uid")
        if not isinstance(uid, str):
            raise UnavailableError(f"node {self._node_name} has no uid")
        return Owner(name=self._node_name, uid=uid)

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
        lost = frozenset(filter(None, map(_feature, differing)))
        if lost & GATED_FIELDS and self._unsupported.isdisjoint(GATED_FIELDS):
            log.warning(
                "devices published for one claim each",
                reason="--consumable-shares is set, and the API server does not store "
                f"{', '.join(sorted(lost & GATED_FIELDS))}",
                advice="enable the feature gate DRAConsumableCapacity on the API server and the "
                "scheduler, then restart this driver",
            )
        self._unsupported |= lost
        self._tell_differences(write.name, differing, lost)

    def _tell_differences(
        self, name: str, differing: Sequence[Difference], lost: frozenset[str]
    ) -> None:
        fields = [str(difference) for difference in differing[:_MOST_PATHS]]
        if all(difference.kind is Kind.ADDED for difference in differing):
            log.info("slice got fields from the api server", slice=name, fields=fields)
            return
        self.observer.fields_dropped(len(differing))
        log.warning(
            "slice not stored as asked",
            slice=name,
            fields=fields,
            withdrawn=sorted(lost),
            advice="enable these features on the API server, then restart this driver",
        )

    def _tell_left_out(self, slices: Projection) -> None:
        """Log once what is not published, not at each publication or when another GPU changes."""
        left_out: tuple[_LeftOut, ...] = (*slices.withheld, *slices.notes, *slices.omitted)
        told, self._left_out = self._left_out, frozenset(left_out)
        for entry in left_out:
            if entry not in told:
                _tell(entry)


def _holder(entry: Object) -> str:
    spec = mapping(entry, "spec")
    return f"driver {spec.get('driver')}, node {spec.get('nodeName') or 'none'}"


def _tell(left_out: _LeftOut) -> None:
    match left_out:
        case Withheld():
            log.warning("gpu withheld", index=left_out.index, reason=left_out.reason)
        case Note():
            log.info("gpu published in part", index=left_out.index, reason=left_out.text)
        case Omitted():
            log.warning(
                "attribute omitted",
                device=left_out.device,
                attribute=left_out.attribute,
                reason=left_out.reason,
            )
        case _:
            assert_never(left_out)


def _effects(device: WireDevice) -> frozenset[str]:
    return frozenset(str(taint.get("effect")) for taint in objects(device, TAINTS))


def features(device: WireDevice) -> frozenset[str]:
    """Return the fields of a device and of its capacities that depend on feature gates."""
    capacities = mapping(device, "capacity").values()
    inner = (set(entry) for entry in capacities if isinstance(entry, Mapping))
    return frozenset(device).union(*inner) - _ALWAYS_THERE


_ALWAYS_THERE = frozenset({"name", "attributes", "capacity", "value"})


def _feature(difference: Difference) -> str | None:
    """Return the unsupported field of devices that a difference shows; None if it shows none."""
    if difference.kind is not Kind.DROPPED:
        return None
    match difference.path:
        case ("sharedCounters", *_):
            return CONSUMES_COUNTERS
        case ("devices", int(), "capacity", _, str(name), *_):
            return None if name in _ALWAYS_THERE else name
        case ("devices", int(), str(name), *_):
            return None if name in _ALWAYS_THERE else name
    return None


def stores(
    api: DryRun, device: Object, field: str, *, driver: str, node_name: str, timeout: float
) -> bool:
    """Tell by a dry run whether the API server keeps a field of a device that has it.

    Raises InvalidError if the server refuses the device, another DriverError if it cannot be
    reached or does not let us create slices.
    """
    # With a random name, because our slices, or others', may already have the usual names.
    name = build_slices((), driver=driver, node_name=node_name).slice_name(0, tag=new_tag())
    pool = {"name": node_name, "generation": 0, "resourceSliceCount": 1}
    asked: dict[str, object] = {
        "driver": driver,
        "nodeName": node_name,
        "pool": pool,
        "devices": [device],
    }
    answer = api.create(
        RESOURCE_SLICES, slice_body({"name": name}, asked), dry_run=True, timeout=timeout
    )
    stored = answer.get("spec")
    if not isinstance(stored, dict):
        raise UnavailableError("the API server's response for a trial slice has no spec")
    return not any(
        difference.kind is Kind.DROPPED and field in difference.path
        for difference in differences(asked, stored)
    )
