"""Archives of nodes: what is written is read back, and nothing hostile is believed."""

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.admin.gather.reading import pack
from dra_driver.errors import StateError, VersionError
from dra_driver.simulator import archive

TEXT = "gpus: []\n"
DOCUMENTS = {"nvml.json": {"gpus": []}, "log.json": ["Zürich"], archive.PROFILE: TEXT}
ABOUT = {"dra-driver": "1.2.3", "missing": []}


@pytest.fixture
def file(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(data: bytes) -> Path:
        path = tmp_path / "node.tar.gz"
        path.write_bytes(data)
        return path

    return write


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as writer:
        for member, data in members:
            writer.addfile(member, io.BytesIO(data))
    return gzip.compress(packed.getvalue())


def plain(name: str, data: bytes, **changes: object) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    for key, value in changes.items():
        setattr(member, key, value)
    return member, data


def manifest(**changes: object) -> tuple[tarfile.TarInfo, bytes]:
    content = {"format": archive.FORMAT, "version": archive.VERSION, **changes}
    return plain(archive.MANIFEST, json.dumps(content).encode())


def test_the_profile_is_read_as_it_was_written(file: Callable[[bytes], Path]) -> None:
    assert archive.profile_in(file(pack(ABOUT, DOCUMENTS))) == TEXT


def test_the_manifest_comes_first_without_its_author() -> None:
    data = pack(ABOUT, DOCUMENTS)
    assert data == pack(ABOUT, DOCUMENTS)
    with tarfile.open(fileobj=io.BytesIO(data)) as reader:
        assert reader.getnames() == [archive.MANIFEST, *sorted(DOCUMENTS)]
        assert {(one.mtime, one.uid, one.mode) for one in reader} == {(0, 0, 0o644)}


def test_an_archive_of_a_newer_form_says_so(file: Callable[[bytes], Path]) -> None:
    path = file(tar(manifest(version=archive.VERSION + 1)))
    with pytest.raises(VersionError, match=r"has format version 2.*use the dra-driver that"):
        archive.profile_in(path)


BOMB = gzip.compress(bytes(archive._MOST_UNPACKED + 1))
SMALL = b"{}"
ZEROS = str(3 << 30)  # of which the archive has none
OF_PAX = {"GNU.sparse.map": f"{ZEROS},0", "GNU.sparse.size": ZEROS}
LINK = {"type": tarfile.SYMTYPE, "linkname": "/etc/shadow"}
SOUND = pack(ABOUT, DOCUMENTS)
WRONG = {
    "nothing": (b"", "cannot be used"),
    "no gzip": (b"PK\3\4 is a zip", "cannot be read: Not a gzipped file"),
    "no tar": (gzip.compress(b"hello" * 400), "its manifest.json is missing|truncated|invalid"),
    "cut off": (SOUND[:-40], "cannot be used"),
    "damaged": (SOUND[:200] + b"\0" * 8 + SOUND[208:], "cannot be used|cannot be read"),
    "a bomb": (BOMB, "unpacks to more than 64 MiB"),
    "a bomb of a sparse file": (
        tar(plain("nvml.json", b"", pax_headers=OF_PAX)),
        "is not a plain file|is cut off",
    ),
    "too long": (bytes(archive._MOST_PACKED + 1), "more than 8 MiB"),
    "no manifest": (tar(plain("nvml.json", SMALL)), "its manifest.json is missing"),
    "another program's": (tar(manifest(format="other")), "not written by `dra-driver gather`"),
    "a manifest that is a list": (tar(plain("manifest.json", b"[]")), "not written by `dra-driver"),
    "deep JSON": (tar(plain("manifest.json", b"[" * 99999)), "not written by `dra-driver gather`"),
    "a version that is none": (tar(manifest(version="1")), "is not a number"),
    "no profile": (tar(manifest()), "it has no profile.yaml.*gather it again"),
    "a profile that is no text": (
        tar(manifest(), plain("profile.yaml", b"\xff\xfe")),
        "cannot be used: 'utf-8'",
    ),
    "a path out of it": (
        tar(plain("../../etc/cron.d/x", SMALL)),
        "is not the name of a gathered file",
    ),
    "an absolute path": (tar(plain("/etc/passwd", SMALL)), "is not the name of a gathered file"),
    "a link": (tar(plain("profile.yaml", b"", **LINK)), "is not a plain file"),
    "a hard link": (
        tar(plain("nvml.json", b"", type=tarfile.LNKTYPE, linkname="manifest.json")),
        "is not a plain file",
    ),
    "a device": (tar(plain("nvml.json", b"", type=tarfile.CHRTYPE)), "is not a plain file"),
    "a folder": (tar(plain("nvml.json", b"", type=tarfile.DIRTYPE)), "is not a plain file"),
    "twice": (tar(plain("nvml.json", SMALL), plain("nvml.json", SMALL)), "is there twice"),
    "too many": (
        tar(*(plain(f"{chr(97 + n // 26)}{chr(97 + n % 26)}.json", SMALL) for n in range(40))),
        "more than 32 files",
    ),
}


@pytest.mark.parametrize(("data", "reason"), WRONG.values(), ids=WRONG)
def test_an_unsound_archive_is_refused_with_the_reason(
    data: bytes, reason: str, file: Callable[[bytes], Path]
) -> None:
    path = file(data)
    with pytest.raises(StateError, match=reason) as caught:
        archive.profile_in(path)
    assert str(path) in str(caught.value)
