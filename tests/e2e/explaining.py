"""What `dra-driver explain` says of a scene's pods."""

import subprocess
from pathlib import Path

from testbed.machine import DRIVER

from e2e.scene import NAMESPACE, Scene


def explain(
    scene: Scene, pod: str, *flags: str, kubeconfig: str | Path = "", status: int = 1
) -> tuple[str, str]:
    """What the command prints, as an admin with a kubeconfig runs it."""
    where = ("--kubeconfig", str(kubeconfig or scene.node.cluster.env["KUBECONFIG"]))
    words = (str(DRIVER), "explain", "pod", pod, "-n", NAMESPACE, *where, *flags)
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout, done.stderr
