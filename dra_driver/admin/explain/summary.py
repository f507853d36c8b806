"""The summary of all nodes' answers: why nothing fits, and what to change.

A finding applies to every node on which the pod could run; a request for which one of them has
enough devices is not mentioned. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from msgspec.structs import replace

from dra_driver.admin.cel.advice import advice as selector_advice
from dra_driver.admin.cel.selector import Fault
from dra_driver.admin.explain.allocated import named
from dra_driver.admin.explain.answers import (
    DeviceAnswer,
    NodeAnswer,
    RequestAnswer,
    counted_text,
)
from dra_driver.admin.explain.demand import Demand
from dra_driver.admin.explain.pod_state import Finding
from dra_driver.admin.explain.reasons import Kind
from dra_driver.admin.explain.requests import ALL, DeviceRequest
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.host.words import count

_ADVICE: Mapping[Kind, str] = MappingProxyType(
    {
        Kind.ONE_SHARE: (
            "ask for 1, or set failRequestsGreaterThanOne: false in its share config: then the "
            "shares of a request add up"
        ),
        Kind.TAKEN: "end one of these pods or wait for it, or add devices",
        Kind.COUNTERS: "end one of these pods or wait for it, or ask for a smaller part",
        Kind.CONSUMED: "ask for less, or end one of these pods or wait for it",
        Kind.CAPACITY: "ask for an amount that a device has",
    }
)
_OF_CLASS = (Kind.CLASS, Kind.CLASS_FAILS)

_TYPE = f"{DRIVER_NAME}/type"
_SERVED_BY = (f"{DRIVER_NAME}/resourceName", f"{DRIVER_NAME}/sharedAs")
_OTHER_CLASS = "name another class, or add nodes that have such devices"

_WITHOUT_MIG = frozenset({"Maxwell", "Pascal", "Volta", "Turing", "Ada Lovelace"})
"""Architectures of which no card has MIG (NVIDIA's MIG user guide, supported GPUs)."""

_RESETS = "Ampere"
"""The architecture whose cards need a reset to switch MIG mode."""

_VFIO_ADVICE = (
    "for GPUs that go to virtual machines: run the driver with --vfio (chart value vfio); "
    "`dra-driver inspect` on the node shows which of its GPUs can be used"
)

_LONGEST = 300
"""How many characters of a selector are shown; it may have 10,000."""

_NAMED = 4
"""How many devices or reasons of a kind are named."""


_ByKind = Mapping[Kind, list[DeviceAnswer]]


def findings(demand: Demand, answers: Sequence[NodeAnswer]) -> list[Finding]:
    """Return the obstacles for a pod or claim; empty if it fits."""
    if demand.on_node or demand.problems or demand.blocked:
        blocked = () if demand.on_node else demand.blocked
        return [*demand.problems, *(Finding(title=reason) for reason in blocked)]
    open_to = [answer for answer in answers if not answer.obstacles]
    fits = any(node.fits for node in open_to) and not any(node.given_up for node in open_to)
    if fits or (demand.is_empty and not answers):
        return []
    return _in_the_way(open_to) if open_to else list(_no_nodes(answers))


def _in_the_way(open_to: Sequence[NodeAnswer]) -> list[Finding]:
    problems = list(dict.fromkeys(_problems(open_to)))
    if given_up := list(_given_up(open_to)):
        return given_up + problems
    if not any(answer.devices for node in open_to for answer in node.requests):
        return [*problems, _no_devices(open_to)]
    alike: dict[Finding, list[RequestAnswer]] = {}
    for requests in _by_request(open_to):
        for first, finding in _of_request(requests):
            alike.setdefault(finding, []).append(first)
    for finding, those in alike.items():
        problems.append(replace(finding, title=f"{_subject(those)}: {finding.title}"))
    return problems + list(_together(open_to))


def _no_nodes(answers: Sequence[NodeAnswer]) -> Iterator[Finding]:
    if not answers:
        yield Finding(title="the cluster has no nodes")
        return
    counts: dict[str, list[str]] = {}
    for answer in answers:
        for obstacle in answer.obstacles:
            counts.setdefault(obstacle, []).append(answer.node.name)
    yield Finding(
        title="the pod fits on no node, regardless of devices",
        details=tuple(
            f"{names_text(names)}: {text}"
            for text, names in sorted(counts.items(), key=lambda entry: -len(entry[1]))
        ),
        advice=("change the pod's requirements for nodes, or the nodes",),
    )


def _given_up(answers: Sequence[NodeAnswer]) -> Iterator[Finding]:
    causes: dict[str, list[NodeAnswer]] = {}
    for answered in answers:
        if answered.given_up is not None:
            causes.setdefault(str(answered.given_up), []).append(answered)
    for text, those in list(causes.items())[:_NAMED]:
        error, names = those[0].given_up, names_text([each.node.name for each in those])
        details = [f"found on {names}" if len(those) < len(answers) else "found on every node"]
        if error is not None and error.where:
            details[0] += f", such as at device {error.where}"
        if error is not None and error.selector:
            details.append(f"the selector is {_cut(error.selector)}")
        advice: tuple[str, ...] = ()
        if error is not None and error.selector:
            subjects = (
                each.device.subject
                for node in those
                for answer in node.requests
                for each in answer.devices
            )
            advice = tuple(filter(None, (selector_advice(text, error.selector, subjects),)))
        elif text.startswith("the DeviceClass "):
            advice = ("create it, or correct deviceClassName",)
        yield Finding(
            title=f"the scheduler stops trying, on all nodes: {text}",
            details=tuple(details),
            advice=advice,
        )


def _problems(answers: Sequence[NodeAnswer]) -> Iterator[Finding]:
    for answer in answers:
        for problem in answer.problems:
            yield Finding(
                title=f"{problem}",
                details=("the scheduler uses none of its devices",),
                advice=("check the driver's pods and their logs",),
            )


def _no_devices(answers: Sequence[NodeAnswer]) -> Finding:
    return Finding(
        title=f"no device is published for {names_text([answer.node.name for answer in answers])}",
        advice=(
            "check that the driver's pods run there, and what they log (see `dra-driver doctor`)",
        ),
    )


def _by_request(answers: Sequence[NodeAnswer]) -> Iterator[list[list[RequestAnswer]]]:
    """Yield for each request its alternatives, and for each of them every node's answer."""
    by_claim: dict[tuple[str, str], dict[str, list[RequestAnswer]]] = {}
    for node in answers:
        for request in node.requests:
            requests = by_claim.setdefault((request.claim, request.request.parent), {})
            requests.setdefault(request.request.name, []).append(request)
    for requests in by_claim.values():
        yield list(requests.values())


def _of_request(
    requests: list[list[RequestAnswer]],
) -> Iterator[tuple[RequestAnswer, Finding]]:
    if any(answer.suffices for answers in requests for answer in answers):
        return
    for answers in requests:
        yield answers[0], _of_alternative(answers)


def _of_alternative(answers: list[RequestAnswer]) -> Finding:
    request, devices = answers[0].request, [device for each in answers for device in each.devices]
    # Answers of different nodes may name the same device.
    by_kind: dict[Kind, list[DeviceAnswer]] = {}
    for judged in devices:
        if judged.reason is not None:
            by_kind.setdefault(judged.reason.kind, []).append(judged)
    selected = [device for each in answers for device in each.selected]
    if not selected:
        return _unselected(request, devices, by_kind)
    most = max(answers, key=lambda answer: len(answer.selected))
    if (
        request.mode != ALL
        and len(most.selected) < request.count
        and not any(device.device.shared for device in selected)
    ):
        return Finding(
            title=(
                f"asks for {count(request.count, 'device')} on one node, and no node "
                f"has more than {len(most.selected)} of them"
            ),
            details=tuple(_unselected_lines(by_kind)),
            advice=("ask for fewer, or for other devices",),
        )
    return _unusable(request, answers, selected, by_kind)


def _subject(those: Sequence[RequestAnswer]) -> str:
    """Return the names of requests with the same finding."""
    called = [each.request.called for each in those if each.request.called]
    claims: dict[str, list[str]] = {}
    for each in those:
        if not each.request.called:
            claims.setdefault(each.claim, []).append(each.request.name)
    alike: dict[str, list[str]] = {}
    for claim, names in claims.items():
        alike.setdefault(f"{_noun('request', names)} {names_text(names)}", []).append(claim)
    parts = [names_text(called)] if called else []
    for requests, names in alike.items():
        parts.append(f"{requests} of {_noun('claim', names)} {names_text(names)}")
    return ", ".join(parts)


def _noun(noun: str, names: Sequence[str]) -> str:
    return noun if len(names) == 1 else f"{noun}s"


def _unselected(
    request: DeviceRequest,
    devices: list[DeviceAnswer],
    by_kind: _ByKind,
) -> Finding:
    total = count(len(devices), "device")
    if Kind.UNKNOWN in by_kind:
        return Finding(
            title="it is not known whether a device is selected",
            details=tuple(_unselected_lines(by_kind)),
        )
    if Kind.SELECTOR not in by_kind and Kind.FAILS not in by_kind:
        return Finding(
            title=f"DeviceClass {request.device_class} selects none of {total}",
            details=tuple(_unselected_lines(by_kind)),
            advice=(
                *(_shared_advice(by_kind.get(Kind.CLASS, ())) or (_OTHER_CLASS,)),
                *_mig_advice(by_kind.get(Kind.CLASS, ())),
                *([_VFIO_ADVICE] if request.device_class == "vfio.gpu.nvidia.com" else ()),
            ),
        )
    refused = sum(len(by_kind.get(kind, ())) for kind in _OF_CLASS)
    left = count(len(devices) - refused, "device")
    return Finding(
        title=(
            f"its selectors select none of the {left} that DeviceClass "
            f"{request.device_class} selects"
        ),
        details=tuple(_unselected_lines({**by_kind, **{kind: [] for kind in _OF_CLASS}})),
        advice=(
            "correct the selector, or add nodes that have such devices",
            *_mig_advice(by_kind.get(Kind.SELECTOR, ())),
        ),
    )


def _shared_advice(refused: Sequence[DeviceAnswer]) -> tuple[str, ...]:
    """Return advice on the resource names that do get the devices that a class does not select."""
    names = {
        str(name)
        for device in refused
        for attribute in _SERVED_BY
        if (name := device.device.attribute(attribute))
    }
    if not names:
        return ()
    asked = " or ".join(sorted(names))
    return (f"ask for {asked}: these devices are shared, and only this name serves them",)


def _mig_advice(refused: Sequence[DeviceAnswer]) -> Iterator[str]:
    """Yield why there may be no MIG devices although there are GPUs: they are published whole."""
    gpus = [
        device.device
        for device in refused
        if device.reason
        and any(
            (_TYPE, '"gpu"') in fault.reads and "'mig'" in fault.text
            for fault in device.reason.faults
        )
    ]
    kinds = {str(gpu.attribute(f"{DRIVER_NAME}/architecture") or "") for gpu in gpus}
    if gpus and kinds <= _WITHOUT_MIG:
        yield (
            f"none of these GPUs has MIG (architecture {', '.join(sorted(kinds))}): ask for a "
            "share or a whole GPU, or add nodes with GPUs that have it, such as A100, A30 or H100"
        )
    elif gpus:
        reset = (
            "; on an A100 or A30 the mode stays pending until the GPU is reset "
            "(`nvidia-smi -i INDEX --gpu-reset`) or the node restarted"
        )
        # The driver resets no GPU, so on demand it switches no mode that needs it.
        on_demand = ", or run the driver with --mig on-demand" if kinds != {_RESETS} else ""
        yield (
            "for MIG devices of these GPUs: a GPU whose MIG mode is off is published as a whole; "
            f"turn MIG mode on (`nvidia-smi -i INDEX -mig 1`){on_demand}"
            f"{reset if _RESETS in kinds else ''}; `dra-driver inspect` on the node shows which "
            "GPUs have MIG"
        )


def _unselected_lines(by_kind: _ByKind) -> Iterator[str]:
    """Yield what is false in selectors, and what the devices have instead."""
    for kind in (*_OF_CLASS, Kind.SELECTOR, Kind.FAILS):
        faults: dict[str, list[Fault]] = {}
        for device in by_kind.get(kind, ()):
            for fault in device.reason.faults if device.reason else ():
                faults.setdefault(fault.text, []).append(fault)
        ranked = sorted(faults.items(), key=lambda entry: -len(entry[1]))
        for text, devices in ranked[:_NAMED]:
            state = "fails" if kind in (Kind.FAILS, Kind.CLASS_FAILS) else "false"
            yield f"{state} for {count(len(devices), 'device')}: {_cut(text)}"
            yield from (f"  {line}" for line in _read_lines(devices))
    for device in by_kind.get(Kind.UNKNOWN, ())[:1]:
        yield f"{device.device.id.device} {device.reason.text if device.reason else ''}"
    if others := by_kind.get(Kind.NODE):
        yield f"{count(len(others), 'device')}: for other nodes"


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _read_lines(faults: list[Fault]) -> Iterator[str]:
    values: dict[str, list[str | None]] = {}
    for fault in faults:
        for name, value in fault.reads:
            values.setdefault(name, []).append(value)
    for name, devices in values.items():
        yield f"{name} is {counted_text(devices)}"


def _unusable(
    request: DeviceRequest,
    answers: list[RequestAnswer],
    selected: list[DeviceAnswer],
    by_kind: _ByKind,
) -> Finding:
    usable = max(len(answer.usable) for answer in answers)
    wanted = "all devices" if request.mode == ALL else count(request.count, "device")
    free = "none is available" if not usable else f"at most {usable} on one node are available"
    title = f"asks for {wanted}; {count(len(selected), 'device')} selected, {free}"
    details: list[str] = []
    advice: list[str] = []
    for kind in (*_ADVICE, Kind.TAINT):
        devices = by_kind.get(kind, [])
        if devices:
            details += _unusable_lines(kind, devices)
            advice += _taint_advice(request, devices) if kind is Kind.TAINT else [_ADVICE[kind]]
    return Finding(title=title, details=tuple(details), advice=tuple(advice))


def _taint_advice(request: DeviceRequest, devices: list[DeviceAnswer]) -> Iterator[str]:
    taints = [device.reason.taint for device in devices if device.reason and device.reason.taint]
    rules = sorted({taint.rule for taint in taints} - {""})
    for rule in rules[:_NAMED]:
        yield f"delete or narrow the rule, unless it is meant: kubectl edit devicetaintrule {rule}"
    if not all(taint.rule for taint in taints):
        yield "find out why the device has a taint, and remove the cause"
    if request.called:
        yield "limits cannot tolerate a device's taint: to get such devices, use a claim"
    else:
        yield "let the request tolerate the taint"


def _unusable_lines(kind: Kind, devices: list[DeviceAnswer]) -> Iterator[str]:
    if kind is Kind.TAKEN:
        holders = [holder for each in devices if each.reason for holder in each.reason.holders]
        verb = "is" if len(devices) == 1 else "are"
        yield f"{count(len(devices), 'device')} {verb} taken by {named(holders)}"
        return
    by_text: dict[str, list[str]] = {}
    for device in devices:
        if device.reason:
            by_text.setdefault(device.reason.text, []).append(device.device.id.device)
    for text, names in list(by_text.items())[:_NAMED]:
        yield f"{names_text(names)} {text}" if len(names) == 1 else f"{names_text(names)}: {text}"
    if len(by_text) > _NAMED:
        rest = sum(len(names) for names in list(by_text.values())[_NAMED:])
        yield f"{count(rest, 'device')} more for similar reasons"


def _together(answers: Sequence[NodeAnswer]) -> Iterator[Finding]:
    by_text: dict[str, list[NodeAnswer]] = {}
    for answer in answers:
        for text in filter(None, (answer.together.text if answer.together else "", answer.unknown)):
            by_text.setdefault(text, []).append(answer)
    for text, those in list(by_text.items())[:_NAMED]:
        advice = (
            ("ask for fewer devices, or remove the constraint",) if "constraint" in text else ()
        )
        if those[0].together and those[0].together.holders:
            advice = ("end one of these pods or wait for it", *advice)
        yield Finding(
            title=f"{names_text([each.node.name for each in those])}: {text}", advice=advice
        )


def names_text(names: Sequence[str]) -> str:
    """Return names as text; of many, only the first few."""
    shown = list(dict.fromkeys(names))
    if len(shown) > _NAMED:
        shown[_NAMED - 1 :] = [f"and {len(shown) - _NAMED + 1} more"]
    return ", ".join(shown)
