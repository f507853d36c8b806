"""Prometheus' own promtool: from the PATH, or from Debian's package, by hack/cluster."""

import shutil
import subprocess
import sys
from pathlib import Path

from cluster.binaries import of_this_user
from cluster.progress import Progress
from cluster.versions import DEFAULT_MINOR, resolve


def program() -> Path:
    """Return where promtool is; download it if it is missing. Raises ClusterError."""
    if here := shutil.which("promtool"):
        return Path(here)
    store = of_this_user(Progress(stream=sys.stderr))
    return store.fetch(resolve(DEFAULT_MINOR), ["promtool"]).path("promtool")


def said(promtool: Path, *words: object) -> str:
    """Return promtool's output; raise if it fails."""
    command = [str(word) for word in (promtool, *words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout + done.stderr
