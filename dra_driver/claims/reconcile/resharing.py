"""Divides devices anew once no claim has been allocated anything of the former division.

In: the changes that are open (claims/state/divisions.py has the states of one), this node's slices,
and all claims of the cluster. Out: changes that are made, or that wait for the claims which were
found. Between allocation and preparing only the API server knows of a claim. So what is to change
is withdrawn from the slices first; then, after the time that an allocation under way takes to be
stored, all claims are listed, once for each attempt. There is no selector for claims of a node, and
a watch of all claims on each node would cost more than the rare list. Claims that were found are
asked for one by one until they are gone or prepared. An API server that does not answer changes
nothing; one that does not let us list claims is told of, and not waited for.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import structlog

from dra_driver.claims.model.claim import ClaimRef, ref_of, uid_of
from dra_driver.claims.model.devices import InventorySource
from dra_driver.claims.prepare.allocation import part_named
from dra_driver.claims.state.divisions import Change, Divisions
from dra_driver.dataclass import dataclass
from dra_driver.devices.names import DRIVER_NAME, ShareName, parse_device_name
from dra_driver.errors import AccessError, DriverError, NotFoundError, TransientError
from dra_driver.fields import objects
from dra_driver.host.worker import Worker
from dra_driver.kube.backoff import Backoff
from dra_driver.kube.client import KubeClient
from dra_driver.slices.publish.publisher import SlicePublisher

log = structlog.get_logger()

_MOST_NAMED = 3
"""Claims that one line names."""

_RETRIED = "claims are looked for again soon"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResharingTiming:
    """How long to wait for what. All in seconds."""

    settle: float = 2.0
    """From the withdrawal to the list: for schedulers to hear of it, and for what they allocated
    before to be stored; up to twice as long, so that nodes do not list in step."""

    withdrawal: float = 30.0
    """For slices to be rewritten."""

    glance: float = 0.2
    """Between looks whether they are."""

    poll: float = 5.0
    """Between questions after a claim that was found."""

    retry: float = 2.0
    """Between attempts; twice as long each time, at most the next."""

    retry_most: float = 60.0

    period: float = 60.0
    """Between looks when nothing rings."""

    request_timeout: float = 20.0
    """For one request to the API server."""


class Resharing(Worker):
    """A thread that makes changes of divisions. `clock` is monotonic, in seconds."""

    def __init__(  # noqa: PLR0913 (the API server, the slices, the claims and the GPUs meet here)
        self,
        *,
        api: KubeClient,
        slices: SlicePublisher,
        divisions: Divisions,
        inventory: InventorySource,
        pool: str,
        clock: Callable[[], float],
        random: Callable[[], float],
        timing: ResharingTiming = ResharingTiming(),
    ) -> None:
        super().__init__("resharing")
        self._api = api
        self._slices = slices
        self._divisions = divisions
        self._inventory = inventory
        self._pool = pool
        self._clock = clock
        self._random = random
        self._timing = timing
        self._backoff = Backoff(first=timing.retry, most=timing.retry_most, random=random)
        self._found: dict[Change, list[ClaimRef]] = {}
        self._tried: frozenset[Change] = frozenset()
        self._not_before = 0.0
        self._said = ""

    def released(self) -> None:
        """Have the thread look soon, as a claim has given something back, if it can matter."""
        if self._divisions.are_any():
            self.ring()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                pause = self.look()
            except DriverError as error:
                self._say("divisions not looked at", str(error))
                pause = self._timing.retry_most
            self._wait(pause)

    def look(self) -> float:
        """Make what changes can be made; return the seconds until it is worth another look."""
        if self._divisions.is_outdated():
            self._slices.publish_anew()
        changes = self._divisions.changes()
        self._found = {one: refs for one, refs in self._found.items() if one in changes}
        free = [one for one in changes if not self._divisions.is_held(one)]
        for one in free:
            self._found[one] = self._still_there(one)
        todo = frozenset(one for one in free if not self._found[one])
        left = self._not_before - self._clock() if todo <= self._tried else 0.0
        self._block(todo if left > 0 else ())
        if not todo:
            return self._timing.poll if free else self._timing.period
        if left > 0:
            return min(left, self._timing.poll)
        self._tried = todo
        self._attempt(todo)
        return self._timing.glance

    def _attempt(self, todo: frozenset[Change]) -> None:
        try:
            self._slices.publish_anew()
            self._wait_withdrawn(todo)
            if self._stop.wait(self._timing.settle * (1 + self._random())):
                return
            found = self._allocated(todo)
            if self._are_published(todo):
                raise TransientError("the slices of this node were written by somebody else")
        except DriverError as error:
            self._say("division not changed yet", str(error))
            self._wait_longer()
            self._block(todo)
            return
        self._said = ""
        self._found |= found
        still = self._divisions.changes()
        ready = [
            one
            for one in todo
            if one in still and not found[one] and not self._divisions.is_held(one)
        ]
        self._divisions.make(ready)
        self._block()
        self._slices.publish_anew()
        if ready:
            self._backoff.reset()
            log.info("devices divided again", devices=len(ready))
        claims = sorted({str(ref) for refs in found.values() for ref in refs})
        if claims:
            self._wait_longer()
            log.info("division waits for claims", count=len(claims), claims=claims[:_MOST_NAMED])

    def _wait_longer(self) -> None:
        self._not_before = self._clock() + self._backoff.delay()

    def _block(self, delayed: Iterable[Change] = ()) -> None:
        """Have the former divisions offered where claims were found, or the next attempt is due.

        Where there is no former one nothing is offered: who asks for a share is not to get a GPU.
        """
        before = self._divisions.blocked()
        blocked = {one: self._said or _RETRIED for one in delayed if one.former}
        for one, refs in self._found.items():
            if refs:
                named = ", ".join(map(str, refs[:_MOST_NAMED]))
                blocked[one] = f"{len(refs)} claims are allocated some of it, such as {named}"
        self._divisions.block(blocked)
        if blocked.keys() != before.keys():
            self._slices.publish_anew()

    def _wait_withdrawn(self, todo: Iterable[Change]) -> None:
        end = self._clock() + self._timing.withdrawal
        while self._are_published(todo):
            if self._clock() >= end or self._stop.wait(self._timing.glance):
                raise TransientError("the slices of this node have not been rewritten yet")

    def _are_published(self, todo: Iterable[Change]) -> bool:
        """Tell whether the scheduler could still allocate something of what is to change."""
        inventory = self._inventory.current()
        parts = (part_named(name, inventory) for name in self._slices.published())
        there = {part for part in parts if part}
        return any(one.concerns(part) for one in todo for part in there)

    def _allocated(self, todo: Iterable[Change]) -> dict[Change, list[ClaimRef]]:
        """Return the claims that have been allocated what is to change."""
        found: dict[Change, list[ClaimRef]] = {one: [] for one in todo}
        try:
            for claim in self._api.each_claim(timeout=self._timing.request_timeout):
                for one, refs in found.items():
                    if self._is_in_the_way(claim, one):
                        refs.append(ref_of(claim))
        except AccessError as error:
            reason = (
                f"{error}; without the right to list claims, which manifests/install.yaml grants, "
                "pods that start while a device is divided again may have to be deleted"
            )
            self._say("claims not looked for", reason)
            return {one: [] for one in found}
        return found

    def _still_there(self, change: Change) -> list[ClaimRef]:
        """Return the claims that were found, from the first on that still is in the way."""
        refs = self._found.get(change, [])
        for position, ref in enumerate(refs):
            try:
                claim = self._api.get_claim(
                    ref.namespace, ref.name, timeout=self._timing.request_timeout
                )
            except NotFoundError:
                continue
            except DriverError as error:
                log.debug("claim not asked for", claim=str(ref), reason=str(error))
                return refs[position:]
            if uid_of(claim) == ref.uid and self._is_in_the_way(claim, change):
                return refs[position:]
        return []

    def _is_in_the_way(self, claim: Mapping[str, Any], change: Change) -> bool:
        inventory = self._inventory.current()
        for name, has_share_id in _devices(claim, self._pool):
            is_share = has_share_id or isinstance(parse_device_name(name), ShareName)
            part = part_named(name, inventory)
            if part and change.is_held_by(part, is_share=is_share):
                return True
        return False

    def _say(self, event: str, reason: str) -> None:
        """Log a cause once."""
        if reason != self._said:
            log.warning(event, reason=reason)
        self._said = reason


def _devices(claim: Mapping[str, Any], pool: str) -> Iterator[tuple[str, bool]]:
    """Yield this node's devices in a claim, and if they are consumed; none of a malformed claim."""
    for result in objects(claim, "status", "allocation", "devices", "results"):
        if (result.get("driver"), result.get("pool")) == (DRIVER_NAME, pool):
            yield str(result.get("device")), result.get("shareID") is not None
