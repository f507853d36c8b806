"""Which configs a manifest has for this driver, and what is wrong with them.

In: the text of a file. Out: findings, each with its place in the file. Looked at are the opaque
configs of ResourceClaims, ResourceClaimTemplates and DeviceClasses (resource.k8s.io, any version)
and the share configs of ConfigMaps, also in lists of them, and share configs by themselves; every
other object is passed over. The checks are those of Prepare, and of the driver's start.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dra_driver.devices.names import DRIVER_NAME
from dra_driver.manifest import BrokenManifestError, Document, read_documents
from dra_driver.validation.node_configs import (
    Wrong,
    configs_of,
    is_node_config,
    wrong_in_document,
    wrong_in_text,
)
from resource_nvidia_com.decode import decode
from resource_nvidia_com.problems import InvalidConfigError, Path, Problem, dotted
from resource_nvidia_com.v1beta1.base import API_VERSION

_CONFIGS: Mapping[str, Path] = {
    "ResourceClaim": ("spec", "devices", "config"),
    "ResourceClaimTemplate": ("spec", "spec", "devices", "config"),
    "DeviceClass": ("spec", "config"),
}
"""Where objects of each kind keep their configs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong in a file. Lines and columns are counted from 1.

    `subject` is the kind and name of the object it is in, empty where the file is not YAML.
    """

    line: int
    column: int
    subject: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    """What one file holds for this driver."""

    configs: int
    findings: tuple[Finding, ...]


def check_manifest(text: str) -> FileReport:
    """Look at all configs in the text of a file."""
    configs = 0
    findings: list[Finding] = []
    try:
        for document in read_documents(text):
            for found in _configs(document.value, ()):
                configs += found.ours
                findings += (_finding(document, found, problem) for problem in _problems(found))
            for subject, wrongs in _node_configs(document):
                configs += 1
                findings += (_located_finding(subject, wrong) for wrong in wrongs)
    except BrokenManifestError as error:
        place = error.place
        findings.append(Finding(line=place.line, column=place.column, subject="", text=str(error)))
    return FileReport(configs=configs, findings=tuple(findings))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Config:
    subject: str
    path: Path
    driver: str
    parameters: object

    @property
    def ours(self) -> bool:
        return self.driver == DRIVER_NAME


def _configs(value: object, path: Path) -> Iterator[_Config]:
    """Yield the opaque configs of an object, or of the objects of a list."""
    for where, one in _objects(value, path):
        kind = str(one.get("kind"))
        if kind not in _CONFIGS or not str(one.get("apiVersion")).startswith("resource.k8s.io/"):
            continue
        entries = _at(one, _CONFIGS[kind])
        for index, entry in enumerate(entries if isinstance(entries, list) else []):
            opaque = _at(entry, ("opaque",))
            if isinstance(opaque, Mapping):
                yield _Config(
                    subject=_subject(one),
                    path=(*where, *_CONFIGS[kind], index, "opaque"),
                    driver=str(opaque.get("driver")),
                    parameters=opaque.get("parameters"),
                )


def _node_configs(document: Document) -> Iterator[tuple[str, Iterator[Wrong]]]:
    """Yield (subject, what is wrong) of each share config."""
    if is_node_config(document.value):
        yield "share config", wrong_in_document(document)
        return
    for where, one in _objects(document.value, ()):
        if one.get("kind") == "ConfigMap" and one.get("apiVersion") == "v1":
            for path, text in configs_of(one, where):
                yield _subject(one), wrong_in_text(document, path, text)


def _objects(value: object, path: Path) -> Iterator[tuple[Path, Mapping[str, object]]]:
    """Yield (path, object) of an object, or of the objects of a list."""
    if not isinstance(value, Mapping):
        return
    items = value.get("items")
    if str(value.get("kind")).endswith("List") and isinstance(items, list):
        for index, item in enumerate(items):
            yield from _objects(item, (*path, "items", index))
    else:
        yield path, value


def _subject(value: Mapping[str, object]) -> str:
    return f"{value.get('kind')} {_at(value, ('metadata', 'name')) or ''}".rstrip()


def _problems(config: _Config) -> Iterator[tuple[Path, str]]:
    """Yield (path below `opaque`, text) for all that is wrong with a config."""
    if not config.ours:
        yield from _wrong_driver(config)
        return
    try:
        decode(config.parameters)
    except InvalidConfigError as error:
        yield from (
            (("parameters", *problem.path), _located(problem)) for problem in error.problems
        )


def _located(problem: Problem) -> str:
    """Return a problem's text behind the path of the parameters, without saying a path twice."""
    begins_with_path = problem.path and problem.text.startswith(f"{dotted(problem.path)}: ")
    return f"parameters{'.' if begins_with_path else ': '}{problem.text}"


def _wrong_driver(config: _Config) -> Iterator[tuple[Path, str]]:
    """A config of ours under another driver's name would silently do nothing."""
    kind = str(_at(config.parameters, ("kind",)))
    if _at(config.parameters, ("apiVersion",)) == API_VERSION and not kind.startswith("Compute"):
        text = f'a {kind} for driver "{config.driver}" has no effect: write {DRIVER_NAME}'
        yield ("driver",), f"driver: {text}"


def _finding(document: Document, config: _Config, problem: tuple[Path, str]) -> Finding:
    path, text = problem
    place = document.place((*config.path, *path))
    where = dotted(config.path)
    return Finding(
        line=place.line, column=place.column, subject=config.subject, text=f"{where}.{text}"
    )


def _located_finding(subject: str, wrong: Wrong) -> Finding:
    place = wrong.place
    return Finding(line=place.line, column=place.column, subject=subject, text=wrong.text)


def _at(value: object, path: Path) -> object:
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
