"""crun out of Debian's source: what it is compiled with, and what is said where it cannot be."""

import tarfile
from pathlib import Path

import pytest
from cluster.errors import SourceError

from cluster import crun, debian

CONFIGURE = """#!/bin/sh
for word; do case $word in LDFLAGS=-L*) ls "${word#LDFLAGS=-L}" ;; esac; done >made-with
"""
MAKEFILE = "git-version.h:\n\ttrue\ncrun:\n\t(echo '#!/bin/sh'; cat made-with) >crun\n"


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of what Debian has: a source of a few lines, and libraries without code."""
    made = tmp_path / "crun-1"
    made.mkdir()
    (made / "configure").write_text(CONFIGURE)
    (made / "configure").chmod(0o755)
    (made / "Makefile").write_text(MAKEFILE)

    def source(_package: str, _release: str, folder: Path, _cache: Path) -> Path:
        archive = folder / "crun.orig.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(made, "crun-1")
        return archive

    def unpack(package: str, root: Path, _cache: Path) -> None:
        libraries = root / "usr/lib/some-linux-gnu"
        libraries.mkdir(parents=True, exist_ok=True)
        name = package.removesuffix("-dev")
        (libraries / f"{name}{'_s' if name == 'libyajl' else ''}.a").touch()
        (libraries / f"{name}.so").symlink_to(f"{name}.so.1")

    monkeypatch.setattr(debian, "source", source)
    monkeypatch.setattr(debian, "unpack", unpack)
    return tmp_path


def test_it_finds_only_libraries_that_become_part_of_it(scratch: Path) -> None:
    crun.bring(scratch, scratch)
    words = (scratch / "crun").read_text().split()
    assert words == ["#!/bin/sh", "libcap.a", "libjson-c.a", "libseccomp.a", "libyajl.a"]
    assert {path.name for path in scratch.iterdir()} == {"crun", "crun-1"}


def test_what_the_compiler_found_wrong_is_told(scratch: Path) -> None:
    makefile = "git-version.h:\n\techo a.h:1: error: no such file >&2; false"
    (scratch / "crun-1" / "Makefile").write_text(makefile)
    with pytest.raises(SourceError, match=r"make git-version.h .* a.h:1: error: no .*e$"):
        crun.bring(scratch, scratch)


def test_a_missing_tool_is_named(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(scratch))
    with pytest.raises(SourceError, match="compiled with cc, make, pkg-config, not found"):
        crun.bring(scratch, scratch)
