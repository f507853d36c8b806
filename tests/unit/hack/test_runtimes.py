"""The table of container runtimes on a page, and what of a report it says."""

from pathlib import Path

import pytest
import runtimes


def test_every_test_that_it_runs_exists() -> None:
    for name in runtimes.TESTS:
        path, *words = name.split("::")
        text = (runtimes.REPOSITORY / "tests/e2e" / path).read_text()
        assert all(f"{word}(" in text or f"class {word}:" in text for word in words), name


@pytest.mark.parametrize("version", ["1.21", "1.1.5"])
def test_it_names_a_programs_own_version(tmp_path: Path, version: str) -> None:
    program = tmp_path / "crun"
    program.write_text(f"#!/bin/sh\necho crun version {version}; echo spec: 1.0.0\n")
    program.chmod(0o755)
    assert runtimes.version_of(program) == version
