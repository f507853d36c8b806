"""The DRA service: the kubelet's two calls, answered claim by claim.

In: NodePrepareResources and NodeUnprepareResources. Out: exactly one answer for each claim UID of
the call, because otherwise the kubelet fails the whole call. A claim's failure, even by a bug, is
only that claim's text and never a gRPC error. Claims of one call are handled in parallel, so that
one that waits does not use up the time of the others. The kubelet waits 45 s and comes back only 60
to 90 s after a failure, so the work gets nearly all of that time. Each of the two calls has its own
threads: prepares that wait for a GPU must not block the unprepare that frees it.
(k8s.io/kubernetes pkg/kubelet/cm/dra/manager.go.)
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent import futures
from contextvars import copy_context
from functools import partial
from types import SimpleNamespace
from typing import ParamSpec, TypeVar

import grpc
import structlog
from msgspec import Struct

from dra_driver.claims.model.claim import ClaimRef, ClaimUid
from dra_driver.claims.model.record import DeviceRecord
from dra_driver.claims.prepare.preparer import ClaimPreparer
from dra_driver.errors import DriverError
from dra_driver.host.turns import IN_TURN
from dra_driver.host.worker import Listeners
from dra_driver.kubelet.protos import dra_v1_pb2 as v1
from dra_driver.kubelet.protos import dra_v1_pb2_grpc as v1_rpc
from dra_driver.ops.metrics import Metrics, Operation
from resource_nvidia_com.printable import printable

KUBELET_SECONDS = 45.0
"""How long the kubelet waits for an answer; a longer deadline of a caller is cut to this."""

PARALLEL_CLAIMS = 8
"""Claims of one call that are handled at once; a pod rarely has more."""

CALM_SECONDS = 0.25
"""The pause after a call before other work continues: the kubelet's calls come in bursts."""

ANSWER_SECONDS = 2.0
"""The part of the caller's time that is reserved for the answer if a claim misses its deadline."""

TOO_LATE = "the kubelet stopped waiting before this claim's turn came; it asks again"

FAILED = {Operation.PREPARE: "claim not prepared", Operation.UNPREPARE: "claim not unprepared"}

_P = ParamSpec("_P")
_R = TypeVar("_R")

log = structlog.get_logger()


class Answer(Struct, frozen=True, kw_only=True):
    """The outcome for one claim: devices, or an error text for the pod's event."""

    devices: tuple[DeviceRecord, ...] = ()
    error: str = ""


class ClaimCalls:
    """Both calls. Deadlines are values of `clock`.

    Listeners, told about a claim before the kubelet has its answer:
        prepared: it is prepared, for the first time or again.
        unprepared: it was unprepared.
    """

    def __init__(
        self, claims: ClaimPreparer, metrics: Metrics, *, clock: Callable[[], float]
    ) -> None:
        self._claims = claims
        self._metrics = metrics
        self._clock = clock
        self.prepared: Listeners[[ClaimRef]] = Listeners()
        self.unprepared: Listeners[[ClaimRef]] = Listeners()
        self._lock = threading.Lock()
        self._running: list[str] = []
        self._calm_at = 0.0
        self._work = {Operation.PREPARE: self._prepare, Operation.UNPREPARE: self._unprepare}

    def running(self) -> tuple[str, ...]:
        """Return the claims in progress, for the log when the driver has to leave them."""
        with self._lock:
            return tuple(self._running)

    def busy(self) -> float:
        """Return for how many seconds at least other work should not disturb calls."""
        return CALM_SECONDS if self._running else max(0.0, self._calm_at - self._clock())

    def prepare(self, refs: Iterable[ClaimRef], seconds: float | None) -> Mapping[ClaimUid, Answer]:
        """Prepare each claim once. `seconds` is how long the caller waits; None means no limit."""
        return self._answer(refs, seconds, Operation.PREPARE)

    def unprepare(
        self, refs: Iterable[ClaimRef], seconds: float | None
    ) -> Mapping[ClaimUid, Answer]:
        """Unprepare each claim once."""
        return self._answer(refs, seconds, Operation.UNPREPARE)

    def _prepare(self, ref: ClaimRef, deadline: float) -> tuple[DeviceRecord, ...]:
        devices = self._claims.prepare(ref, deadline=deadline)
        self.prepared(ref)
        return devices

    def _unprepare(self, ref: ClaimRef, deadline: float) -> tuple[DeviceRecord, ...]:
        self._claims.unprepare(ref, deadline=deadline)
        self.unprepared(ref)
        return ()

    def _answer(
        self, refs: Iterable[ClaimRef], seconds: float | None, operation: Operation
    ) -> Mapping[ClaimUid, Answer]:
        # A claim that is named twice is worked on once; the answer is a map by UID anyway.
        claims = {ref.uid: ref for ref in refs}
        if seconds is not None and seconds <= 0:
            # The caller gave up while its call stood in line. Work begun now could outlive the
            # unprepare that may follow, so nothing is begun.
            log.warning(
                "call skipped", operation=operation, claims=[str(ref) for ref in claims.values()]
            )
            return {uid: Answer(error=TOO_LATE) for uid in claims}
        limit = KUBELET_SECONDS if seconds is None else min(KUBELET_SECONDS, seconds)
        deadline = self._clock() + limit

        def answer(ref: ClaimRef) -> Answer:
            # Whatever the work binds, such as the claim's pods, is on this claim's lines alone.
            return copy_context().run(self._answer_one, ref, deadline, operation)

        if len(claims) <= 1:
            return {uid: answer(ref) for uid, ref in claims.items()}
        pool = futures.ThreadPoolExecutor(
            min(len(claims), PARALLEL_CLAIMS), thread_name_prefix=f"{operation}-claim"
        )
        pending = {uid: pool.submit(answer, ref) for uid, ref in claims.items()}
        futures.wait(pending.values(), timeout=limit - min(ANSWER_SECONDS, limit / 10))
        # A claim that is not done goes on alone: work that was begun must end in a consistent
        # state.
        pool.shutdown(wait=False, cancel_futures=True)
        late = Answer(
            error=f"the claim was not {operation}d within {limit:.0f} s; the driver finishes what "
            f"it began, and the kubelet asks again"
        )
        return {
            uid: future.result() if future.done() and not future.cancelled() else late
            for uid, future in pending.items()
        }

    def _answer_one(self, ref: ClaimRef, deadline: float, operation: Operation) -> Answer:
        structlog.contextvars.bind_contextvars(claim=str(ref), claim_uid=ref.uid)
        with self._lock:
            self._running.append(str(ref))
        try:
            with self._metrics.request(operation), IN_TURN:
                return self._attempt(ref, deadline, operation)
        finally:
            with self._lock:
                self._running.remove(str(ref))
            self._calm_at = self._clock() + CALM_SECONDS

    def _attempt(self, ref: ClaimRef, deadline: float, operation: Operation) -> Answer:
        start = self._clock()
        try:
            devices = self._work[operation](ref, deadline)
        except DriverError as error:
            kind = type(error).__name__
            seconds = self._since(start)
            log.warning(FAILED[operation], error=str(error), kind=kind, seconds=seconds)
            text = str(error) or kind
        except Exception as error:
            # A bug, but of one claim only: the kubelet must hear of the others all the same.
            log.exception(FAILED[operation], seconds=self._since(start))
            text = (
                f"internal error: {type(error).__name__}: {error}; this is a bug in the driver, "
                "and its log has the traceback"
            )
        else:
            self._metrics.request_succeeded(operation, self._clock() - start)
            # Changes were told where they were made; a repeated call changes nothing.
            log.debug("claim answered", operation=operation, seconds=self._since(start))
            return Answer(devices=devices)
        self._metrics.request_failed(operation)
        return Answer(error=printable(text))

    def _since(self, start: float) -> float:
        return round(self._clock() - start, 4)


class DraPlugin:
    """The service, and the threads of each of its two calls.

    Kubelets since 1.34 speak k8s.io.kubelet.pkg.apis.dra.v1. A call for which no thread is free
    waits.
    """

    def __init__(self, calls: ClaimCalls, workers: int) -> None:
        self._calls = calls
        self._preparing = futures.ThreadPoolExecutor(workers, thread_name_prefix="prepare-call")
        self._unpreparing = futures.ThreadPoolExecutor(workers, thread_name_prefix="unprepare-call")

    def attach(self, server: grpc.Server) -> None:
        """Add the service to a server that has not started."""
        methods = SimpleNamespace(
            NodePrepareResources=on_threads(self._preparing, self._prepare),
            NodeUnprepareResources=on_threads(self._unpreparing, self._unprepare),
        )
        v1_rpc.add_DRAPluginServicer_to_server(methods, server)  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Let the threads end when they have nothing more to do."""
        self._preparing.shutdown(wait=False)
        self._unpreparing.shutdown(wait=False)

    def _prepare(
        self, request: v1.NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> v1.NodePrepareResourcesResponse:
        answers = self._calls.prepare(_refs(request.claims), _seconds(context))
        response = v1.NodePrepareResourcesResponse()
        for uid, outcome in answers.items():
            entry = response.claims[uid]
            entry.error = outcome.error
            for device in outcome.devices:
                entry.devices.add(
                    request_names=device.request_names,
                    pool_name=device.pool,
                    device_name=device.name,
                    cdi_device_ids=device.cdi_device_ids,
                    share_id=device.share_id,
                )
        return response

    def _unprepare(
        self, request: v1.NodeUnprepareResourcesRequest, context: grpc.ServicerContext
    ) -> v1.NodeUnprepareResourcesResponse:
        answers = self._calls.unprepare(_refs(request.claims), _seconds(context))
        response = v1.NodeUnprepareResourcesResponse()
        for uid, outcome in answers.items():
            response.claims[uid].error = outcome.error
        return response


def on_threads(threads: futures.ThreadPoolExecutor, method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Have gRPC call a method on these threads (_server.py, _select_thread_pool_for_behavior)."""
    call = partial(method)
    call.experimental_thread_pool = threads  # type: ignore[attr-defined]
    return call


def _refs(claims: Iterable[v1.Claim]) -> tuple[ClaimRef, ...]:
    return tuple(
        ClaimRef(uid=ClaimUid(claim.uid), namespace=claim.namespace, name=claim.name)
        for claim in claims
    )


def _seconds(context: grpc.ServicerContext) -> float | None:
    """Return how long the caller will still wait; a caller that is gone does not."""
    return context.time_remaining() if context.is_active() else 0.0
