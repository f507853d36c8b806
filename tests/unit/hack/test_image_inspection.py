"""What is found wrong with an image for clusters, and what its bill of materials names."""

import tarfile
from pathlib import Path
from typing import Any

import pytest
from image import archive
from image.archive import Image
from image.inspection import complaints

from images import CONFIG, PYC, file, sound_layer, special
from images import archive as made

SITE = "usr/local/lib/python3.13/dist-packages"
STALE = b"mcpy" + (3).to_bytes(4, "little") + b"12345678"


def image_of(folder: Path, *more: Any, config: Any = CONFIG) -> Image:
    path = made(folder / "a.tar", {"amd64": [[*sound_layer(), *more]]}, config=config)
    (image,) = archive.read(path)
    return image


def test_nothing_is_wrong_with_a_sound_image(tmp_path: Path) -> None:
    links = special("bin", tarfile.SYMTYPE, mode=0o777, target="usr/bin")
    scratch = special("tmp", tarfile.DIRTYPE, mode=0o1777)
    assert complaints(image_of(tmp_path, links, scratch)) == []


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        (f"{SITE}/dra_driver/bench/scenarios/shipped/cards.yaml", "is the benchmark"),
        (f"{SITE}/dra_driver_bench-0.1.0.dist-info/METADATA", "is the benchmark"),
        (f"{SITE}/dra_driver/simulator/nvml/nvml.txt", "is the simulator"),
        (f"{SITE}/dra_driver_simulator-0.1.0.dist-info/METADATA", "is the simulator"),
        (f"{SITE}/yaml/tests/data", "is a test"),
        ("usr/lib/python3.13/test/support", "is a test"),
        ("src/.git/config", "is a version control folder"),
        (f"{SITE}/pip/main", "is a package installer"),
        ("root/.cache/http/1", "is a cache"),
        ("var/lib/apt/lists/one", "is a cache"),
        (f"{SITE}/grpc/wrapper.h", "is a source of a compiled program"),
        ("usr/include/stdio", "is a header"),
        ("run/secrets/ca", "is a secret"),
        ("etc/pip.conf", "is a secret"),
        ("usr/share/man/man1/bash.1", "is a manual"),
        ("usr/bin/gcc-14", "is a tool that no command of the driver runs"),
        ("usr/bin/x86_64-linux-gnu-ld", "is a tool that no command of the driver runs"),
        ("usr/bin/apt-get", "is a tool that no command of the driver runs"),
        ("usr/bin/pip3", "is a tool that no command of the driver runs"),
    ],
)
def test_what_should_not_be_there_is_named(tmp_path: Path, path: str, complaint: str) -> None:
    assert complaints(image_of(tmp_path, file(path))) == [f"/{path} {complaint}"]


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        (file("usr/bin/tool", mode=0o4755), "runs with the rights of its owner or group"),
        (file("usr/bin/tool", mode=0o2755), "runs with the rights of its owner or group"),
        (file("usr/bin/tool", mode=0o757), "can be changed by every user"),
        (special("data", tarfile.DIRTYPE, mode=0o777), "can be changed by every user"),
        (file("etc/shadow", mode=0o640), "cannot be used by every user"),
        (special("opt", tarfile.DIRTYPE, mode=0o700), "cannot be used by every user"),
        (special("dev/null", tarfile.CHRTYPE, mode=0o666), "is a device or a pipe"),
    ],
)
def test_a_mode_that_gives_too_much_or_too_little_is_named(
    tmp_path: Path, entry: Any, complaint: str
) -> None:
    found = complaints(image_of(tmp_path, entry))
    assert any(complaint in one for one in found), found


def test_byte_code_that_python_would_check_at_each_start_is_named(tmp_path: Path) -> None:
    module = file("usr/lib/python3.13/os.py")
    compiled = "usr/lib/python3.13/__pycache__/os.cpython-313.pyc"
    assert complaints(image_of(tmp_path, module, file(compiled, PYC))) == []
    assert complaints(image_of(tmp_path, module, file(compiled, STALE))) == [
        f"/{compiled} is compared with its source at each start"
    ]


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    path = made(tmp_path / "a.tar", {"amd64": [sound_layer()[1:]]}, config={"Env": ["PATH=/"]})
    (image,) = archive.read(path)
    assert complaints(image) == [
        "/usr/bin/dra-driver is missing",
        "NVIDIA_VISIBLE_DEVICES is not void: NVIDIA's runtime would inject GPUs",
        "the label org.opencontainers.image.version is missing",
    ]
