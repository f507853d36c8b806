"""What the manifests of some files become: text for kubectl, and what was lost, with its place.

In: texts by the names of their files. Out: one text of YAML. A document that needs no change is
printed as it is; one that changes is written from its values, without its comments. Everything is
checked as by `validate`, so that nothing that a cluster refuses is printed without a message.
"""

import re
from collections.abc import Iterator, Mapping

import yaml
from msgspec import Struct

from dra_driver.admin.convert import claims, pods
from dra_driver.admin.convert.outcome import SPECS, VERSION, Object, Outcome, loss
from dra_driver.admin.of_others import left
from dra_driver.admin.output import yaml_text
from dra_driver.admin.validate.findings import (
    FileReport,
    Finding,
    check_manifest,
    of_problem,
    subject_of,
)
from dra_driver.admin.validate.objects import (
    NO_KIND,
    OLD_CONFIGS,
    doubled,
    is_list,
    is_looked_at,
    is_of_devices,
    is_without_devices,
    name_of_kind,
    objects_of,
)
from dra_driver.kube.fields import text
from dra_driver.kube.manifest import BrokenManifestError, Document, read_documents
from resource_nvidia_com.problems import Path

_CREATED = ("PodSchedulingContext", "ResourceSlice")
"""Kinds that clusters and drivers create; those of older versions are left out."""

_BY_CLUSTER = "left out: a driver or the cluster creates it: remove it from the manifests"
_OTHERS = (
    "unchanged: this driver has no such kind; if it is for NVIDIA's compute domains, see the "
    "documentation of that driver"
)
_PLAIN = re.compile(r"[A-Za-z/]([A-Za-z0-9_./:@-]*[A-Za-z0-9/])?|[0-9]+[KMGT]i")
_WORDS = frozenset({"yes", "no", "on", "off", "true", "false", "null", "y", "n"})


class Converted(Struct, frozen=True, kw_only=True):
    """What is printed, what was lost, by file, and whether claims ask for parts by capacity."""

    text: str
    has_parts: bool
    reports: Mapping[str, FileReport]


def convert(files: Mapping[str, str]) -> Converted:
    """Convert the documents of some files, which may refer to each other."""
    documents: dict[str, list[Document]] = {}
    findings: dict[str, list[Finding]] = {name: [] for name in files}
    others: dict[str, list[str]] = {name: [] for name in files}
    for name, content in files.items():
        try:
            documents[name] = list(read_documents(content))
        except BrokenManifestError as error:
            findings[name].append(Finding.at(error.place, str(error)))
    run = _Run([document for own in documents.values() for document in own])
    printed: list[str] = []
    for name, of_file in documents.items():
        for document in of_file:
            printed += run.printed(document, findings[name], others[name])
    reports = {}
    for name, lost in findings.items():
        lost.sort(key=lambda finding: (finding.line, finding.column))
        reports[name] = FileReport(others=tuple(others[name]), findings=tuple(lost))
    return Converted(text="---\n".join(printed), has_parts=run.templates.has_parts, reports=reports)


class _Run:
    """Converts documents one by one, knowing all of them."""

    def __init__(self, documents: list[Document]) -> None:
        values = [value for document in documents for _, value in objects_of(document.value)]
        self.templates = pods.Templates(
            taken={
                (text(value, "metadata", "namespace"), text(value, "metadata", "name"))
                for value in values
                if value.get("kind") == "ResourceClaimTemplate"
            }
        )

    def printed(self, document: Document, findings: list[Finding], others: list[str]) -> list[str]:
        """Return the texts that replace a document; add what is lost, and kinds not looked at."""
        objects: list[Object] = []
        is_changed = False
        for where, value in objects_of(document.value):
            outcome = self._outcome(value)
            objects += outcome.objects
            findings += (of_problem(document, value, where, loss) for loss in outcome.losses)
            is_kept = outcome.objects == (value,)
            if is_kept and not outcome.losses and not is_looked_at(value):
                others.append(name_of_kind(value))
            is_changed |= not is_kept
            if not (is_kept and outcome.losses):
                findings += _refused(document, value, where, outcome.objects)
        if not is_changed:
            return [as_written(document).removesuffix("\n") + "\n"]
        if is_list(document.value) and objects:
            return [_written({"apiVersion": "v1", "kind": "List", "items": objects})]
        return [_written(each) for each in objects]

    def _outcome(self, value: Object) -> Outcome:
        version, kind = str(value.get("apiVersion")), str(value.get("kind"))
        if not value.get("kind"):
            return Outcome(objects=(value,), losses=(NO_KIND,))
        if is_without_devices(version, kind):
            return Outcome(objects=(value,))  # the cluster refuses it
        if version.partition("/")[0] == OLD_CONFIGS.partition("/")[0]:
            return Outcome(objects=(value,), losses=(loss(("kind",), _OTHERS),))
        if is_of_devices(value):
            if kind in _CREATED and version != VERSION:
                return Outcome(losses=(loss(("kind",), _BY_CLUSTER),))
            return claims.convert(value) if kind in SPECS else Outcome(objects=(value,))
        converted = pods.convert(value, self.templates)
        return converted or Outcome(objects=(value,), losses=tuple(left(value)))


def _refused(
    document: Document, value: Object, where: Path, written: tuple[Object, ...]
) -> Iterator[Finding]:
    """Yield what a cluster would refuse in an object's replacement."""
    for problem in doubled(value):
        yield of_problem(document, value, where, problem)
    for made in written:
        for finding in check_manifest(_written(made)).findings:
            if finding.severity == "error":
                said = f"as it is printed: {finding.text}"
                yield Finding.at(document.place(where), said, subject_of(value))


def _written(value: Object) -> str:
    return yaml_text(value, width=10_000, dumper=_Dumper)


class _Dumper(yaml.SafeDumper):
    """Writes strings that every YAML reader reads as strings, and no aliases."""

    def ignore_aliases(self, _data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    style = "|" if "\n" in value else '"'
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        style = ""
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style or None)


_Dumper.add_representer(str, _text)
_Dumper.add_multi_representer(dict, yaml.SafeDumper.represent_dict)


def as_written(document: Document) -> str:
    """Return a document as written, without what comes before its first value."""
    node = document.find(())[1]
    begin, end = node.start_mark, node.end_mark
    indent = document.written[begin.index - begin.column : begin.index]
    return ("" if indent.strip() else indent) + document.written[begin.index : end.index]
