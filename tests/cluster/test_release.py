"""Release downloads against a file server on loopback."""

import hashlib
import io
import socket
import tarfile
from pathlib import Path

import pytest
from cluster.errors import ChecksumError, SourceError, UnreachableError
from cluster.progress import Progress
from cluster.release import Asset, Downloads, assets
from cluster.versions import resolve

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
    server.files = {
        "/tool": PROGRAM,
        "/tool.sha256": form.format(hash=sha256(PROGRAM)).encode(),
    }
    downloads().fetch(program(server), tmp_path)
    assert (tmp_path / "tool").read_bytes() == PROGRAM
    assert (tmp_path / "tool").stat().st_mode & 0o777 == 0o755
    assert [path.name for path in tmp_path.iterdir()] == ["tool"]


def test_the_line_of_the_file_counts_among_the_checksums_of_many(
    server: FileServer, tmp_path: Path
) -> None:
    sums = f"{sha256(b'other')}  other\n{sha256(PROGRAM)}  ./tool\n"
    server.files = {"/tool": PROGRAM, "/tool.sha256": sums.encode()}
    downloads().fetch(program(server), tmp_path)
    assert (tmp_path / "tool").exists()


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


def test_a_missing_file_says_what_the_server_answered(server: FileServer, tmp_path: Path) -> None:
    server.files = {"/tool.sha256": sha256(PROGRAM).encode()}
    with pytest.raises(SourceError, match="answered 404"):
        downloads().fetch(program(server), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_transfer_that_breaks_off_keeps_nothing(server: FileServer, tmp_path: Path) -> None:
    server.files = {"/tool": PROGRAM, "/tool.sha256": sha256(PROGRAM).encode()}
    server.truncated = {"/tool"}
    with pytest.raises(SourceError, match=f"broke off after {len(PROGRAM) // 2} of"):
        downloads().fetch(program(server), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_refuses_is_asked_only_once(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        asset = Asset(name="tool", url=f"{url}/tool", checksum_url=f"{url}/tool.sha256")
        several = downloads()
        with pytest.raises(UnreachableError, match="refused"):
            several.fetch(asset, tmp_path)
        # Now somebody listens, but the server was noted as silent.
        closed.listen()
        with pytest.raises(UnreachableError, match="cannot be reached"):
            several.fetch(asset, tmp_path)


def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    with socket.socket() as silent:
        # A full backlog: further connections are neither accepted nor refused.
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        address = silent.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        url = f"http://127.0.0.1:{address[1]}"
        asset = Asset(name="tool", url=f"{url}/tool", checksum_url=f"{url}/tool.sha256")
        with pytest.raises(UnreachableError, match="timed out"):
            downloads(timeout_s=0.3).fetch(asset, tmp_path)
        for filler in fillers:
            filler.close()


def test_an_unknown_host_is_unreachable(tmp_path: Path) -> None:
    # .invalid never resolves (RFC 6761).
    url = "http://release.invalid"
    asset = Asset(name="tool", url=f"{url}/tool", checksum_url=f"{url}/tool.sha256")
    with pytest.raises(UnreachableError, match=r"release\.invalid"):
        downloads().fetch(asset, tmp_path)


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


@pytest.mark.parametrize(
    "content", [tar_of({"bin/other": b""}), b"no archive"], ids=["another", "none"]
)
def test_an_archive_that_lacks_a_program_is_refused(
    server: FileServer, tmp_path: Path, content: bytes
) -> None:
    server.files = {"/a.tar.gz": content, "/a.sum": sha256(content).encode()}
    asset = Asset(
        name="containerd",
        url=f"{server.url}/a.tar.gz",
        checksum_url=f"{server.url}/a.sum",
        members={"bin/ctr": "ctr"},
    )
    with pytest.raises(SourceError, match=r"holds no bin/ctr|not a readable archive"):
        downloads().fetch(asset, tmp_path)


def test_kubernetes_comes_from_its_own_server_and_the_rest_from_github() -> None:
    versions = resolve("1.37")
    urls = {
        group: [asset.url for asset in assets(group, versions, {})]
        for group in ("kubernetes", "containerd", "runc", "etcd", "cni")
    }
    folder = f"https://dl.k8s.io/release/v{versions.kubernetes}/bin/linux/{versions.arch}"
    assert f"{folder}/kubelet" in urls["kubernetes"]
    assert len(urls["kubernetes"]) == 5
    assert all(
        found[0].startswith("https://github.com/")
        for group, found in urls.items()
        if group != "kubernetes"
    )


def test_an_empty_address_switches_a_source_off() -> None:
    env = {"KUBE_RELEASE_URL": "", "GITHUB_RELEASE_URL": ""}
    assert assets("kubernetes", resolve("1.37"), env) == []
    assert assets("etcd", resolve("1.37"), env) == []
