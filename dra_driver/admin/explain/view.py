"""An explanation as text for people and as JSON for programs.

The first line is whether it fits, the next ones are why not and what to change; then come the
nodes. Pure.
"""

import json
from collections.abc import Iterator, Sequence

from msgspec import Struct

from dra_driver.admin.api.refusals import Refusal
from dra_driver.admin.explain.allocated import users_text
from dra_driver.admin.explain.answers import NodeAnswer, RequestAnswer
from dra_driver.admin.explain.demand import Demand
from dra_driver.admin.explain.pod_state import Finding
from dra_driver.admin.explain.summary import names_text
from dra_driver.admin.output import aligned
from dra_driver.host.words import count
from resource_nvidia_com.printable import printable

_LOOKED_AT = (
    "Only devices are considered, and node names, selectors, affinity and taints. If the pod\n"
    "stays Pending, look at its events: CPU, memory, volumes and other pods matter, too."
)


_OF_REFUSED = (
    "delete such a pod, or do what its reason says: until then no other pod gets its devices"
)
_OF_CLAIM = "Its pod's choice of nodes is not considered: explain the pod."


class Explanation(Struct, frozen=True, kw_only=True):
    """The explanation of a pod or claim.

    `refused` are pods that have their devices but do not start: its own, and those in its way;
    `own` is the pod itself, or those that use the claim.
    """

    demand: Demand
    answers: tuple[NodeAnswer, ...]
    findings: tuple[Finding, ...]
    own: frozenset[str] = frozenset()
    refused: tuple[Refusal, ...] = ()
    over_limit: str = ""

    @property
    def is_refused(self) -> bool:
        """Whether a driver refuses to prepare its devices, or those of a pod with this claim."""
        return any(refusal.pod in self.own for refusal in self.refused)

    @property
    def fits(self) -> bool | None:
        """Whether it fits, or has its devices already; None if unknown."""
        demand = self.demand
        if demand.on_node or demand.problems:
            return not demand.problems
        if demand.blocked:
            return False
        if demand.is_empty and not demand.pod:
            return True
        open_to = [answer for answer in self.answers if not answer.obstacles]
        if any(node.given_up for node in open_to):
            return False
        if any(node.fits for node in open_to):
            return True
        return None if any(node.unknown for node in open_to) else False


def as_text(result: Explanation, *, wide: bool = False) -> str:
    """Return an explanation for people; `wide` adds every device of every node."""
    demand = result.demand
    lines = [
        f"{demand.name}: {_verdict(result)}",
        *(
            f"  claim {claim.name} has {names_text(claim.devices) or 'no devices'}; "
            + users_text(claim.users)
            for claim in demand.allocated
        ),
        *(f"  claim {claim.name}: {claim.why}" for claim in demand.claims if claim.why),
        *(
            f"  {name}: DeviceClass {device_class or '(none)'}"
            for name, device_class in demand.resources.items()
        ),
    ]
    if result.findings:
        lines += ["", "What is in the way:"]
        for each in result.findings:
            lines += _finding_lines(each)
    if result.refused:
        lines += ["", "Has devices, but does not start:"]
        lines += (f"  * pod {each.pod}: {each.why}" for each in result.refused)
        lines.append(f"    -> {_OF_REFUSED}")
    if result.over_limit:
        lines += ["", "Used more GPU memory than its limit:", f"  * {result.over_limit}"]
    if result.answers:
        lines += ["", *aligned([("NODE", "FITS", "WHY"), *_node_rows(result.answers)])]
    if wide and (rows := list(_device_rows(result.answers))):
        lines += ["", *aligned([("NODE", "REQUEST", "DEVICE", "WHY"), *rows])]
    if result.fits and result.answers:
        lines += ["", *(_LOOKED_AT if demand.pod else _OF_CLAIM).splitlines()]
    return "".join(f"{printable(line)}\n" for line in lines)


def _verdict(result: Explanation) -> str:
    demand = result.demand
    if demand.on_node:
        what = ", without devices that it asks for" if demand.is_without else ", but does not run"
        return f"is on node {demand.on_node}{what if demand.problems else ''}"
    if demand.is_empty and not demand.pod:
        return f"has its devices{', but is being deleted' if demand.blocked else ''}"
    if demand.problems or demand.blocked:
        return "asks for no device" if demand.problems else "cannot be scheduled yet"
    fitting = [answer.node.name for answer in result.answers if answer.fits]
    if result.fits:
        what = "fits"
        if demand.is_empty:
            what = "has its devices, and fits" if demand.allocated else "needs no devices, and fits"
        return f"{what} on {names_text(fitting)}"
    if result.fits is None:
        return "may or may not fit: the result is unknown for the nodes marked ?"
    number = len(result.answers)
    return f"does not fit on {'the only node' if number == 1 else f'any of {number} nodes'}"


def _finding_lines(finding: Finding) -> Iterator[str]:
    yield f"  * {finding.title}"
    yield from (f"      {line}" for line in finding.details)
    yield from (f"    -> {advice}" for advice in finding.advice)


def _node_rows(answers: Sequence[NodeAnswer]) -> Iterator[Sequence[str]]:
    """Yield a row for each node, or for all nodes with the same answer."""
    alike: dict[tuple[str, str], list[str]] = {}
    for answer in answers:
        name, fits, why = _node_row(answer)
        alike.setdefault((fits, why), []).append(name)
    for (fits, why), names in alike.items():
        yield names_text(names), fits, why


def _node_row(node: NodeAnswer) -> Sequence[str]:
    if node.obstacles:
        return node.node.name, "no", "; ".join(node.obstacles)
    if node.picks is not None:
        picked = [f"{pick.label}: {pick.device.device}" for pick in node.picks]
        note = "" if node.node.ready else " (the node is not ready)"
        note += " (the node is cordoned)" if node.node.unschedulable else ""
        return node.node.name, "yes", (", ".join(picked) or "no device has to be allocated") + note
    if node.unknown:
        return node.node.name, "?", node.unknown
    return node.node.name, "no", _short(node)


def _short(node: NodeAnswer) -> str:
    if node.given_up:
        return "the scheduler stops trying (above)"
    if node.together:
        return "enough devices, but not together (above)"
    alike: dict[str, list[str]] = {}
    for each in node.requests:
        if not each.suffices:
            alike.setdefault(_counts(each), []).append(each.request.label)
    why = [f"{names_text(labels)}: {counts}" for counts, labels in alike.items()]
    return "; ".join([*why, *node.problems]) or "no devices"


def _counts(answer: RequestAnswer) -> str:
    if not answer.devices:
        return "no devices"
    selected = len(answer.selected)
    if not selected:
        return f"none of {count(len(answer.devices), 'device')} selected"
    kinds: dict[str, int] = {}
    for each in answer.selected:
        if each.reason is not None:
            kinds[each.reason.kind] = kinds.get(each.reason.kind, 0) + 1
    words = {
        "taken": "taken",
        "capacity": "too small",
        "capacity consumed": "used up",
        "counters": "partly in use",
        "taint": "tainted",
    }
    others = ", ".join(f"{number} {words.get(kind, kind)}" for kind, number in kinds.items())
    free = f"{len(answer.usable)} of {selected} selected free" + (f" ({others})" if others else "")
    return f"{free}, {answer.needed} needed" if answer.needed > 1 else free


def _device_rows(answers: Sequence[NodeAnswer]) -> Iterator[Sequence[str]]:
    for node in answers:
        for request in node.requests:
            for device in request.devices:
                why = "free" if device.reason is None else device.reason.text
                if device.reason is not None and device.reason.faults:
                    why += f": {device.reason.faults[0].text}"
                yield node.node.name, request.request.name, device.device.id.device, why


def as_json(result: Explanation) -> str:
    """Return an explanation as JSON, for programs."""
    document = {
        "subject": result.demand.name,
        "fits": result.fits,
        "node": result.demand.on_node or None,
        "allocated": [
            {"claim": claim.name, "devices": claim.devices, "usedBy": claim.users}
            for claim in result.demand.allocated
        ],
        "resources": dict(result.demand.resources),
        "findings": [
            {"title": finding.title, "details": finding.details, "advice": finding.advice}
            for finding in result.findings
        ],
        "refused": [{"pod": pod.pod, "why": pod.why} for pod in result.refused],
        "memoryOverLimit": result.over_limit or None,
        "nodes": [_node_json(answer) for answer in result.answers],
    }
    return json.dumps(document, indent=2) + "\n"


def _node_json(answer: NodeAnswer) -> dict[str, object]:
    return {
        "name": answer.node.name,
        "fits": None if answer.unknown else answer.fits,
        "obstacles": answer.obstacles,
        "gets": [
            {"claim": pick.claim, "request": pick.request, **pick.device._asdict()}
            for pick in answer.picks or ()
        ],
        "why": "" if answer.fits else _node_row(answer)[2],
        "requests": [
            {
                "claim": request.claim,
                "request": request.request.name,
                "devices": [
                    {
                        **each.device.id._asdict(),
                        "kind": each.reason.kind if each.reason else None,
                        "why": each.reason.text if each.reason else None,
                        "false": [fault.text for fault in each.reason.faults]
                        if each.reason
                        else [],
                    }
                    for each in request.devices
                ],
            }
            for request in answer.requests
        ],
    }
