"""Image archives: one image layout of OCI in a tar.

In: a layout in a folder, as buildah writes it, or an archive by any builder, also with several
architectures. Out: an archive that containerd imports under the image's name, byte for byte the
same for the same layout; or the root file system of each image in an archive, with all layers
applied.
"""

import hashlib
import io
import json
import posixpath
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

_NAME = "io.containerd.image.name"
_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_HIDDEN = ".wh."
_ALL_HIDDEN = ".wh..wh..opq"


class ImageError(Exception):
    """The text says what failed with an image, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One path of an image's root file system; a hard link counts as its target."""

    info: tarfile.TarInfo
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One image of an archive.

    Attributes:
        arch: the architecture it is for, as Go names it.
        config: how it is run: user, environment, entry point, labels.
        download: bytes of its layers in a registry.
        members: its root file system by path, without the leading slash.
    """

    arch: str
    config: Mapping[str, Any]
    download: int
    members: Mapping[str, Member]


def write(layout: Path, archive: Path, name: str) -> None:
    """Write an image layout with one image as an archive, under a name.

    Raises ImageError if the layout has none, or several.
    """
    index = json.loads((layout / "index.json").read_text())
    if len(index["manifests"]) != 1:
        raise ImageError(f"{layout} holds {len(index['manifests'])} images, not one")
    (manifest,) = index["manifests"]
    manifest["annotations"] = {_NAME: name, "org.opencontainers.image.ref.name": name}
    with archive.open("wb") as out, tarfile.open(fileobj=out, mode="w") as tar:
        _add(tar, "oci-layout", (layout / "oci-layout").read_bytes())
        _add(tar, "index.json", json.dumps(index, sort_keys=True).encode())
        for blob in sorted((layout / "blobs" / "sha256").iterdir()):
            _add(tar, f"blobs/sha256/{blob.name}", blob.read_bytes())


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def read(archive: Path) -> list[Image]:
    """Read every image of an archive. Raises ImageError if it is no image layout, or damaged."""
    try:
        with tarfile.open(archive) as tar:
            index = json.loads(_content(tar, "index.json"))
            return [_image(tar, manifest) for manifest in _manifests(tar, index)]
    except (OSError, EOFError, tarfile.TarError, KeyError, ValueError) as error:
        raise ImageError(f"{archive} is no readable OCI archive: {error}") from error


def unpack(image: Image, folder: Path) -> None:
    """Write an image's files into a folder, with their modes."""
    for path, member in sorted(image.members.items()):
        _lay_out(member, folder / path)


def _lay_out(member: Member, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if member.info.isdir():
        path.mkdir(exist_ok=True)
    elif member.info.issym():
        path.symlink_to(member.info.linkname)
        return
    else:
        path.write_bytes(member.content)
    path.chmod(member.info.mode)


def _manifests(tar: tarfile.TarFile, index: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for manifest in index["manifests"]:
        if manifest.get("mediaType") in _INDEXES:
            yield from _manifests(tar, json.loads(_blob(tar, manifest["digest"])))
        elif manifest.get("platform", {}).get("os") != "unknown":  # a builder's attestation
            yield manifest


def _image(tar: tarfile.TarFile, reference: Mapping[str, Any]) -> Image:
    manifest = json.loads(_blob(tar, reference["digest"]))
    config = json.loads(_blob(tar, manifest["config"]["digest"]))
    members: dict[str, Member] = {}
    for layer in manifest["layers"]:
        with tarfile.open(fileobj=io.BytesIO(_blob(tar, layer["digest"]))) as content:
            _lay_over(members, content)
    return Image(
        arch=config["architecture"],
        config=config["config"],
        download=sum(layer["size"] for layer in manifest["layers"]),
        members=members,
    )


def _lay_over(members: dict[str, Member], layer: tarfile.TarFile) -> None:
    for info in layer:
        path = posixpath.normpath(info.name).lstrip("/")
        if path == ".":
            continue
        folder, name = str(PurePosixPath(path).parent), PurePosixPath(path).name
        if name == _ALL_HIDDEN:
            _remove(members, folder, itself=False)
        elif name.startswith(_HIDDEN):
            _remove(members, posixpath.join(folder, name.removeprefix(_HIDDEN)), itself=True)
        else:
            content = layer.extractfile(info) if info.isfile() or info.islnk() else None
            members[path] = Member(info=info, content=content.read() if content else b"")


def _remove(members: dict[str, Member], path: str, *, itself: bool) -> None:
    gone = [name for name in members if name.startswith(f"{path}/") or (itself and name == path)]
    for member in gone:
        del members[member]


def _blob(tar: tarfile.TarFile, digest: str) -> bytes:
    algorithm, _, text = digest.partition(":")
    content = _content(tar, f"blobs/{algorithm}/{text}")
    if hashlib.new(algorithm, content).hexdigest() != text:
        raise ValueError(f"the content of {digest} is another")
    return content


def _content(tar: tarfile.TarFile, name: str) -> bytes:
    try:
        file = tar.extractfile(name)
    except KeyError:
        file = tar.extractfile(f"./{name}")
    if file is None:
        raise ValueError(f"{name} is no file")
    return file.read()
