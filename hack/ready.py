"""Provides missing prerequisites of tests before they run.

    hack/ready.py                    everything
    hack/ready.py NEED...            these: cluster, cdi, helm, image, judge, metadata, …
    hack/ready.py --for PATH...      what the tests in these files and folders need

No test compiles, downloads or installs anything, because that takes longer than a test may, and
delays parallel tests. A test whose need is not ready fails at once, and names this command. What
exists already takes no time; the rest is kept in ~/.cache/dra-driver. Progress goes to standard
error; standard output lists the needs that this machine cannot meet.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import promtool
from cluster.errors import ClusterError
from image.archive import ImageError
from image.builder import driver_archive
from testbed.cluster import COMMAND, version_flags

from dra_driver.errors import SetupError
from dra_driver.simulator import build, userspace


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _fetch(*words: str) -> None:
    subprocess.run(
        (sys.executable, COMMAND, "fetch", *words), stdout=subprocess.DEVNULL, check=True
    )


def _cluster() -> None:
    names = {
        "version": "KUBERNETES",
        "containerd": "CONTAINERD",
        "runtime": "RUNTIME",
        "oci": "OCI",
    }
    wanted = {flag: os.environ.get(f"E2E_{name}", "") for flag, name in names.items()}
    _fetch(*version_flags(**wanted))


def _image() -> None:
    if os.geteuid() != 0:
        raise ImageError("building the image needs root")
    driver_archive(say)


def _userspace() -> None:
    userspace.real(build.cache_folder(os.environ), os.environ, say)


def _fetched(words: str, *, of: str) -> tuple[Callable[[], object], str]:
    return partial(_fetch, *of.split()), words


NEEDS: Mapping[str, tuple[Callable[[], object], str]] = {
    "userspace": (_userspace, r"real_userspace|mark\.e2e\b|kueue_manager"),
    "promtool": (promtool.program, r"promtool"),
    "helm": _fetched(r"\bhelm\b|\bRender\b|\bHelm\(", of="helm"),
    "cdi": _fetched(r"\bContainers\b|installed_node", of="runc busybox cdi"),
    "judge": _fetched(r"\bjudge\b", of="judge"),
    "autoscaler": _fetched(r"autoscaler-judge", of="autoscaler"),
    "karpenter": _fetched(r"karpenter-judge", of="karpenter"),
    "metadata": _fetched(r"metadata_readers", of="metadata"),
    "cluster": (_cluster, r"mark\.e2e\b|kueue_manager"),
    "crio": _fetched(r"runtime=\"crio\"\) as", of="crio"),
    "kueue": _fetched(r"kueue_manager", of="kueue"),
    "image": (_image, r"image_archive"),
}
"""The provider of each need, and the words by which a test file needs it; the slowest is last."""


def needed(paths: list[Path]) -> list[str]:
    """Return what the tests in files, and in the modules of folders, need."""
    files = [own for path in paths for own in (path.rglob("*.py") if path.is_dir() else (path,))]
    text = "\n".join(path.read_text() for path in files)
    return [name for name, (_, words) in NEEDS.items() if re.search(words, text)]


def main() -> None:
    """Provide the needs."""
    parser = argparse.ArgumentParser(prog="hack/ready.py", description=__doc__)
    parser.add_argument("needs", nargs="*", metavar="NEED", help=", ".join(NEEDS))
    parser.add_argument("--for", dest="paths", nargs="+", type=Path, help="test files, folders")
    parser.add_argument("--but", nargs="+", default=[], metavar="NEED", help="needs to skip")
    given = parser.parse_args()
    lacking = []
    for name in needed(given.paths) if given.paths else given.needs or NEEDS:
        try:
            if name not in given.but:
                NEEDS[name][0]()
        except subprocess.CalledProcessError:
            lacking.append(name)  # it has printed why
        except (ImageError, ClusterError, SetupError) as error:
            say(f"ready: {name} is not available: {error}")
            lacking.append(name)
    print(*lacking)


if __name__ == "__main__":
    main()
