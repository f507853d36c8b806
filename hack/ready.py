"""Provides what tests need and this machine does not have, before they run.

    hack/ready.py                    everything
    hack/ready.py NEED...            these: cluster, cdi, helm, image, judge, metadata, …
    hack/ready.py --for PATH...      what the tests in these files and folders need

No test compiles, downloads or installs anything, because that takes longer than a test may, and
stops the tests beside it. A test whose need is not ready fails at once, and names this command.
What exists already takes no time; the rest is kept in ~/.cache/dra-driver. Progress goes to
standard error; standard output has the needs that this machine cannot provide.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import promtool
from image.archive import ImageError
from image.builder import driver_archive
from testbed.cluster import COMMAND, version_flags

from dra_driver.errors import SetupError
from dra_driver.simulator import build, userspace

REPOSITORY = Path(__file__).resolve().parents[1]


class NotToBeHadError(Exception):
    """This machine cannot provide it; the text says why, if that was not printed already."""


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _fetch(*words: str) -> None:
    command = (sys.executable, str(COMMAND), "fetch", *words)
    if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
        raise NotToBeHadError("see above")


def _cluster() -> None:
    names = {"version": "KUBERNETES"} | {
        name: name.upper() for name in ("containerd", "runtime", "oci")
    }
    wanted = {flag: os.environ.get(f"E2E_{name}", "") for flag, name in names.items()}
    _fetch(*version_flags(**wanted))


def _image() -> None:
    if os.geteuid() != 0:
        raise NotToBeHadError("building the image needs root")
    try:
        driver_archive(say)
    except ImageError as error:
        raise NotToBeHadError(str(error)) from error


def _promtool() -> None:
    try:
        promtool.program()
    except promtool.PromtoolError as error:
        raise NotToBeHadError(str(error)) from error


def _userspace() -> None:
    try:
        userspace.real(build.cache_folder(os.environ), os.environ, say)
    except SetupError as error:
        raise NotToBeHadError(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What provides it, and the words that show that a test file needs it."""

    make: Callable[[], None]
    words: str


NEEDS: Mapping[str, Need] = {
    "userspace": Need(make=_userspace, words=r"real_userspace|mark\.e2e\b|kueue_manager"),
    "promtool": Need(make=_promtool, words=r"promtool"),
    "vale": Need(make=lambda: _fetch("vale"), words=r"from style import"),
    "helm": Need(make=lambda: _fetch("helm"), words=r"\bhelm\b|\bRender\b|\bHelm\("),
    "cdi": Need(
        make=lambda: _fetch("runc", "busybox", "cdi"), words=r"\bContainers\b|installed_node"
    ),
    "judge": Need(make=lambda: _fetch("judge"), words=r"\bjudge\b"),
    "autoscaler": Need(make=lambda: _fetch("autoscaler"), words=r"autoscaler-judge"),
    "karpenter": Need(make=lambda: _fetch("karpenter"), words=r"karpenter-judge"),
    "metadata": Need(make=lambda: _fetch("metadata"), words=r"metadata_readers"),
    "cluster": Need(make=_cluster, words=r"mark\.e2e\b|kueue_manager"),
    "crio": Need(make=lambda: _fetch("crio"), words=r"runtime=\"crio\"\) as"),
    "kueue": Need(make=lambda: _fetch("kueue"), words=r"kueue_manager"),
    "image": Need(make=_image, words=r"image_archive"),
}
"""In order of preparation: what takes longest comes last."""


def needed(paths: Sequence[Path]) -> Iterator[str]:
    """Yield what the tests in files, and in the modules of folders, need."""
    files = [own for path in paths for own in (path.rglob("*.py") if path.is_dir() else (path,))]
    text = "\n".join(path.read_text() for path in files)
    return (name for name, need in NEEDS.items() if re.search(need.words, text))


def main(words: Sequence[str]) -> int:
    """Provide the needs; return 0, or 2 for unknown words."""
    parser = argparse.ArgumentParser(prog="hack/ready.py", description=__doc__)
    parser.add_argument("needs", nargs="*", metavar="NEED", help=", ".join(NEEDS))
    parser.add_argument("--for", dest="paths", nargs="+", type=Path, help="test files, folders")
    parser.add_argument("--but", nargs="+", default=[], metavar="NEED", help="leave these out")
    given = parser.parse_args(words)
    if unknown := {*given.needs, *given.but} - NEEDS.keys():
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(NEEDS)}")
    names = list(needed(given.paths) if given.paths else given.needs or NEEDS)
    lacking = []
    for name in (each for each in names if each not in given.but):
        begun = time.monotonic()
        try:
            NEEDS[name].make()
        except NotToBeHadError as error:
            say(f"ready: {name} is not available: {error}")
            lacking.append(name)
            continue
        if (took := time.monotonic() - begun) >= 1:
            say(f"ready: {name}, after {took:.0f} s")
    print(*lacking)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
