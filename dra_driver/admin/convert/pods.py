"""Pods and workloads: claims in their new place, and templates for a device plugin's resources.

In: a pod, or a workload with a pod template. Out: the same with its claims as core/v1 has them
since Kubernetes 1.31, and with a claim for each `nvidia.com/gpu` or `nvidia.com/mig-…` in a
container's limits, and for parts of GPUs in the forms of other projects. As with the device plugin,
an init container uses the devices of a container that asks for the same; a sidecar has its own.
"""

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from dra_driver.admin.classes import class_name, mig_profile
from dra_driver.admin.convert.fractions import Wanted, config_of, limits_of_kai, read, whole
from dra_driver.admin.convert.outcome import VERSION, Object, Outcome, loss
from dra_driver.admin.of_others import HAMI, NO_COUNTERPART, scheduler, unread
from dra_driver.admin.validate.objects import pod_of
from dra_driver.admin.wrong_names import meant
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.kube.fields import at, entries, mapping, text
from resource_nvidia_com.problems import Path, Problem
from resource_nvidia_com.resource_names import GPU, PREFIX

_SHARED = f"{GPU}.shared"
_BY_NAME = "resourceClaimName", "resourceClaimTemplateName"
_DEVICES = re.compile(rf"{re.escape(PREFIX)}(gpu|mig-)")
"""Resource names that a share config may have given; others are of other device plugins."""

_OF_DISCOVERY = re.compile(rf"{re.escape(PREFIX)}(gpu\.|cuda\.|mig)")
_NO_LABEL = re.compile(r"[^a-z0-9-]")


class Templates(Struct, kw_only=True):
    """The templates that pods of the files need, and the names in use."""

    taken: set[tuple[str, str]]
    made: dict[tuple[str, str], str] = {}
    has_parts: bool = False

    def for_(self, namespace: str, wanted: Wanted) -> tuple[str, Object | None]:
        """Return the name of a template, and the template itself the first time."""
        name = f"nvidia-{wanted.resource.removeprefix(PREFIX)}-{wanted.label}"
        if known := self.made.get((namespace, name)):
            return known, None
        plain_name = name
        while (namespace, name) in self.taken:
            name += "-converted"
        self.taken.add((namespace, name))
        self.made[namespace, plain_name] = name
        metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
        count = {"count": wanted.amount} if wanted.amount > 1 else {}
        label = _label(wanted.resource)
        asked = wanted.part or _asked(wanted.resource)
        request = {"name": label, "exactly": {**asked, **count}}
        config = {"config": [config_of(label)]} if wanted.part else {}
        self.has_parts |= bool(wanted.part)
        return name, {
            "apiVersion": VERSION,
            "kind": "ResourceClaimTemplate",
            "metadata": metadata,
            "spec": {"spec": {"devices": {"requests": [request], **config}}},
        }


def convert(value: Object, templates: Templates) -> Outcome | None:
    """Return a pod or workload with the templates that it needs; None if it is none of these."""
    new = copy.deepcopy(dict(value))
    pod, path = pod_of(new) or (None, ())
    spec: Any = at(pod, "spec")
    if not isinstance(spec, dict):
        return None
    for claim in entries(spec, "resourceClaims"):
        _lift(claim)
    limits_of_kai(pod)
    where, annotations = (*path, "spec"), (*path, "metadata", "annotations")
    losses = list(unread(mapping(new, *annotations), annotations))
    needed = _claimed(spec, where, losses)
    of_others = losses or any(wanted.part for _, wanted in needed)
    if of_others or text(spec, "schedulerName") == HAMI:
        losses += scheduler(spec, where)
    losses += _labels(spec, where)
    made = []
    for claim_name, wanted in needed:
        name, template = templates.for_(text(value, "metadata", "namespace"), wanted)
        claims = entries(spec, "resourceClaims")
        spec["resourceClaims"] = [*claims, {"name": claim_name, _BY_NAME[1]: name}]
        made += [template] if template else []
    return Outcome(objects=(*made, new), losses=tuple(losses))


def _labels(spec: object, path: Path) -> Iterator[Problem]:
    """Yield node selectors that ask for cards by the labels of GPU Feature Discovery."""
    for name in mapping(spec, "nodeSelector"):
        if _OF_DISCOVERY.match(name):
            yield loss(
                (*path, "nodeSelector", name),
                "unchanged: GPU Feature Discovery sets this label, with what a node has and not "
                "what the pod gets: where it does not run, select the card in the claim "
                "(docs/migrating-from-the-device-plugin.md)",
            )


def _lift(claim: object) -> None:
    """Move the fields under `source`, used up to Kubernetes 1.30, beside the claim's name."""
    source = at(claim, "source")
    if isinstance(claim, dict) and isinstance(source, Mapping) and source.keys() <= {*_BY_NAME}:
        del claim["source"]
        claim.update(source)


def _claimed(spec: Any, path: Path, losses: list[Problem]) -> list[tuple[str, Wanted]]:
    """Replace resources by claims; return (claim, what it asks for) of each."""
    taken = {text(entry, "name") for entry in entries(spec, "resourceClaims")}
    reusable: dict[Wanted, str] = {}
    made = []
    for container, where in _containers(spec, path):
        is_init = "initContainers" in where
        ends_before = is_init and at(container, "restartPolicy") != "Always"
        for wanted in _plugin_resources(container, where, losses):
            name = reusable.get(wanted, "") if ends_before else ""
            if not name:
                name = _free(_label(wanted.resource), taken)
                taken.add(name)
                made.append((name, wanted))
                if ends_before and any(other.resource == wanted.resource for other in reusable):
                    losses.append(
                        _more(wanted.resource, (*where, "resources", "limits", wanted.names[0]))
                    )
            if not is_init or ends_before:
                reusable.setdefault(wanted, name)
            _exchange(container["resources"], wanted.names, name)
    return made


def _containers(spec: Any, path: Path) -> Iterator[tuple[Any, Path]]:
    """Yield (container, its place); init containers last, because they may share devices."""
    for part in ("containers", "initContainers"):
        for index, container in enumerate(entries(spec, part)):
            yield container, (*path, part, index)


def _plugin_resources(container: Any, path: Path, losses: list[Problem]) -> Iterator[Wanted]:
    """Yield the resources of a device plugin that a claim can replace."""
    limits = at(container, "resources", "limits")
    if not isinstance(limits, Mapping):
        return
    part = read(limits, (*path, "resources", "limits"), losses)
    if part is not None and part.amount:
        yield part
    for resource, written in list(limits.items()):
        wrong = meant(resource) or NO_COUNTERPART.get(resource)
        if wrong:
            losses.append(loss((*path, "resources", "limits", resource), f"unchanged: {wrong}"))
        amount = whole(written)
        if not _DEVICES.match(resource) or not amount or resource in (part.names if part else ()):
            continue
        if _asked(resource):
            yield Wanted(resource=resource, amount=amount, names=(resource,))
        else:
            why = "unchanged: a share config gives this name to shares, and the class behind"
            how = f"it serves limits too: `dra-driver classes {resource}` prints the class"
            losses.append(loss((*path, "resources", "limits", resource), f"{why} {how}"))


def _asked(resource: str) -> Object:
    """Return the request that replaces a resource; nothing if unknown."""
    if resource in (GPU, _SHARED):
        return {"deviceClassName": class_name(resource)}
    profile = None if resource.endswith(".shared") else mig_profile(resource)
    if not profile:
        return {}
    selector = f"device.attributes['{DRIVER_NAME}'].profile == '{profile}'"
    return {"deviceClassName": "mig.nvidia.com", "selectors": [{"cel": {"expression": selector}}]}


def _exchange(resources: Any, names: tuple[str, ...], claim: str) -> None:
    for part in ("limits", "requests"):
        amounts = resources.get(part)
        if isinstance(amounts, dict):
            for name in names:
                amounts.pop(name, None)
            if not amounts:
                del resources[part]
    resources["claims"] = [*entries(resources, "claims"), {"name": claim}]


def _more(resource: str, path: Path) -> Problem:
    why = f"this init container asks for a different amount of {resource} than containers do, so it"
    return loss(path, f"{why} gets devices of its own: ask for the same amount to share theirs")


def _label(resource: str) -> str:
    return _NO_LABEL.sub("-", resource.removeprefix(PREFIX))


def _free(name: str, taken: set[str]) -> str:
    number = 2
    free = name
    while free in taken:
        free, number = f"{name}-{number}", number + 1
    return free
