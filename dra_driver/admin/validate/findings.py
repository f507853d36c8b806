"""What is wrong with the manifests of a file: their objects, and the configs for this driver.

It checks ResourceClaims, ResourceClaimTemplates, DeviceClasses (resource.k8s.io, any version) and
pods, the share configs of ConfigMaps, also in lists, and share configs by themselves; of every
other object only duplicate keys. Configs are checked as the driver checks them when it starts or
prepares a claim; objects as far as they concern this driver, since the API server checks the rest.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Literal, Self

from msgspec import Struct

from dra_driver.admin.validate import card_needs, near_misses, objects, pods, selectors
from dra_driver.admin.validate.claim_fields import CONVERTS, DEVICES
from dra_driver.admin.validate.meant_for import WrittenConfig, in_vain, overridden
from dra_driver.admin.validate.node_configs import (
    Wrong,
    configs_of,
    is_node_config,
    wrong_in_document,
    wrong_in_text,
)
from dra_driver.devices.names import DRIVER_NAME
from dra_driver.kube.fields import at, entries
from dra_driver.kube.manifest import BrokenManifestError, Document, Place, read_documents
from resource_nvidia_com.decode import decode
from resource_nvidia_com.printable import plain
from resource_nvidia_com.problems import InvalidConfigError, Path, Problem, dotted
from resource_nvidia_com.v1beta1.names import API_VERSION

Severity = Literal["error", "warning"]


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that is wrong in a file. Lines and columns are counted from 1.

    `subject` is the kind and name of the object, empty if the file is not YAML. An error is
    something that a cluster or the driver refuses; a warning is about something that most likely
    does not have the intended effect.
    """

    line: int
    column: int
    subject: str
    text: str
    severity: Severity = "error"

    @classmethod
    def at(cls, place: Place, text: str, subject: str = "", severity: Severity = "error") -> Self:
        """Return a finding at a place."""
        line, column = place.line, place.column
        return cls(line=line, column=column, subject=subject, text=text, severity=severity)


class FileReport(Struct, frozen=True, kw_only=True):
    """The content of one file: configs, checked objects, the kinds of others, what is wrong."""

    configs: int = 0
    objects: int = 0
    others: tuple[str, ...] = ()
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> int:
        """How many errors there are."""
        return sum(finding.severity == "error" for finding in self.findings)


def check_manifest(text: str) -> FileReport:
    """Check all objects and configs in the text of a file."""
    configs = looked_at = 0
    others: list[str] = []
    findings: list[Finding] = []
    try:
        for document in read_documents(text):
            for path, value in objects.objects_of(document.value):
                findings += _of_object(document, value, path)
                own = list(_node_configs(document, value, path))
                configs += len(own)
                for subject, wrongs in own:
                    findings += (
                        Finding.at(wrong.place, wrong.text, subject, wrong.severity)
                        for wrong in wrongs
                    )
                is_of_interest = objects.is_looked_at(value)
                looked_at += is_of_interest
                if not own and not is_of_interest:
                    others += filter(None, [objects.name_of_kind(value)])
                    if not value.get("kind"):
                        findings.append(
                            of_problem(document, value, path, objects.NO_KIND, "warning")
                        )
            for ours in _by_object(_configs(document.value)):
                configs += sum(config.ours for config in ours)
                for config in ours:
                    findings += (
                        _finding(document, config, problem) for problem in _problems(config)
                    )
                findings += (_finding(document, *parts) for parts in _in_vain(ours))
    except BrokenManifestError as error:
        findings.append(Finding.at(error.place, str(error)))
    findings.sort(key=lambda finding: (finding.line, finding.column))
    return FileReport(
        configs=configs, objects=looked_at, others=tuple(others), findings=tuple(findings)
    )


def _of_object(document: Document, value: Mapping[str, object], path: Path) -> Iterator[Finding]:
    """Yield what is wrong with an object, except in the configs for this driver."""
    own = [config.path for config in _configs(value) if config.ours]
    for problem in objects.problems(value):
        if not any(problem.path[: len(mine) + 1] == (*mine, "parameters") for mine in own):
            yield of_problem(document, value, path, problem)
    for problem in _warnings(value):
        yield of_problem(document, value, path, problem, "warning")


def of_problem(
    document: Document,
    value: Mapping[str, object],
    path: Path,
    problem: Problem,
    severity: Severity = "error",
) -> Finding:
    """Return the finding of a problem of the object at a path."""
    begins = f"{dotted(path)}." if path else ""
    place = document.place((*path, *problem.path))
    return Finding.at(place, f"{begins}{problem.text}", subject_of(value), severity)


def _warnings(value: Mapping[str, object]) -> Iterator[Problem]:
    """Yield what a cluster accepts, but what most likely does not have the intended effect."""
    if objects.is_of_devices(value):
        yield from near_misses.in_selectors(value)
        yield from selectors.warnings(value)
        yield from card_needs.parts(value)
        for config in _configs(value):
            if near_misses.is_near_miss(config.driver) and not list(_wrong_driver(config)):
                yield near_misses.warning(config.driver, (*config.path, "driver"))
        yield from _overridden([each for each in _configs(value) if each.ours])
        place = DEVICES.get(str(value.get("kind")), ())
        for path, text in card_needs.unasked(at(value, *place)):
            yield Problem(path=(*place, *path), text=f"{dotted((*place, *path))}: {text}")
    elif pod := objects.pod_of(value):
        yield from pods.warnings(*pod)


class _Config(Struct, frozen=True, kw_only=True):
    subject: str
    path: Path
    driver: str
    parameters: object
    named: tuple[str, ...]
    requests: object
    """Those of the object, as they are written."""

    @property
    def ours(self) -> bool:
        return self.driver == DRIVER_NAME


def _configs(value: object) -> Iterator[_Config]:
    """Yield the opaque configs of an object, or of the objects of a list."""
    for where, owner in objects.objects_of(value):
        kind = str(owner.get("kind"))
        if kind not in DEVICES or not str(owner.get("apiVersion")).startswith("resource.k8s.io/"):
            continue
        for index, entry in enumerate(entries(owner, *DEVICES[kind], "config")):
            opaque, named = at(entry, "opaque"), at(entry, "requests")
            if isinstance(opaque, Mapping):
                yield _Config(
                    subject=subject_of(owner),
                    path=(*where, *DEVICES[kind], "config", index, "opaque"),
                    driver=str(opaque.get("driver")),
                    parameters=opaque.get("parameters"),
                    named=tuple(named) if isinstance(named, list) else (),
                    requests=at(owner, *DEVICES[kind], "requests"),
                )


def _by_object(configs: Iterator[_Config]) -> Iterator[list[_Config]]:
    """Yield the configs of each object together."""
    for _, group in itertools.groupby(configs, key=lambda config: config.path[:-2]):
        yield list(group)


def _in_vain(configs: list[_Config]) -> Iterator[tuple[_Config, tuple[Path, str]]]:
    """Yield which configs of one object have no effect."""
    ours = [config for config in configs if config.ours]
    for index, text in in_vain(ours[0].requests if ours else None, _written(ours)):
        yield ours[index], (("parameters", "kind"), f"parameters.kind: {text}")


def _overridden(ours: list[_Config]) -> Iterator[Problem]:
    """Yield configs of an object that a later one replaces."""
    for index, why in overridden(ours[0].requests if ours else None, _written(ours)):
        path = (*ours[index].path, "parameters", "kind")
        yield Problem(path=path, text=f"{dotted(path)}: {why}")


def _written(configs: list[_Config]) -> list[WrittenConfig]:
    return [
        WrittenConfig(kind=str(at(config.parameters, "kind")), requests=config.named)
        for config in configs
    ]


def _node_configs(
    document: Document, value: Mapping[str, object], path: Path
) -> Iterator[tuple[str, Iterator[Wrong]]]:
    """Yield (subject, what is wrong) of each share config of an object."""
    if is_node_config(value):
        yield "share config", wrong_in_document(document)
        return
    for where, text in configs_of(value, path):
        yield subject_of(value) or "share config", wrong_in_text(document, where, text)


def subject_of(value: Mapping[str, object]) -> str:
    """Return the kind and name of an object."""
    name = plain(str(at(value, "metadata", "name") or ""))
    return f"{plain(str(value.get('kind') or ''))} {name}".strip()


def _problems(config: _Config) -> Iterator[tuple[Path, str]]:
    """Yield (path below `opaque`, text) for all that is wrong with a config."""
    if not config.ours:
        yield from _wrong_driver(config)
        return
    try:
        decode(config.parameters)
    except InvalidConfigError as error:
        is_old = at(config.parameters, "apiVersion") == objects.OLD_CONFIGS
        converts = f"; {CONVERTS}" if is_old else ""
        for problem in error.problems:
            yield ("parameters", *problem.path), f"{_located(problem)}{converts}"


def _located(problem: Problem) -> str:
    """Return a problem's text after the path of the parameters, without repeating a path."""
    begins_with_path = problem.path and problem.text.startswith(f"{dotted(problem.path)}: ")
    return f"parameters{'.' if begins_with_path else ': '}{problem.text}"


def _wrong_driver(config: _Config) -> Iterator[tuple[Path, str]]:
    """A config of ours under another driver's name would silently do nothing."""
    kind = str(at(config.parameters, "kind"))
    if at(config.parameters, "apiVersion") == API_VERSION and not kind.startswith("Compute"):
        text = f'a {kind} for driver "{config.driver}" has no effect: write {DRIVER_NAME}'
        yield ("driver",), f"driver: {text}"


def _finding(document: Document, config: _Config, problem: tuple[Path, str]) -> Finding:
    path, text = problem
    place = document.place((*config.path, *path))
    return Finding.at(place, f"{dotted(config.path)}.{text}", config.subject)
