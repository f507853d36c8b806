"""The driver's image with one layer more: as another build, or with the code of the benchmark."""

import gzip
import hashlib
import io
import json
import re
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from image.archive import read
from image.recipe import REPOSITORY

_OWN_METADATA = re.compile(r"usr/local/lib/python3[^/]*/dist-packages/dra_driver-[^/]*/METADATA")


def file(path: str, content: bytes = b"", mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    """A file of a layer."""
    info = tarfile.TarInfo(path)
    info.size, info.mode = len(content), mode
    return info, content


Layer = Sequence[tuple[tarfile.TarInfo, bytes]]


def another_build(of: Path, path: Path, *, version: str, name: str) -> Path:
    """Write an archive of one image as a build of another version, under another name.

    It has one thin layer more, in which the driver's distribution says that version: other bytes
    under another digest, at the cost of no build.
    """
    (image,) = read(of)
    (metadata,) = filter(_OWN_METADATA.fullmatch, image.members)
    said = image.members[metadata].content
    thin = file(metadata, re.sub(rb"(?m)^Version: .*$", b"Version: " + version.encode(), said))
    labels = {"org.opencontainers.image.version": version}
    return _with_layer(of, path, [thin], name=name, labels=labels)


def with_bench(of: Path, path: Path, *, name: str) -> Path:
    """Write an archive of one image with the code of `dra-driver bench`, under another name.

    What else a tenant needs on a real card is not in it.
    """
    (image,) = read(of)
    (metadata,) = filter(_OWN_METADATA.fullmatch, image.members)
    site = PurePosixPath(metadata).parents[1]
    code = [
        file(f"{site}/{one.relative_to(REPOSITORY)}", one.read_bytes())
        for one in sorted((REPOSITORY / "dra_driver/bench").rglob("*.py"))
    ]
    return _with_layer(of, path, code, name=name, labels={})


def _with_layer(
    of: Path, path: Path, entries: Layer, *, name: str, labels: Mapping[str, str]
) -> Path:
    files = _files(of)
    layer = _tar(entries)

    def blob(content: bytes, like: Mapping[str, Any]) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        files[f"blobs/{digest.replace(':', '/')}"] = content
        return {**like, "digest": digest, "size": len(content)}

    def taken(reference: Mapping[str, Any]) -> dict[str, Any]:
        return dict(json.loads(files.pop(f"blobs/{reference['digest'].replace(':', '/')}")))

    index = json.loads(files["index.json"])
    (reference,) = index["manifests"]
    manifest = taken(reference)
    config = taken(manifest["config"])
    config["config"]["Labels"] |= labels
    config["rootfs"]["diff_ids"].append(f"sha256:{hashlib.sha256(layer).hexdigest()}")
    config["history"].append({"created_by": name})
    manifest["config"] = blob(_json(config), manifest["config"])
    manifest["layers"].append(blob(gzip.compress(layer, mtime=0), manifest["layers"][-1]))
    names = dict.fromkeys(("io.containerd.image.name", "org.opencontainers.image.ref.name"), name)
    index["manifests"] = [blob(_json(manifest), reference) | {"annotations": names}]
    files["index.json"] = _json(index)
    path.write_bytes(_tar([file(one, content) for one, content in files.items()]))
    return path


def _files(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        opened = {one.name: tar.extractfile(one) for one in tar}
        return {name: content.read() for name, content in opened.items() if content}


def _tar(entries: Layer) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
