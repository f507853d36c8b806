"""The moments of a driver's calls: between two of them it makes one change.

The driver's store and what carries out steps are wrapped, and a test is told which moment it is. It
may end the process there, or fill a disk.

    prepare    intended, mode on, made, applied, recorded, described, specified
    unprepare  released, undone, unspecified, forgotten
    take-over  recorded, for each claim; struck or put aside

A supervisor's, for a domain:

    up      begun, cleared, folders made, mounted, modes recorded, modes set, launched, recorded,
            served, reported
    down    stopping, quit, unmounting, unmounted, removed
    death   given up, death recorded
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dra_driver.admin.takeover.take_over import TakeOver
from dra_driver.claims.model.record import ClaimStep, MigStep, RecordState, TurnMigModeOn
from dra_driver.claims.prepare.node_claims import NodeClaims
from dra_driver.mps.daemon import mounts
from dra_driver.mps.daemon.control import Control
from dra_driver.mps.domain import State
from dra_driver.mps.supervisor.compute_modes import ComputeModes
from dra_driver.mps.supervisor.domain_worker import DomainWorker
from dra_driver.mps.supervisor.lifecycle import Lifecycle

Step = Callable[[str], None]


class KilledError(BaseException):
    """Stands for kill -9: nothing in the driver catches it."""


def _around(
    owner: Any,
    method: str,
    *,
    before: Callable[..., object] = lambda *_: None,
    after: Callable[..., object] = lambda *_: None,
) -> Any:
    """Have two functions called with a method's arguments, before and after it; return it."""
    real = getattr(owner, method)

    def called(*words: Any, **options: Any) -> Any:
        before(*words)
        answer = real(*words, **options)
        after(*words)
        return answer

    setattr(owner, method, called)
    return real


def tell(claims: NodeClaims, step: Step) -> None:
    """Tell `step` of the moments of calls for claims."""
    written = {
        RecordState.PREPARING: "intended",
        RecordState.PREPARED: "recorded",
        RecordState.RELEASED: "forgotten",
    }

    def done(steps: Sequence[ClaimStep], _: object) -> None:
        if steps:
            step("made" if isinstance(steps[0], MigStep) else "applied")

    def changed(it: ClaimStep) -> None:
        if isinstance(it, TurnMigModeOn):
            step("mode on")

    _around(claims.ledger, "write", after=lambda it: step(written[it.state]))
    _around(claims.ledger, "release", after=lambda _: step("released"))
    _around(claims.ledger, "delete", after=lambda _: step("forgotten"))
    _around(claims.mig, "do", after=changed)
    _around(claims.steps, "do", after=done)
    _around(
        claims.specs,
        "delete",
        before=lambda _: step("undone"),
        after=lambda _: step("unspecified"),
    )
    _around(
        claims.specs.files,
        "write",
        before=lambda *_: step("described"),
        after=lambda *_: step("specified"),
    )


def tell_of_take_over(take_over: TakeOver, step: Step) -> None:
    """Tell `step` when NVIDIA's checkpoint has been changed or put aside."""
    _around(take_over, "_strike", after=lambda *_: step("struck"))
    _around(take_over, "_put_aside", after=lambda: step("put aside"))


@contextmanager
def of_supervisors(step: Step) -> Iterator[None]:
    """Tell `step` of the moments of every supervisor of this process."""
    begins = {State.STARTING: "begun", State.STOPPING: "stopping"}

    def told(name: str) -> Callable[..., object]:
        return lambda *_: step(name) if name else None

    moments: tuple[tuple[Any, str, str, str], ...] = (
        (DomainWorker, "_report_ready", "served", "reported"),
        (Lifecycle, "_make_folders", "cleared", "folders made"),
        (Lifecycle, "_mount_folders", "", "mounted"),
        (ComputeModes, "set_exclusive", "modes recorded", ""),
        (Lifecycle, "_set_modes", "", "modes set"),
        (Control, "start", "", "launched"),
        (Lifecycle, "_start", "", "recorded"),
        (Lifecycle, "_quit", "", "quit"),
        (mounts, "unmount_all", "unmounting", ""),
        (Lifecycle, "_remove_folders", "unmounted", "removed"),
        (Lifecycle, "_record_death", "given up", "death recorded"),
    )
    said = _around(
        DomainWorker, "_report", after=lambda _, state, *__: told(begins.get(state, ""))()
    )
    real = [
        (owner, method, _around(owner, method, before=told(before), after=told(after)))
        for owner, method, before, after in moments
    ]
    try:
        yield
    finally:
        for owner, method, function in (*real, (DomainWorker, "_report", said)):
            setattr(owner, method, function)
