"""What an image for clusters must not contain, and what it must.

In: the files of an image. Out: one complaint for each thing that is wrong. The rules are about what
an attacker or an auditor looks for (compilers, package managers, set-user-ID programs, files that
everybody may change), what makes an image needlessly large (caches, tests, sources), and what a pod
with a read-only root and any user needs.
"""

import re
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath

from image.archive import Image, Member

_PYTHON_FOLDERS = ("usr/lib/python3", "usr/local/lib/python3")
_PRESENT = (
    "usr/bin/dra-driver",
    "usr/bin/dra-driver-probe",
    "usr/bin/gpu-kubelet-plugin",
    "usr/bin/bash",
    "etc/passwd",
    "var/lib/dpkg/status.d/libc6",
)
_TOOLS = re.compile(
    r"(.*-)?(gcc|g\+\+|cc|c\+\+|cpp|clang|ld|as|ar|make|git|apt|apt-get|apt-cache|dpkg|dpkg-deb|"
    r"pip|pip3|uv|curl|wget|nc|ssh|su|sudo|mount|umount|perl)(-?[0-9.]+)?"
)
_UNWANTED: Mapping[str, re.Pattern[str]] = {
    "the benchmark": re.compile(r".*dra_driver(/|_)bench(/|-).*"),
    "the simulator": re.compile(r".*dra_driver(/|_)simulator(/|-).*"),
    "a test": re.compile(r".*/(tests?/.*|test_[^/]*\.py|[^/]*_test\.py|conftest\.py)"),
    "a version control folder": re.compile(r"(.*/)?\.git(/.*)?"),
    "a package installer": re.compile(r".*/(pip|setuptools|ensurepip|hatchling)/.*"),
    "a cache": re.compile(r"((.*/)?\.cache/.*|var/cache/.+/.*|var/lib/apt/.+)"),
    "a source of a compiled program": re.compile(r".*\.(c|h|cpp|hpp|pyx|pxd|o|a)"),
    "a header": re.compile(r"usr/include/.+"),
    "a secret": re.compile(r"(run/secrets/.+|.*\.(pem\.key|key)|(.*/)?\.netrc|(.*/)?pip\.conf)"),
    "a manual": re.compile(r"usr/share/(man|info|locale)/.+"),
}


def complaints(image: Image) -> list[str]:
    """Return what is wrong with an image for clusters."""
    problems = [f"/{path} is missing" for path in _PRESENT if path not in image.members]
    for path, member in sorted(image.members.items()):
        problems += _of_path(path, member)
        problems += _of_mode(path, member)
    problems += _without_byte_code(image)
    problems += _of_config(image)
    return problems


def _of_path(path: str, member: Member) -> Iterator[str]:
    if member.info.isdir():
        return
    for what, pattern in _UNWANTED.items():
        if pattern.fullmatch(path):
            yield f"/{path} is {what}"
    name = PurePosixPath(path)
    if str(name.parent).endswith(("bin", "sbin")) and _TOOLS.fullmatch(name.name):
        yield f"/{path} is a tool that no command of the driver runs"


def _of_mode(path: str, member: Member) -> Iterator[str]:
    info = member.info
    if info.issym():
        return
    if info.ischr() or info.isblk() or info.isfifo():
        yield f"/{path} is a device or a pipe"
    if info.mode & (stat.S_ISUID | stat.S_ISGID) and not info.isdir():
        yield f"/{path} runs with the rights of its owner or group (mode {info.mode:o})"
    if info.mode & stat.S_IWOTH and not (info.isdir() and info.mode & stat.S_ISVTX):
        yield f"/{path} can be changed by every user (mode {info.mode:o})"
    wanted = 0o555 if info.isdir() or info.mode & 0o111 else 0o444
    if info.mode & wanted != wanted:
        yield f"/{path} cannot be used by every user (mode {info.mode:o})"


def _without_byte_code(image: Image) -> Iterator[str]:
    """Check that Python's modules are compiled, with hashes that are never checked.

    Otherwise Python compiles them at each start, because it cannot write to a read-only root.
    """
    sources = {path for path in image.members if _is_module(path)}
    compiled: Callable[[str], str] = lambda path: (  # noqa: E731
        f"{PurePosixPath(path).parent}/__pycache__/{PurePosixPath(path).stem}.cpython-313.pyc"
    )
    for path in sorted(sources):
        member = image.members.get(compiled(path))
        if member is None:
            yield f"/{path} has no byte code"
        elif int.from_bytes(member.content[4:8], "little") != 0b01:
            yield f"/{compiled(path)} is compared with its source at each start"


def _is_module(path: str) -> bool:
    return path.startswith(_PYTHON_FOLDERS) and path.endswith(".py")


def _of_config(image: Image) -> Iterator[str]:
    environment = dict(pair.split("=", 1) for pair in image.config.get("Env", ()))
    if environment.get("NVIDIA_VISIBLE_DEVICES") != "void":
        yield "NVIDIA_VISIBLE_DEVICES is not void: NVIDIA's runtime would inject GPUs"
    if "org.opencontainers.image.version" not in image.config.get("Labels", {}):
        yield "the label org.opencontainers.image.version is missing"
