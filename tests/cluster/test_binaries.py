"""Where programs are found, in which order, and when a folder of the cache counts."""

import hashlib
import io
import json
from pathlib import Path

import pytest
from cluster.binaries import GROUPS, MARKER, Store, is_complete
from cluster.errors import BinariesUnavailableError
from cluster.progress import Progress
from cluster.versions import (
    ALLOCATOR_GO_MOD,
    DEFAULT_MINOR,
    DRA_MODULE,
    GO_MOD_FILES,
    METADATA_GO_MODS,
    pinned,
    resolve,
)

from file_server import FileServer

VERSIONS = resolve("1.37")
PROGRAM = b"#!/bin/sh\necho hello\n"


def store(cache: Path, **env: str) -> Store:
    return Store(cache=cache, env=env, progress=Progress(stream=io.StringIO()))


def fill(folder: Path, names: tuple[str, ...], content: bytes = PROGRAM) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o755)


def mark(folder: Path) -> None:
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    (folder / MARKER).write_text(json.dumps({"source": "test", "files": sizes}))


def serve_kubernetes(server: FileServer, content: bytes = PROGRAM) -> None:
    folder = f"/v{VERSIONS.kubernetes}/bin/linux/{VERSIONS.arch}"
    for name in GROUPS["kubernetes"]:
        server.files[f"{folder}/{name}"] = content
        server.files[f"{folder}/{name}.sha256"] = hashlib.sha256(content).hexdigest().encode()


@pytest.mark.parametrize("damage", ["shorter", "gone", "not executable", "marker"])
def test_a_damaged_folder_is_not_complete(tmp_path: Path, damage: str) -> None:
    fill(tmp_path, ("runc",))
    mark(tmp_path)
    program = tmp_path / "runc"
    if damage == "shorter":
        program.write_bytes(PROGRAM[:5])
    elif damage == "gone":
        program.unlink()
    elif damage == "not executable":
        program.chmod(0o644)
    else:
        (tmp_path / MARKER).write_text('{"files": [')
    assert not is_complete(tmp_path)


def test_what_was_downloaded_is_taken_from_the_cache_the_next_time(
    server: FileServer, tmp_path: Path
) -> None:
    serve_kubernetes(server)
    env = {"KUBE_RELEASE_URL": server.url}
    first = store(tmp_path, **env).fetch(VERSIONS, ["kubernetes"])
    asked = len(server.asked)
    again = store(tmp_path, **env).fetch(VERSIONS, ["kubernetes"])
    assert first == again
    assert len(server.asked) == asked == 10
    assert again.path("kubectl").read_bytes() == PROGRAM


@pytest.mark.parametrize(
    ("minor", "go_mod"), [(DEFAULT_MINOR, ALLOCATOR_GO_MOD), *METADATA_GO_MODS.items()], ids=str
)
def test_kubernetes_libraries_are_of_the_release_that_clusters_run(
    minor: str, go_mod: Path
) -> None:
    assert f"1.{pinned(go_mod, DRA_MODULE).removeprefix('0.')}" == pinned(
        GO_MOD_FILES[minor], "k8s.io/kubernetes"
    )


def test_a_program_that_does_not_start_is_refused(server: FileServer, tmp_path: Path) -> None:
    serve_kubernetes(server, content=b"\x7fELF of another processor")
    env = {
        "KUBE_RELEASE_URL": server.url,
        "PATH": str(tmp_path),
        "PIP_NO_INDEX": "1",
        "GOPROXY": "off",
        "GOMODCACHE": str(tmp_path / "modules"),
        "GOCACHE": str(tmp_path / "build"),
    }
    with pytest.raises(BinariesUnavailableError, match="does not run on this machine"):
        store(tmp_path / "cache", **env).fetch(VERSIONS, ["kubernetes"])
