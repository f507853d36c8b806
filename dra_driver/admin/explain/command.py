"""`dra-driver explain KIND/NAME`: why a pod or claim does not fit, and what to change.

In: settings, and the API server. Out: on stdout an explanation for people or JSON for programs. It
reads eight kinds of objects and writes nothing. Claims are read last, so that nothing allocated
meanwhile counts as free.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from dra_driver.admin.api.nodes import Node, obstacles
from dra_driver.admin.api.objects import CLAIM_TEMPLATES, DEVICE_CLASSES, full_name
from dra_driver.admin.api.reads import Reads, read, read_all, taint_rules
from dra_driver.admin.api.refusals import PodName, over_limit, refusals, was_looked_at, why_no_claim
from dra_driver.admin.api.slices import TaintRule, readable_slices
from dra_driver.admin.connect import CONTEXT, KUBECONFIG, connect
from dra_driver.admin.explain.allocated import AllocatedState
from dra_driver.admin.explain.answers import Cluster, NodeAnswer, answer_on
from dra_driver.admin.explain.demand import (
    Demand,
    of_claim,
    of_pod,
    selectors_by_class,
    with_problems,
)
from dra_driver.admin.explain.pod_state import scheduler_of, unseen
from dra_driver.admin.explain.pools import Pools
from dra_driver.admin.explain.search import SelectorCache
from dra_driver.admin.explain.summary import findings
from dra_driver.admin.explain.view import Explanation, as_json, as_text
from dra_driver.admin.output import WIDE_OUTPUT, WideOutput, for_programs, is_for_programs
from dra_driver.commands.command_line import CommandSettings, argument, option
from dra_driver.errors import DriverError, NotFoundError, SetupError
from dra_driver.kube.fields import Object, mapping, text
from dra_driver.kube.resource import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES

_SHARE_REQUESTS = "-share-requests"
"""The end of the name of the admission policy for requests for shares."""

_NOT_SERVED = 404
_NOT_LEARNT = 2
_REFUSED = 3
_KINDS: Final = MappingProxyType(
    dict.fromkeys(("pod", "pods", "po"), "pod")
    | dict.fromkeys(("claim", "claims", "resourceclaim", "resourceclaims"), "claim")
)
"""The kinds' names on the command line, as kubectl accepts them."""


class Explain(CommandSettings):
    """Explain why a pod or claim does not fit, and what to change.

    Reads from the API server what nodes offer, what is allocated, and what this one asks for.
    """

    example = "dra-driver explain pod/train -n team -o wide"
    statuses = (
        "it fits, or has its devices",
        "it does not fit, or does not run",
        "it is not known whether it fits",
        "it has its devices, but is refused each time it starts",
    )

    what: list[str] = argument(
        metavar="KIND/NAME", help="The pod or claim, such as pod/train or pod train."
    )
    namespace: str = option(
        default="",
        short="n",
        help="Its namespace; unset: the namespace of the kubeconfig's context.",
    )
    output: WideOutput = WIDE_OUTPUT
    kubeconfig: Path | None = KUBECONFIG
    context: str = CONTEXT

    def check(self) -> None:
        """Check that it is a pod or a claim."""
        named(self.what)

    def cli_cmd(self) -> None:
        """Print the explanation. Exits with status 1, 2 or 3 unless it fits."""
        try:
            with closing(connect(self.kubeconfig, self.context, environment=os.environ)) as client:
                kind, name = named(self.what)
                result = explained(
                    client, kind=kind, name=name, namespace=self.namespace or client.namespace
                )
        except DriverError as error:
            sys.stderr.write(f"error: {error}\n")
            raise SystemExit(_NOT_LEARNT) from error
        if is_for_programs(self.output):
            sys.stdout.write(for_programs(as_json(result), self.output))
        else:
            sys.stdout.write(as_text(result, wide=self.output == "wide"))
        if not result.fits:
            raise SystemExit(_NOT_LEARNT if result.fits is None else 1)
        if result.is_refused:
            raise SystemExit(_REFUSED)


def named(words: Sequence[str]) -> tuple[str, str]:
    """Return the kind and the name of `pod/NAME` or `pod NAME`. Raises ValueError."""
    kind, slash, name = words[0].partition("/")
    given = [kind, name, *words[1:]] if slash else list(words)
    if len(given) != 2 or not given[1]:
        raise ValueError(f"name one pod or claim, such as pod/train, not {' '.join(words)!r}")
    if given[0] not in _KINDS:
        raise ValueError(f"{given[0]!r} is neither pod nor claim")
    return _KINDS[given[0]], given[1]


def explained(api: Reads, *, kind: str, name: str, namespace: str) -> Explanation:
    """Return the explanation of a pod or claim.

    Raises NotFoundError if there is no such pod or claim, SetupError if an object cannot be read,
    UnavailableError if the API server cannot be reached, and ApiError if it refuses, because a
    permission or the API is missing.
    """
    pod = read(api, PODS, name, namespace) if kind == "pod" else {}
    classes = list(read_all(api, DEVICE_CLASSES))
    rules = list(filter(None, map(TaintRule.of, taint_rules(partial(read_all, api)))))
    slices = list(readable_slices(read_all(api, RESOURCE_SLICES), rules))
    nodes = sorted(map(Node.of, read_all(api, NODES)), key=lambda node: node.name)
    claims = {full_name(claim): claim for claim in read_all(api, RESOURCE_CLAIMS)}
    try:
        demand = _demand(api, pod, claims, classes, f"{namespace}/{name}")
    except ValueError as error:
        raise SetupError(
            f"{kind} {namespace}/{name} asks for something that cannot be read: {error}"
        ) from error
    by_name = {node.name: node for node in nodes}
    demand = with_problems(demand, by_name.get(demand.on_node))
    if pod and not demand.on_node:
        demand = replace(demand, blocked=(*demand.blocked, *_not_scheduled(api, pod, demand)))
    cluster = Cluster(
        nodes=nodes,
        pools=Pools(slices),
        classes=selectors_by_class(classes),
        allocated=AllocatedState.of(claims.values()),
    )
    answers = tuple(answers_to(demand, cluster))
    own = () if demand.is_without else tuple(_own(demand))
    return Explanation(
        demand=demand,
        answers=answers,
        findings=tuple(findings(demand, answers)),
        own=frozenset(f"{namespace}/{pod}" for namespace, pod in own),
        refused=refusals(api, (*own, *_holders(answers))),
        over_limit=over_limit(api, pod or claims[f"{namespace}/{name}"]) if own else "",
    )


def _not_scheduled(api: Reads, pod: Object, demand: Demand) -> Iterator[str]:
    why = unseen(pod, datetime.now(UTC))  # noqa: TID251 (the age of a pod)
    if why and not was_looked_at(api, pod, scheduler_of(pod)):
        yield why
    elif demand.lacks_claims and (why := why_no_claim(api, pod)):
        if _SHARE_REQUESTS in why:
            return  # the answers for the shares themselves explain it
        yield f"its claim cannot be made: {why}"


def _own(demand: Demand) -> Iterator[PodName]:
    for claim in demand.allocated:
        namespace = claim.name.partition("/")[0]
        yield from ((namespace, user) for user in claim.users)
    metadata = mapping(demand.pod, "metadata")
    if demand.on_node and metadata:
        yield text(metadata, "namespace"), text(metadata, "name")


def _holders(answers: tuple[NodeAnswer, ...]) -> Iterator[PodName]:
    """Yield the pods that have the devices without which it does not fit."""
    if any(each.given_up or each.fits for each in answers):
        return
    for answer in answers:
        for request in answer.requests:
            for device in () if request.suffices else request.devices:
                for holder in device.reason.holders if device.reason else ():
                    namespace = holder.claim.partition("/")[0]
                    yield from ((namespace, user) for user in holder.users)


def answers_to(demand: Demand, cluster: Cluster) -> Iterator[NodeAnswer]:
    """Yield the result of a demand on each node; nothing if there is nothing to allocate."""
    if demand.on_node or demand.blocked or (demand.is_empty and not demand.pod):
        return
    selectors = SelectorCache()
    for node in cluster.nodes:
        in_the_way = [
            *(obstacles(demand.pod, node) if demand.pod else ()),
            *demand.obstacles_on(node),
        ]
        claims = demand.claims_on(node)
        answer = answer_on(cluster, node, claims, in_the_way, selectors)
        if (unknown := demand.unknown_on(node)) and answer.fits:
            answer = NodeAnswer(node=node, unknown=unknown)
        yield answer


def _demand(
    api: Reads,
    pod: Object,
    claims: Mapping[str, Object],
    classes: Sequence[Object],
    name: str,
) -> Demand:
    if not pod:
        if name not in claims:
            raise NotFoundError(f"there is no ResourceClaim {name}", status=_NOT_SERVED)
        return of_claim(claims[name])
    namespace = text(pod, "metadata", "namespace")

    def template(wanted: str) -> Object | None:
        with suppress(NotFoundError):
            return read(api, CLAIM_TEMPLATES, wanted, namespace)
        return None

    return of_pod(pod, lambda wanted: claims.get(f"{namespace}/{wanted}"), template, classes)
