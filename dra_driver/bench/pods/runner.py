"""Runs cases as pods with claims, in a separate namespace that is removed afterwards.

The namespace is made when the runner is entered and deleted when it is left, in any way. Between
two cases the pods and the claim of the first are removed, so that no two share a GPU. Pods are told
when to begin by the clock of their own machine, which their lines contain, because the clocks of
runner and node may differ.
"""

import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Self

from msgspec.structs import replace

from dra_driver.admin.api.objects import NAMESPACES, SECRETS
from dra_driver.admin.api.reads import each
from dra_driver.bench import commands, lines
from dra_driver.bench.gathering import (
    CommandEnd,
    case_of,
    failed,
    tenant_of_command,
)
from dra_driver.bench.model import Card, Case, Tenant
from dra_driver.bench.pods import manifests
from dra_driver.bench.pods.case_pods import CasePods, pod_log
from dra_driver.bench.pods.offer import Offer, offered
from dra_driver.bench.pods.pod_status import (
    ended_seconds,
    termination_message,
    why_not_running,
)
from dra_driver.bench.stopping import Say, Stop
from dra_driver.bench.strategies import (
    UNDER_MPS,
    Part,
    Sharing,
    Strategy,
    beginnings,
    longest,
    profile_size,
)
from dra_driver.bench.workload import Workload, WorkloadKind
from dra_driver.errors import (
    ApiError,
    DeviceError,
    DriverError,
    InvalidError,
    NotFoundError,
    SetupError,
    StaleError,
    UnavailableError,
)
from dra_driver.kube.client import KubeClient
from dra_driver.kube.resource import EVENTS, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource

JsonObject = dict[str, Any]

_TIMEOUT = 15.0
_POLL_SECONDS = 0.5
_LEAD_SECONDS = 5.0
"""Seconds until pods begin: a kubelet shows a pod its new annotation at its next sync."""

_GONE_SECONDS = 120.0
_TAIL = {"container": manifests.TENANT, "tailLines": "5000", "limitBytes": str(4 << 20)}
_PROBE = Workload(kind=WorkloadKind.COMPUTE, seconds=0.5, warm_up=0.0, intensity=64)


class PodRunner:
    """Runs cases on a cluster. Enter it before use; for the main thread."""

    where: Final = "pods"

    def __init__(
        self,
        client: KubeClient,
        place: manifests.Place,
        say: Say,
        *,
        patience: float = 300.0,
        stop: Stop | None = None,
    ) -> None:
        """Take the cluster; `patience` is how many seconds pods may take to start, and end."""
        self._client = client
        self._place = place
        self._say = say
        self._patience = patience
        self._stop = stop or Stop()
        self._run_id = secrets.token_hex(4)
        self.namespace = f"dra-bench-{self._run_id}"
        self.offer = Offer()
        self.card: Card | None = None

    def __enter__(self) -> Self:
        """Find out what the cluster offers, and make the namespace."""
        slices = each(self._client, RESOURCE_SLICES, timeout=_TIMEOUT)
        self.offer = offered(slices, self._place.node)
        if not self.offer.gpus and not self.offer.profiles and not self.offer.shares:
            where = f" on node {self._place.node}" if self._place.node else ""
            raise SetupError(f"no GPU is published{where}: run `dra-driver doctor`")
        self._name_leftovers()
        self._stop.check()
        secret = self._found_pull_secret()
        body = manifests.namespace(self.namespace, self._run_id)
        try:
            self._client.create(NAMESPACES, body, timeout=_TIMEOUT)
        except UnavailableError:  # it may have been created nevertheless
            self.__exit__()
            raise
        if secret is not None:
            try:
                self._make(SECRETS, manifests.pull_secret(secret))
            except DriverError:
                self.__exit__()
                raise
        return self

    def _found_pull_secret(self) -> JsonObject | None:
        """Return the Secret for pulling images, if one is named. Raises SetupError without it."""
        if not self._place.pull_secret:
            return None
        namespace, _, name = self._place.pull_secret.partition("/")
        try:
            return self._client.get(SECRETS, name, namespace=namespace, timeout=_TIMEOUT)
        except NotFoundError as error:
            raise SetupError(
                f"there is no Secret {name} in namespace {namespace}: name the one that pulls"
                " your image by --pull-secret NAMESPACE/NAME"
            ) from error

    def __exit__(self, *_: object) -> None:
        """Delete the namespace with all that is in it, and wait until it is gone."""
        try:
            self._delete(NAMESPACES, self.namespace, namespace=None)
            gone = _undisturbed(lambda: self._is_gone(NAMESPACES, self.namespace), _GONE_SECONDS)
        except DriverError as error:
            self._say(f"{error}; delete it by hand: kubectl delete namespace {self.namespace}")
            return
        if not gone:
            self._say(
                f"namespace {self.namespace} still exists after {_GONE_SECONDS:g} s; look at it:"
                f" kubectl get namespace {self.namespace} -o yaml"
            )

    def probe(self) -> Card:
        """Run a pod with a GPU, or a part of one, briefly; return what it reports as its card."""
        strategy = self._probing()
        if reason := self.obstacle(strategy):
            raise SetupError(reason)
        case = self.run(strategy, 1)
        if self.card is None:
            reason = case.reason or (
                "NVML does not answer in its container; run `dra-driver doctor` on the node"
            )
            raise SetupError(f"the first pod, {strategy.name}, did not work: {reason}")
        return self.card

    def _probing(self) -> Strategy:
        sharing, profile = Sharing.SHARES, ""
        if self.offer.gpus:
            sharing = Sharing.ALONE
        elif self.offer.profiles:
            sharing, profile = Sharing.MIG, min(self.offer.profiles, key=profile_size)
        parts = (Part(role="", work=_PROBE),)
        return Strategy(sharing=sharing, name=sharing, profile=profile, parts=parts)

    def obstacle(self, strategy: Strategy) -> str:
        """Return why the cluster does not allow a strategy; empty if it does."""
        if strategy.sharing is Sharing.SHARES:
            return self._share_obstacle(strategy.tenants)
        if strategy.sharing is Sharing.MIG:
            return self.offer.lack(strategy)
        if strategy.gpus > max(self.offer.gpus, 1):
            return f"{self.offer.gpus} whole GPUs are published, but {strategy.gpus} are needed"
        return "" if self.offer.gpus else "no whole GPU is published"

    def _share_obstacle(self, tenants: int) -> str:
        name = self._place.shares
        if not name:
            return "name the resource that pods ask for: --shares nvidia.com/gpu"
        replicas = self.offer.shares.get(name, 0)
        if not replicas:
            return f"no GPU is divided into shares of {name}; see docs/shares.md"
        if tenants > replicas:
            return f"a GPU is divided into {replicas} shares of {name}"
        return ""

    def run(self, strategy: Strategy, seed: int) -> Case:
        """Run a case; its pods and its claim are removed afterwards, whatever happens."""
        try:
            try:
                return self._run(strategy, seed)
            finally:
                if not self._stop.is_asked:  # else all goes with the namespace
                    self._clear()
        except DriverError as error:
            return failed(strategy, str(error))

    def _run(self, strategy: Strategy, seed: int) -> Case:
        if claim := manifests.claim(strategy):
            self._make(RESOURCE_CLAIMS, claim)
        seats = strategy.seats(seed)
        pods = CasePods(self._client, self.namespace, [each.is_command for each in seats])
        launches = sorted({seat.launch for seat in seats})
        # The first pods wait to begin until the last are ready.
        patience = self._place.patience + (len(launches) - 1) * self._patience
        place = replace(self._place, patience=patience)
        for launch in launches:
            for number, seat in enumerate(seats):
                if seat.launch == launch:
                    pods.launched[number] = time.monotonic()
                    self._make(PODS, manifests.pod(strategy, seats, number, place))
            self._await_ready(pods)
        self._check_sharing(strategy, pods)
        moment, after = pods.now() + _LEAD_SECONDS, beginnings(seats)
        for number in pods.able():
            name = manifests.pod_name(number)
            body = manifests.beginning(moment + after[number])
            self._client.merge(PODS, name, body, namespace=self.namespace, timeout=_TIMEOUT)
        seen = (
            f"{len(pods.able())} of {strategy.tenants} pods running",
            *self._claims_said(_LEAD_SECONDS),
        )
        self._wait(lambda: pods.look().are_over(), _LEAD_SECONDS + longest(seats))
        commands_ended = {
            number: self._ended(number, pods.pod(number), each.work)
            for number, each in enumerate(seats)
            if each.is_command
        }
        if len(commands_ended) < len(seats):  # bench's own tenants may be a little late
            self._wait(lambda: pods.look().are_over(commands_ended), self._patience)
        gathered = [commands_ended.get(number) or pod for number, pod in enumerate(pods.heard)]
        return case_of(strategy, gathered, seen=seen, is_simulated=self._is_simulated)

    @property
    def _is_simulated(self) -> bool:
        return self.card is not None and self.card.is_simulated

    def _await_ready(self, pods: CasePods) -> None:
        if not self._wait(lambda: pods.look().are_settled, self._patience):
            for number in sorted(pods.launched):
                pod = pods.heard[number]
                if pod.ready is None and pod.failed is None:
                    reason = self._why(number)
                    raise DeviceError(
                        f"after {self._patience:g} s pod {manifests.pod_name(number)} is not ready:"
                        f" {reason}"
                    )
        cards = [heard.ready.card for heard in pods.heard if heard.ready and heard.ready.card]
        for card in cards:
            self.card = self.card or card
            if card.name != self.card.name:
                raise DeviceError(
                    f"the pods ran on {card.name}, but the first one of this run on "
                    f"{self.card.name}: their results cannot be compared; name one node with --node"
                )

    def _check_sharing(self, strategy: Strategy, pods: CasePods) -> None:
        """Raise DeviceError if the tenants do not share their device as the strategy requires."""
        is_mps = strategy.sharing in UNDER_MPS
        for number in pods.able():
            ready = pods.heard[number].ready
            if ready and strategy.sharing is not Sharing.SHARES and bool(ready.mps) != is_mps:
                raise DeviceError(
                    f"pod {manifests.pod_name(number)} must {'' if is_mps else 'not '}be a client"
                    f" of MPS, but has {ready.mps or 'no pipe folder of MPS'}: does the claim's"
                    " config belong to another driver?"
                )
        cards = {pod.ready.card.uuid for pod in pods.heard if pod.ready and pod.ready.card}
        if len(cards) > 1 and strategy.sharing is not Sharing.WHOLE_GPUS:
            raise DeviceError(
                f"the tenants are on {len(cards)} GPUs, so they share none: shares are spread over"
                " a node's GPUs; let it fill one first (sharedDevicesAllocationPolicy: packed in"
                " the share config), or name a node with one GPU (--node)"
            )

    def _claims_said(self, seconds: float) -> tuple[str, ...]:
        """Return which devices the claims of a case have, and how the driver reports their sharing.

        The scheduler creates a claim for a pod with a share. The driver reports it shortly after
        the pod's start; this waits at most `seconds` for that.
        """
        claims: list[JsonObject] = []

        def is_said() -> bool:
            claims[:] = _items(
                self._client.list(RESOURCE_CLAIMS, namespace=self.namespace, timeout=_TIMEOUT)
            )
            return all(map(manifests.sharing_said, claims))

        self._wait(is_said, seconds)
        devices = sorted(filter(None, map(manifests.allocated, claims)))
        sharing = [text for claim in claims for text in manifests.sharing_said(claim)]
        return (*filter(None, [", ".join(devices)]), *dict.fromkeys(sharing))

    def _ended(self, number: int, pod: JsonObject, work: Workload) -> Tenant:
        """Return the result of a command: from its log, or else from the API."""
        tenant = ended_seconds(number, pod)
        text = ""
        with suppress(NotFoundError, UnavailableError, InvalidError):
            name = manifests.pod_name(number)
            text = pod_log(self._client, self.namespace, name, _TAIL)
        if tenant.result is None:
            words = [line for line in text.splitlines() if line.strip() and not lines.heard(line)]
            return tenant.model_copy(
                update={"failure": ": ".join(filter(None, (tenant.failure, *words[-1:])))}
            )
        said = [lines.heard(line) for line in text.splitlines()]
        end = CommandEnd(
            status=0,
            text=termination_message(pod) if commands.writes_file(work) else text,
            ended=next((word for word in said if isinstance(word, lines.Ended)), None),
            seconds=tenant.result.seconds,
        )
        return tenant_of_command(number, work, end)

    def _why(self, number: int) -> str:
        """Return why a pod does not run, from its status and events."""
        name = manifests.pod_name(number)
        try:
            pod = self._client.get(PODS, name, namespace=self.namespace, timeout=_TIMEOUT)
            events = self._client.list(
                EVENTS,
                namespace=self.namespace,
                query={"fieldSelector": f"regarding.name={name},type=Warning"},
                timeout=_TIMEOUT,
            )
        except ApiError as error:
            return str(error)
        return why_not_running(pod, events)

    def _wait(self, is_so: Callable[[], bool], seconds: float) -> bool:
        return self._stop.wait(is_so, seconds, _POLL_SECONDS)

    def _make(self, resource: Resource, body: JsonObject) -> None:
        self._client.create(resource, body, namespace=self.namespace, timeout=_TIMEOUT)

    def _clear(self) -> None:
        """Delete the pods and the claim of a case, and wait until they are gone."""
        for resource in (PODS, RESOURCE_CLAIMS):
            for name in self._names(resource):
                self._delete(resource, name, namespace=self.namespace)
        if not _undisturbed(
            lambda: not self._names(PODS) + self._names(RESOURCE_CLAIMS), _GONE_SECONDS
        ):
            left = ", ".join(self._names(PODS) + self._names(RESOURCE_CLAIMS))
            raise UnavailableError(
                f"in namespace {self.namespace} {left} still exists after {_GONE_SECONDS:g} s:"
                " see the driver's log on the node"
            )

    def _names(self, resource: Resource) -> list[str]:
        listed = self._client.list(resource, namespace=self.namespace, timeout=_TIMEOUT)
        return [str(item["metadata"]["name"]) for item in _items(listed)]

    def _delete(self, resource: Resource, name: str, *, namespace: str | None) -> None:
        with suppress(NotFoundError, StaleError):
            self._client.delete(resource, name, namespace=namespace, timeout=_TIMEOUT)

    def _is_gone(self, resource: Resource, name: str) -> bool:
        try:
            self._client.get(resource, name, timeout=_TIMEOUT)
        except NotFoundError:
            return True
        return False

    def _name_leftovers(self) -> None:
        query = {"labelSelector": manifests.LABEL}
        namespaces = each(self._client, NAMESPACES, query=query, timeout=_TIMEOUT)
        names = [str(namespace["metadata"]["name"]) for namespace in namespaces]  # type: ignore[index]  # all objects have it
        for name in names:
            self._say(
                f"an earlier run left namespace {name}, or still runs: kubectl delete namespace"
                f" {name}"
            )
        if len(names) > 1:
            self._say(f"all of them: kubectl delete namespace -l {manifests.LABEL}")


def _items(listed: Mapping[str, Any]) -> list[JsonObject]:
    return list(listed.get("items") or [])


def _undisturbed(is_so: Callable[[], bool], seconds: float) -> bool:
    """Wait during clean-up: no signal ends this."""
    return Stop().wait(is_so, seconds, _POLL_SECONDS)
