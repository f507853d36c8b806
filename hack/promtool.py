"""Prometheus' own promtool: from the PATH, or from Debian's package, by hack/cluster."""

import shutil
import subprocess
import sys
from pathlib import Path

from cluster.binaries import of_this_user
from cluster.errors import ClusterError
from cluster.progress import Progress
from cluster.versions import DEFAULT_MINOR, resolve


class PromtoolError(Exception):
    """Promtool is not available; the text says why."""


def program() -> Path:
    """Return where promtool is; download it if it is missing. Raises PromtoolError."""
    here = shutil.which("promtool")
    if here:
        return Path(here)
    store = of_this_user(Progress(stream=sys.stderr))
    try:
        return store.fetch(resolve(DEFAULT_MINOR), ["promtool"]).path("promtool")
    except ClusterError as error:
        raise PromtoolError(str(error)) from error


def said(promtool: Path, *words: object) -> str:
    """Return promtool's output; it has to succeed."""
    command = [str(word) for word in (promtool, *words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout + done.stderr
