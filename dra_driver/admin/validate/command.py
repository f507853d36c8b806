"""`dra-driver validate FILE…`: are these manifests right?

In: files, folders, or `-` for stdin. Out: a line per error or warning, `FILE:LINE:COLUMN: object:
what is wrong`, so that editors and CI find the place. It needs no node, no GPU and no cluster, and
does not repeat the checks of the API server.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec.structs import asdict

from dra_driver.admin.output import OUTPUT, Output, for_programs, is_for_programs
from dra_driver.admin.validate.findings import FileReport, check_manifest
from dra_driver.commands.command_line import FILE, CommandSettings, argument
from dra_driver.host.words import count

REST = "`kubectl apply --dry-run=server -f FILE` checks the other fields of these objects"
"""What is left to the API server."""

_SUFFIXES = (".yaml", ".yml", ".json")


class Validate(CommandSettings):
    """Check configs, and what concerns GPUs in claims, pods and classes, without a cluster."""

    example = "dra-driver validate manifests/ pod.yaml"
    statuses = ("no errors", "errors", "a file cannot be read")

    files: list[str] = argument(
        metavar=FILE,
        help="Manifests (YAML or JSON). Folders are searched; - reads stdin.",
    )
    output: Output = OUTPUT

    def cli_cmd(self) -> None:
        """Print the findings. Exits with status 1 for errors, 2 if a file cannot be read."""
        texts, unreadable = read_all(self.files)
        reports = {file: check_manifest(text) for file, text in texts.items()}
        errors = sum(report.errors for report in reports.values())
        if is_for_programs(self.output):
            sys.stdout.write(for_programs(_as_json(reports), self.output))
        else:
            sys.stdout.write(as_text(reports))
            if reports or not unreadable:
                looked_at = any(report.objects for report in reports.values())
                lines = (passed_over(reports), REST if looked_at else "", summary(reports))
                sys.stderr.write("".join(f"{line}\n" for line in lines if line))
        if errors or unreadable:
            raise SystemExit(1 if errors else 2)


def read_all(names: Iterable[str]) -> tuple[dict[str, str], bool]:
    """Return the texts of manifests by file, and whether some could not be read."""
    texts: dict[str, str] = {}
    unreadable = False
    for name in names:
        try:
            texts.update(read_manifests(name))
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            sys.stderr.write(f"error: {name} cannot be read: {reason}\n")
            unreadable = True
    return texts, unreadable


def read_manifests(name: str) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of a file, of each manifest in a folder, or of stdin.

    Raises OSError if one cannot be read, UnicodeDecodeError if it is not UTF-8.
    """
    if name == "-":
        yield "<stdin>", sys.stdin.read()
        return
    path = Path(name)
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    for file in files:
        if file == path or (file.suffix in _SUFFIXES and file.is_file()):
            yield str(file), file.read_text(encoding="utf-8")


def summary(reports: dict[str, FileReport]) -> str:
    """Return one line with how much was checked: checking nothing is not success."""
    configs = sum(report.configs for report in reports.values())
    errors = sum(report.errors for report in reports.values())
    objects = sum(report.objects for report in reports.values())
    warnings = sum(len(report.findings) for report in reports.values()) - errors
    counted = f"{count(objects, 'object')} and {count(configs, 'config')}"
    found = count(errors, "error") if errors else "no errors"
    more = f", {count(warnings, 'warning')}" if warnings else ""
    return f"{counted} in {count(len(reports), 'file')}: {found}{more}"


def passed_over(reports: Mapping[str, FileReport]) -> str:
    """Return one line that names the kinds of the objects that were not checked."""
    kinds = Counter(kind for report in reports.values() for kind in report.others)
    if not kinds:
        return ""
    named = ", ".join(f"{kind} ({n})" if n > 1 else kind for kind, n in sorted(kinds.items()))
    return f"{count(kinds.total(), 'object')} not checked: {named}"


def as_text(reports: Mapping[str, FileReport]) -> str:
    """Return a line for each finding, with its place."""
    return "".join(
        f"{name}:{fault.line}:{fault.column}: {'warning: ' if fault.severity == 'warning' else ''}"
        f"{f'{fault.subject}: ' if fault.subject else ''}{fault.text}\n"
        for name, report in reports.items()
        for fault in report.findings
    )


def _as_json(reports: dict[str, FileReport]) -> str:
    by_severity: dict[str, list[dict[str, object]]] = {"error": [], "warning": []}
    for name, report in reports.items():
        for finding in report.findings:
            fields = asdict(finding)
            by_severity[fields.pop("severity")].append({"file": name, **fields})
    counts = {
        "configs": sum(report.configs for report in reports.values()),
        "objects": sum(report.objects for report in reports.values()),
        "others": [kind for report in reports.values() for kind in report.others],
    }
    result = {**counts, "errors": by_severity["error"], "warnings": by_severity["warning"]}
    return json.dumps(result, indent=2, ensure_ascii=False) + "\n"
