"""Small images made by hand: OCI archives with the layers that a test asks for."""

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

PYC = b"mcpy" + (1).to_bytes(4, "little") + b"12345678"
"""The head of byte code that is never compared with its source."""

CONFIG = {
    "User": "0:0",
    "Env": ["PATH=/usr/bin", "NVIDIA_VISIBLE_DEVICES=void"],
    "Labels": {"org.opencontainers.image.version": "1.2.3"},
}

_OWN_METADATA = re.compile(r"usr/local/lib/python3[^/]*/dist-packages/dra_driver-[^/]*/METADATA")


def file(path: str, content: bytes = b"", mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    """A file of a layer."""
    info = tarfile.TarInfo(path)
    info.size, info.mode = len(content), mode
    return info, content


def special(path: str, kind: bytes, mode: int = 0o755, target: str = "") -> tuple[Any, bytes]:
    """A folder, a link or a device of a layer."""
    info = tarfile.TarInfo(path)
    info.type, info.mode, info.linkname = kind, mode, target
    return info, b""


Layer = Sequence[tuple[tarfile.TarInfo, bytes]]


def sound_layer() -> list[tuple[tarfile.TarInfo, bytes]]:
    """The least that an image for clusters has to hold."""
    site = "usr/local/lib/python3.13/dist-packages"
    return [
        file("usr/bin/dra-driver", mode=0o755),
        file("usr/bin/dra-driver-probe", mode=0o755),
        file("usr/bin/gpu-kubelet-plugin", mode=0o755),
        file("usr/bin/bash", mode=0o755),
        file("etc/passwd"),
        file("usr/lib/os-release", b'NAME="Debian"\nVERSION_ID="13"\n'),
        file(
            "var/lib/dpkg/status.d/libc6",
            b"Package: libc6\nVersion: 2.41-12\nArchitecture: amd64\nSource: glibc (2.41)\n",
        ),
        file(f"{site}/dra_driver/cli.py"),
        file(f"{site}/dra_driver/__pycache__/cli.cpython-313.pyc", PYC),
        file(
            f"{site}/pyyaml-6.0.3.dist-info/METADATA",
            b"Metadata-Version: 2.4\nName: PyYAML\nVersion: 6.0.3\nLicense: MIT\n\nLong text\n",
        ),
    ]


def archive(
    path: Path,
    images: Mapping[str, Sequence[Layer]],
    *,
    config: Mapping[str, Any] = CONFIG,
) -> Path:
    """Write an archive with an image for each architecture, their layers compressed."""
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        media_type = f"application/vnd.oci.image.{kind}"
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    def manifest(arch: str, layers: Sequence[Layer]) -> dict[str, Any]:
        content = {
            "config": blob(_json({"architecture": arch, "config": config}), "config.v1+json"),
            "layers": [
                blob(gzip.compress(_tar(layer), mtime=0), "layer.v1.tar+gzip") for layer in layers
            ],
        }
        platform = {"architecture": arch, "os": "linux"}
        return blob(_json(content), "manifest.v1+json") | {"platform": platform}

    manifests = [manifest(arch, layers) for arch, layers in images.items()]
    files = {
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        "index.json": _json({"manifests": manifests}),
    }
    files |= {f"blobs/sha256/{digest}": content for digest, content in blobs.items()}
    path.write_bytes(_tar([file(name, content) for name, content in files.items()]))
    return path


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
