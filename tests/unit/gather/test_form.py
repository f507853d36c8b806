"""The form of archives: what is written is read back, and nothing hostile is believed."""

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from dra_driver import gathered
from dra_driver.errors import StateError, VersionError

DOCUMENTS = {gathered.NVML: {"gpus": []}, gathered.LOG: ["Zürich"], gathered.CONFIG: {}}
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


def manifest(members: dict[str, bytes], **changes: object) -> tuple[tarfile.TarInfo, bytes]:
    listed = {name: {"sha256": sha256(data).hexdigest()} for name, data in members.items()}
    content = {"format": gathered.FORMAT, "version": gathered.VERSION, "files": listed, **changes}
    return plain(gathered.MANIFEST, json.dumps(content).encode())


def test_what_is_packed_is_unpacked(file: Callable[[bytes], Path]) -> None:
    found = gathered.unpack(file(gathered.pack(ABOUT, DOCUMENTS)))
    assert found.documents == DOCUMENTS
    assert found.manifest["dra-driver"] == "1.2.3"


def test_the_manifest_comes_first_and_has_sizes_and_checksums() -> None:
    data = gathered.pack(ABOUT, DOCUMENTS)
    with tarfile.open(fileobj=io.BytesIO(data)) as reader:
        assert reader.getnames() == [gathered.MANIFEST, *sorted(DOCUMENTS)]
        members = {one.name: reader.extractfile(one).read() for one in reader}  # type: ignore[union-attr]
        assert {(one.mtime, one.uid, one.mode) for one in reader} == {(0, 0, 0o644)}
    listed = json.loads(members.pop(gathered.MANIFEST))["files"]
    assert listed == {
        name: {"bytes": len(data), "sha256": sha256(data).hexdigest()}
        for name, data in members.items()
    }


def test_an_archive_of_a_newer_form_says_so(file: Callable[[bytes], Path]) -> None:
    path = file(tar(manifest({}, version=gathered.VERSION + 1)))
    with pytest.raises(VersionError, match=r"has format version 2.*use the dra-driver that"):
        gathered.unpack(path)


BOMB = gzip.compress(bytes(gathered._MOST_UNPACKED + 1))
SMALL = b"{}"
ZEROS = str(3 << 30)  # of which the archive has none
OF_PAX = {"GNU.sparse.map": f"{ZEROS},0", "GNU.sparse.size": ZEROS}
LINK = {"type": tarfile.SYMTYPE, "linkname": "/etc/shadow"}
WRONG = {
    "nothing": (b"", "it is cut off"),
    "no gzip": (b"PK\3\4 is a zip", "incorrect header check"),
    "no tar": (gzip.compress(b"hello" * 400), "it has no manifest.json|truncated|invalid header"),
    "cut off": (gathered.pack(ABOUT, DOCUMENTS)[:-40], "cut off|incomplete"),
    "damaged": (
        gathered.pack(ABOUT, DOCUMENTS)[:200] + b"\0" * 8 + gathered.pack(ABOUT, DOCUMENTS)[208:],
        "cannot be used",
    ),
    "two of them": (gathered.pack(ABOUT, DOCUMENTS) * 2, "something follows its end"),
    "a bomb": (BOMB, "unpacks to more than 64 MiB"),
    "a bomb of a sparse file": (
        tar(plain("nvml.json", b"", pax_headers=OF_PAX)),
        "is not a plain file|is cut off",
    ),
    "too long": (bytes(gathered._MOST_PACKED + 1), "more than 8 MiB"),
    "no manifest": (tar(plain("nvml.json", SMALL)), "it has no manifest.json"),
    "another program's": (tar(manifest({}, format="other")), "of another program"),
    "a manifest that is a list": (tar(plain("manifest.json", b"[]")), "of another program"),
    "a version that is none": (tar(manifest({}, version="1")), "is not a number"),
    "files that are none": (tar(manifest({}, files=["nvml.json"])), "are not those that its"),
    "a file that is not listed": (
        tar(manifest({}), plain("nvml.json", SMALL)),
        "its files are not those that its manifest.json lists",
    ),
    "a file that lacks": (tar(manifest({"nvml.json": SMALL})), "its files are not those"),
    "another content": (
        tar(manifest({"nvml.json": b"[]"}), plain("nvml.json", SMALL)),
        "the checksum of nvml.json does not match",
    ),
    "no JSON": (
        tar(manifest({"nvml.json": b"{"}), plain("nvml.json", b"{")),
        "nvml.json is not valid JSON",
    ),
    "deep JSON": (
        tar(manifest({"nvml.json": b"[" * 99999}), plain("nvml.json", b"[" * 99999)),
        r"nvml.json is not valid JSON \(RecursionError\)",
    ),
    "a path out of it": (
        tar(plain("../../etc/cron.d/x", SMALL)),
        "is not the name of a gathered file",
    ),
    "an absolute path": (tar(plain("/etc/passwd", SMALL)), "is not the name of a gathered file"),
    "a link": (tar(plain("nvml.json", b"", **LINK)), "is not a plain file"),
    "a hard link": (
        tar(plain("nvml.json", b"", type=tarfile.LNKTYPE, linkname="manifest.json")),
        "is not a plain file",
    ),
    "a device": (tar(plain("nvml.json", b"", type=tarfile.CHRTYPE)), "is not a plain file"),
    "a folder": (tar(plain("nvml.json", b"", type=tarfile.DIRTYPE)), "is not a plain file"),
    "twice": (tar(plain("nvml.json", SMALL), plain("nvml.json", SMALL)), "is in it twice"),
    "too many": (
        tar(*(plain(f"{chr(97 + n // 26)}{chr(97 + n % 26)}.json", SMALL) for n in range(40))),
        "more than 32 files",
    ),
}


@pytest.mark.parametrize(("data", "reason"), WRONG.values(), ids=WRONG)
def test_what_is_no_sound_archive_is_refused_with_the_reason(
    data: bytes, reason: str, file: Callable[[bytes], Path]
) -> None:
    path = file(data)
    with pytest.raises(StateError, match=reason) as caught:
        gathered.unpack(path)
    assert str(path) in str(caught.value)
