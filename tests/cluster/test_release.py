"""Release downloads against a file server on loopback."""

import hashlib
import io
import tarfile
from pathlib import Path

import pytest
from cluster.errors import ChecksumError, SourceError
from cluster.progress import Progress
from cluster.release import Asset, Downloads

from file_server import FileServer

PROGRAM = b"#!/bin/sh\necho hello\n"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def downloads(timeout_s: float = 3.0) -> Downloads:
    return Downloads(progress=Progress(stream=io.StringIO()), timeout_s=timeout_s)


def program(server: FileServer) -> Asset:
    return Asset(name="tool", url=f"{server.url}/tool", checksum_url=f"{server.url}/tool.sha256")


def tar_of(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


@pytest.mark.parametrize("form", ["{hash}", "{hash}\n", "{hash}  tool\n", "{hash} *tool\n"])
def test_a_program_with_its_published_checksum_is_kept_as_executable(
    server: FileServer, tmp_path: Path, form: str
) -> None:
    server.files = {"/tool": PROGRAM, "/tool.sha256": form.format(hash=sha256(PROGRAM)).encode()}
    downloads().fetch(program(server), tmp_path)
    assert (tmp_path / "tool").read_bytes() == PROGRAM
    assert (tmp_path / "tool").stat().st_mode & 0o777 == 0o755
    assert [path.name for path in tmp_path.iterdir()] == ["tool"]


def test_a_wrong_checksum_keeps_nothing(server: FileServer, tmp_path: Path) -> None:
    server.files = {"/tool": PROGRAM, "/tool.sha256": sha256(b"other").encode()}
    with pytest.raises(ChecksumError, match="thrown away"):
        downloads().fetch(program(server), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_without_a_published_checksum_is_refused(server: FileServer, tmp_path: Path) -> None:
    server.files = {"/tool": PROGRAM, "/tool.sha256": f"{sha256(PROGRAM)}  other".encode()}
    with pytest.raises(SourceError, match="no SHA-256 checksum for tool"):
        downloads().fetch(program(server), tmp_path)
    assert "/tool" not in server.asked


def test_only_the_wanted_programs_are_taken_out_of_an_archive(
    server: FileServer, tmp_path: Path
) -> None:
    archive = tar_of({"./bin/ctr": b"ctr", "bin/containerd": b"containerd", "bin/stress": b"no"})
    server.files = {"/a.tar.gz": archive, "/a.sum": f"{sha256(archive)}  a.tar.gz".encode()}
    asset = Asset(
        name="containerd",
        url=f"{server.url}/a.tar.gz",
        checksum_url=f"{server.url}/a.sum",
        members={"bin/ctr": "ctr", "bin/containerd": "containerd"},
    )
    downloads().fetch(asset, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "ctr": b"ctr",
        "containerd": b"containerd",
    }
