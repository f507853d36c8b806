"""Calls into NVML that can be given up on: a GPU that hangs is one GPU, and not the driver.

In: a call, and what it is about: a GPU, or NVML as a whole. Out: its answer, or a `SilenceError`
when there is none in time. A thread in a call that hangs in the kernel cannot be ended from here,
so it is left where it is. Calls about one thing take turns, and while one hangs all others about
the same are refused at once: there is never more than one lost thread for each GPU. When the call
returns after all, its answer is dropped, and the next one is asked again. Threads that have
answered wait for other calls, about anything: one that hangs is just not among them.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import TypeAlias, TypeVar

import structlog
from msgspec import Struct, field

from dra_driver.errors import SilenceError
from dra_driver.host.turns import acquired, waiting

T = TypeVar("T")
_Inbox: TypeAlias = SimpleQueue[Callable[[], object]]

ANSWER_SECONDS = 10.0
"""For all that is asked of a GPU in one look; one that is not initialised yet takes seconds."""

HURRIED_SECONDS = 2.0
"""The same while something else is silent already: a hung driver should not take it from each."""

IDLE_SECONDS = 60.0
"""For a thread to wait for its next call: longer than from one look at the GPUs to the next."""

OPEN_SECONDS = 60.0
"""For NVML to be initialised, or shut down."""

NVML = "nvml"
"""The subject of calls that are about no GPU; those about one have its index, or its UUID."""

HEARING = "events"
"""The subject of waiting for events, which goes on beside all other calls until NVML is closed."""

log = structlog.get_logger()


class _Lane(Struct):
    """Calls about one thing. The lock is taken by who asks, and let go by who answered.

    The call under way was made at `asked_at` and is given up on at `end`.
    """

    subject: str
    lock: threading.Lock = field(default_factory=threading.Lock)
    asked_at: float = 0.0
    end: float = 0.0
    silence: SilenceError | None = None


class NvmlCalls:
    """Makes calls on threads of their own. For any thread."""

    def __init__(
        self, *, clock: Callable[[], float], answer_seconds: float = ANSWER_SECONDS
    ) -> None:
        """Take the clock, which counts monotonic seconds, and how long a GPU has for an answer."""
        self._clock = clock
        self.answer_seconds = answer_seconds
        self._lanes: dict[str, _Lane] = {}
        self._mutex = threading.Lock()
        self._idle: list[_Inbox] = []

    def about(self, subject: str, call: Callable[[], T], seconds: float | None = None) -> T:
        """Return what a call returns, or raise what it raises.

        Raises SilenceError if there is no answer in time, or an earlier call has none yet.
        """
        if seconds is None:
            hurry = self.silent and self.answer_seconds > HURRIED_SECONDS
            seconds = HURRIED_SECONDS if hurry else self.answer_seconds
        with self._mutex:
            lane = self._lanes.setdefault(subject, _Lane(subject))
        self._enter(lane, seconds)
        lane.asked_at = self._clock()
        lane.end = end = lane.asked_at + seconds
        answer: Future[T] = Future()
        self._thread().put(lambda: self._call(lane, call, answer))
        try:
            with waiting():
                return answer.result(max(0.0, end - self._clock()))
        except TimeoutError:
            self._give_up(lane, answer, seconds)
            return answer.result(0)

    @property
    def silent(self) -> bool:
        """Whether some call has been given up on and has not returned."""
        with self._mutex:
            return any(lane.silence for lane in self._lanes.values())

    def silences(self) -> Mapping[str, float]:
        """Return how many seconds all that was ever asked has been silent; 0 if it is not."""
        now = self._clock()
        with self._mutex:
            return {
                subject: max(now - lane.asked_at, 0.001) if lane.silence else 0.0
                for subject, lane in self._lanes.items()
            }

    @contextmanager
    def none_under_way(self, seconds: float) -> Iterator[bool]:
        """Keep others from calling about GPUs; yields False if a call does not end in time."""
        end = self._clock() + seconds
        with self._mutex:
            lanes = [lane for lane in self._lanes.values() if lane.subject != NVML]
        held: list[_Lane] = []
        try:
            for lane in lanes:
                left = 0.0 if lane.silence else max(0.0, end - self._clock())
                if not lane.lock.acquire(timeout=left):
                    yield False
                    return
                held.append(lane)
            yield True
        finally:
            for lane in held:
                lane.lock.release()

    def _enter(self, lane: _Lane, seconds: float) -> None:
        """Wait for the turn of a call that has so many seconds.

        What is under way may have more of them, and is waited for: a GPU that is being divided is
        busy, and not silent. Raises SilenceError if what is under way hangs.
        """
        end = self._clock() + seconds
        while lane.silence is None:
            if acquired(lane.lock, max(0.0, end - self._clock())):
                return
            if end >= lane.end:
                break
            end = lane.end
        # Another one each time: raised by several threads, it would gather their tracebacks.
        raise SilenceError(str(lane.silence or _silence(lane.subject, seconds)))

    def _thread(self) -> _Inbox:
        """Return where a thread that does nothing else takes its next call from."""
        try:
            return self._idle.pop()
        except IndexError:
            inbox: _Inbox = SimpleQueue()
            threading.Thread(target=self._work, args=(inbox,), daemon=True).start()
            return inbox

    def _work(self, inbox: _Inbox) -> None:
        while True:
            threading.current_thread().name = "nvml"
            try:
                inbox.get(timeout=IDLE_SECONDS)()
                self._idle.append(inbox)
            except Empty:
                with suppress(ValueError):  # else somebody took it just now, and a call is coming
                    self._idle.remove(inbox)
                    return

    def _call(self, lane: _Lane, call: Callable[[], T], answer: Future[T]) -> None:
        threading.current_thread().name = f"nvml-{lane.subject}"
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 (whatever it is, it is for who asked)
            answer.set_exception(error)
        with self._mutex:
            was_silent, lane.silence = lane.silence is not None, None
            seconds = self._clock() - lane.asked_at
        lane.lock.release()
        if was_silent:
            log.info("nvml answers again", subject=lane.subject, seconds=round(seconds, 1))

    def _give_up(self, lane: _Lane, answer: Future[T], seconds: float) -> None:
        """Raise SilenceError, unless the answer has come just now."""
        with self._mutex:
            if answer.done():
                return
            silence = lane.silence = _silence(lane.subject, seconds)
        log.error("nvml does not answer", subject=lane.subject, seconds=round(seconds, 1))
        raise silence


def _silence(subject: str, seconds: float) -> SilenceError:
    what = "the GPU driver" if subject in (NVML, HEARING) else f"GPU {subject.removeprefix('GPU-')}"
    since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")  # noqa: TID251 (told)
    return SilenceError(
        f"{what} has not answered since {since} UTC (NVML was given {seconds:.0f} s); look for "
        "NVRM and Xid lines in dmesg: if it does not answer again by itself, the node has to be "
        "rebooted"
    )
