"""What every released version has kept on disk is read, and no kind of file is forgotten."""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from release import changelog

from dra_driver.claims.state.records import stored_records
from kept_files import CLAIMS, FOLDER, KINDS, REPOSITORY, Kind, main, version, write_all

DRIVER = REPOSITORY / "dra_driver"
VERSIONS = sorted(path.name for path in FOLDER.iterdir())

WRITERS = {"write_whole", "write_file"}
OTHERS = {
    "cdi/store.py": "CDI specs: read by container runtimes, written again from claims' records",
    "claims/state/records.py": "records of claims, as claims/model/record.py puts them together",
    "claims/state/locks.py": "locks: without content",
    "claims/takeover/take_over.py": "NVIDIA's checkpoint, without the claims that were taken over",
    "claims/prepare/device_metadata.py": "for containers: written again from records, not read",
    "bench/scratch.py": "marks of scratch folders: true while they are locked",
    "kubelet/rivals.py": "when the kubelet registered which driver: true while that one listens",
    "admin/gather/command.py": "archives, whose form has a version of its own",
    "host/files.py": "how every file is written",
    "mps/files.py": "how every file of MPS is written",
    "host/ofd_lock.py": "the supervisor's lock: what it says is true while it is held",
    "host/process.py": "stacks of threads, for people",
    "mps/requests.py": "MPS domains that are wanted, as mps/domain.py puts them together",
    "mps/supervisor/domain_worker.py": "the supervisor's answers, as mps/domain.py has them",
}
"""Modules that write files which no sample is for, and why."""


def names(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def of(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.partition("-")[0].split(".")))


@cache
def modules() -> dict[str, list[ast.AST]]:
    """The nodes of each module."""
    return {
        str(path.relative_to(DRIVER)): list(ast.walk(ast.parse(path.read_text())))
        for path in DRIVER.rglob("*.py")
        if path.relative_to(DRIVER).parts[0] != "simulator"
    }


def calls(nodes: list[ast.AST], wanted: set[str]) -> int:
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    return sum(getattr(one, "id", getattr(one, "attr", "")) in wanted for one in called)


def creates(nodes: list[ast.AST]) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr == "O_CREAT" for node in nodes)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("released", VERSIONS)
def test_what_a_version_has_kept_is_read_as_it_was_meant(released: str, kind: Kind) -> None:
    if kind.since <= of(released):
        assert kind.read(FOLDER / released) == kind.value


@pytest.mark.parametrize("released", VERSIONS)
def test_no_record_of_a_version_is_taken_for_damaged(released: str) -> None:
    found = stored_records(FOLDER / released)
    assert (found.damaged, len(found.records)) == ({}, len(CLAIMS))


def test_until_its_release_a_versions_samples_are_what_it_writes(tmp_path: Path) -> None:
    sections = changelog.sections((REPOSITORY / "CHANGELOG.md").read_text())
    written, kept = tmp_path, FOLDER / version()
    write_all(written)
    if version() not in {section.title.split(" ")[0] for section in sections}:
        assert names(written) == names(kept)
    for kind in KINDS:
        assert kind.read(written) == kind.value


def test_every_file_that_is_sealed_has_a_sample() -> None:
    found = {name: calls(nodes, {"seal"}) for name, nodes in modules().items()}
    sealed = {name: count for name, count in found.items() if count}
    sampled = Counter(kind.writer for kind in KINDS)
    assert {name: sampled[name] for name in sealed} == sealed


def test_every_module_that_writes_files_has_a_sample_or_a_reason() -> None:
    writing = {name for name, nodes in modules().items() if calls(nodes, WRITERS) or creates(nodes)}
    unsampled = writing - {kind.writer for kind in KINDS}
    assert sorted(unsampled) == sorted(OTHERS)


def test_a_folder_that_is_there_is_not_written_again(capsys: pytest.CaptureFixture[str]) -> None:
    before = names(FOLDER)
    assert main() == 1
    assert "is there; if 0.1.0 was not released yet, delete it first" in capsys.readouterr().err
    assert names(FOLDER) == before
