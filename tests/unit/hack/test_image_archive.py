"""Archives of images: written for containerd, and read from any program."""

import hashlib
import json
import tarfile
from pathlib import Path

import pytest
from image import archive
from image.errors import ImageError

from images import archive as made
from images import file, special


def test_layers_lie_over_each_other(tmp_path: Path) -> None:
    below = [file("etc/one", b"old"), file("etc/two", b"2"), file("opt/a/b", b"x"), file("opt/c")]
    above = [file("etc/one", b"new"), file("etc/.wh.two"), file("opt/.wh..wh..opq"), file("opt/d")]
    (image,) = archive.read(made(tmp_path / "a.tar", {"amd64": [below, above]}))
    assert {path: member.content for path, member in image.members.items()} == {
        "etc/one": b"new",
        "opt/d": b"",
    }


def test_an_image_is_laid_out_with_links_and_modes(tmp_path: Path) -> None:
    layer = [
        special("usr/bin", tarfile.DIRTYPE),
        file("usr/bin/tool", b"run", mode=0o755),
        special("usr/bin/same", tarfile.LNKTYPE, target="usr/bin/tool"),
        special("bin", tarfile.SYMTYPE, target="usr/bin"),
        special("tmp", tarfile.DIRTYPE, mode=0o1777),
    ]
    (image,) = archive.read(made(tmp_path / "a.tar", {"amd64": [layer]}))
    root = tmp_path / "root"
    archive.unpack(image, root)
    assert (root / "bin" / "tool").read_bytes() == b"run"
    assert (root / "usr" / "bin" / "same").read_bytes() == b"run"
    assert (root / "usr" / "bin" / "tool").stat().st_mode & 0o7777 == 0o755
    assert (root / "tmp").stat().st_mode & 0o7777 == 0o1777


def test_what_is_written_has_the_name_that_containerd_takes(tmp_path: Path) -> None:
    source = made(tmp_path / "a.tar", {"amd64": [[file("x", b"12")]]})
    layout = tmp_path / "layout"
    with tarfile.open(source) as tar:
        for member in tar:
            content = tar.extractfile(member)
            assert content is not None
            path = layout / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.read())
    for name in ("one.tar", "two.tar"):
        archive.write(layout, tmp_path / name, "docker.io/library/dra-driver:1.2.3")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    with tarfile.open(tmp_path / "one.tar") as tar:
        index = tar.extractfile("index.json")
        assert index is not None
        (manifest,) = json.load(index)["manifests"]
    assert manifest["annotations"]["io.containerd.image.name"] == (
        "docker.io/library/dra-driver:1.2.3"
    )
    (image,) = archive.read(tmp_path / "one.tar")
    assert image.members["x"].content == b"12"


def test_changed_bytes_are_noticed(tmp_path: Path) -> None:
    layer = [file("x", b"12")]
    path = made(tmp_path / "a.tar", {"amd64": [layer]})
    with tarfile.open(path) as tar:
        entries = [(member, tar.extractfile(member)) for member in tar]
        contents = [(info, content.read()) for info, content in entries if content]
    info, content = next(one for one in contents if one[0].name.startswith("blobs/"))
    damaged = path.read_bytes().replace(content, bytes(len(content)))
    assert hashlib.sha256(content).hexdigest() in info.name
    path.write_bytes(damaged)
    with pytest.raises(ImageError, match="is another"):
        archive.read(path)
