"""The container images: valid OCI layouts, the same every time, and runnable."""

import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path

import pytest
from cluster.image import Image, gpu_test_image, sandbox_image, write_archive

BUSYBOX = """#!/bin/sh
case "$1" in --list) printf 'busybox\\nls\\nsleep\\nsh\\nbash\\n';; *) exit 1;; esac
"""


@pytest.fixture
def busybox(tmp_path: Path) -> Path:
    path = tmp_path / "busybox"
    path.write_text(BUSYBOX)
    path.chmod(0o755)
    return path


def archive_of(images: list[Image], folder: Path) -> dict[str, bytes]:
    path = folder / "images.tar"
    write_archive(images, path, "amd64")
    with tarfile.open(path) as tar:
        found = {}
        for member in tar:
            content = tar.extractfile(member)
            assert content is not None
            found[member.name] = content.read()
        return found


def root_of(image: Image, folder: Path) -> tarfile.TarFile:
    files = archive_of([image], folder)
    index = json.loads(files["index.json"])
    manifest = json.loads(blob(files, index["manifests"][0]["digest"]))
    return tarfile.open(fileobj=io.BytesIO(blob(files, manifest["layers"][0]["digest"])))


def blob(files: dict[str, bytes], digest: str) -> bytes:
    return files[f"blobs/sha256/{digest.removeprefix('sha256:')}"]


def test_every_digest_and_size_in_the_archive_is_right(busybox: Path, tmp_path: Path) -> None:
    files = archive_of([gpu_test_image(busybox), sandbox_image(busybox)], tmp_path)
    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads(files["index.json"])
    names = [one["annotations"]["io.containerd.image.name"] for one in index["manifests"]]
    assert names == ["registry.local/gpu-test:1", "registry.local/pause:1"]
    for reference in index["manifests"]:
        manifest = json.loads(blob(files, reference["digest"]))
        layers = [blob(files, layer["digest"]) for layer in manifest["layers"]]
        assert [len(layer) for layer in layers] == [one["size"] for one in manifest["layers"]]
        config = json.loads(blob(files, manifest["config"]["digest"]))
        digests = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
        assert config["rootfs"]["diff_ids"] == digests
        assert config["architecture"] == "amd64"


def test_the_same_input_gives_the_same_bytes(busybox: Path, tmp_path: Path) -> None:
    write_archive([gpu_test_image(busybox)], tmp_path / "a", "amd64")
    write_archive([gpu_test_image(busybox)], tmp_path / "b", "amd64")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_busybox_is_no_link_to_itself_and_bash_is_the_real_one(
    busybox: Path, tmp_path: Path
) -> None:
    with root_of(gpu_test_image(busybox), tmp_path) as root:
        assert root.getmember("usr/bin/busybox").isfile()
        assert root.getmember("usr/bin/bash").isfile()
        assert root.getmember("usr/bin/ls").linkname == "busybox"


def test_bash_of_the_image_runs_with_the_images_own_libraries(
    busybox: Path, tmp_path: Path
) -> None:
    target = tmp_path / "root"
    with root_of(gpu_test_image(busybox), tmp_path) as root:
        # Filters came with Python 3.11.4, and a call without one warns since 3.12.
        trust = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
        root.extractall(target, **trust)  # type: ignore[arg-type]  # noqa: S202 - made just above
    loader = next((target / "usr").glob("lib*/ld-linux-*"))
    libc = next((target / "usr" / "lib").glob("*/libc.so.6"))
    done = subprocess.run(
        [loader, "--library-path", libc.parent, target / "usr/bin/bash", "-c", "echo $BASH"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip().endswith("bash")
    for name in ("libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"):
        assert libc.with_name(name).exists()
