"""Calls into NVML with a time limit, so that a GPU that hangs does not stop the whole driver.

In: a call and its subject, which is a GPU or NVML as a whole. Out: the call's answer, or a
`SilenceError` if there is none in time. A thread that hangs in the kernel cannot be ended from
here, so it is left where it is. Calls about one subject take turns. While one hangs, all others
about that subject are refused at once, so there is never more than one lost thread for each GPU. If
the call returns after all, its answer is dropped and the next call is made again. A thread that has
answered waits for another call about any subject.
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
"""The limit for all questions to a GPU in one look; to initialise a GPU takes seconds."""

HURRIED_SECONDS = 2.0
"""The same while another subject is silent: if the GPU driver hangs, each GPU costs this time."""

IDLE_SECONDS = 60.0
"""How long a thread waits for its next call: longer than the time between two looks."""

OPEN_SECONDS = 60.0
"""The limit for NVML to be initialised or shut down."""

NVML = "nvml"
"""The subject of calls about no particular GPU; a GPU's subject is its index or its UUID."""

HEARING = "events"
"""The subject of waiting for events, which goes on beside all other calls until NVML is closed."""

log = structlog.get_logger()


class _Lane(Struct):
    """Calls about one subject. The caller takes the lock, and the thread that answers releases it.

    The call under way was made at `asked_at` and is given up on at `end`.
    """

    subject: str
    lock: threading.Lock = field(default_factory=threading.Lock)
    asked_at: float = 0.0
    end: float = 0.0
    silence: SilenceError | None = None


class NvmlCalls:
    """Makes calls on separate threads. Methods may be called from any thread."""

    def __init__(
        self, *, clock: Callable[[], float], answer_seconds: float = ANSWER_SECONDS
    ) -> None:
        """Take a clock of monotonic seconds, and for how many of them a GPU may take to answer."""
        self._clock = clock
        self.answer_seconds = answer_seconds
        self._lanes: dict[str, _Lane] = {}
        self._mutex = threading.Lock()
        self._idle: list[_Inbox] = []

    def about(self, subject: str, call: Callable[[], T], seconds: float | None = None) -> T:
        """Make a call about a subject; return what it returns, or raise what it raises.

        Raises SilenceError if there is no answer in time, or if an earlier call still has none.
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
        """Return for how many seconds each subject has been silent; 0 if it is not."""
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
        """Wait for the turn of a call that may take `seconds`.

        A call under way may have more time and is waited for: a GPU that is being divided is busy,
        not silent. Raises SilenceError if the call under way hangs.
        """
        end = self._clock() + seconds
        while lane.silence is None:
            if acquired(lane.lock, max(0.0, end - self._clock())):
                return
            if end >= lane.end:
                break
            end = lane.end
        # A new error each time: one that several threads raise would gather their tracebacks.
        raise SilenceError(str(lane.silence or _silence(lane.subject, seconds)))

    def _thread(self) -> _Inbox:
        """Return the inbox of an idle thread; start a thread if there is none."""
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
                with suppress(ValueError):  # if it has been taken meanwhile, a call is coming
                    self._idle.remove(inbox)
                    return

    def _call(self, lane: _Lane, call: Callable[[], T], answer: Future[T]) -> None:
        threading.current_thread().name = f"nvml-{lane.subject}"
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 (the caller gets any error)
            answer.set_exception(error)
        with self._mutex:
            was_silent, lane.silence = lane.silence is not None, None
            seconds = self._clock() - lane.asked_at
        lane.lock.release()
        if was_silent:
            log.info("nvml answers again", subject=lane.subject, seconds=round(seconds, 1))

    def _give_up(self, lane: _Lane, answer: Future[T], seconds: float) -> None:
        """Raise SilenceError, unless the answer has come in the meantime."""
        with self._mutex:
            if answer.done():
                return
            silence = lane.silence = _silence(lane.subject, seconds)
        log.error("nvml does not answer", subject=lane.subject, seconds=round(seconds, 1))
        raise silence


def _silence(subject: str, seconds: float) -> SilenceError:
    what = "the GPU driver" if subject in (NVML, HEARING) else f"GPU {subject.removeprefix('GPU-')}"
    since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")  # noqa: TID251 (shown to people)
    return SilenceError(
        f"{what} has not answered since {since} UTC (NVML was given {seconds:.0f} s); look for "
        "NVRM and Xid lines in dmesg: if it does not answer again by itself, the node has to be "
        "rebooted"
    )
