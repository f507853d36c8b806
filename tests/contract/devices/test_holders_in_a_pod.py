"""Who has a GPU open, as seen from a pod: another PID namespace, and the host's root mounted."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
from pathlib import Path
from dra_driver.devices.holders import Holders
from dra_driver.host.words import named

procs, dev = [Path(one) for one in sys.argv[2:]], Path(sys.argv[1])
print(named(Holders(procs, [dev]).of(3)))
"""
IN_A_POD = 'mount --rbind / "$0" && mount -t proc proc /proc && exec "$@"'


@pytest.mark.usefixtures("needs_root")
def test_a_pod_sees_the_hosts_processes_below_the_driver_root(tmp_path: Path) -> None:
    dev, root = tmp_path / "dev", tmp_path / "driver-root"
    dev.mkdir()
    root.mkdir()
    (dev / "nvidia3").touch()

    def seen(*procs: Path) -> str:
        unshare = ("unshare", "--mount", "--pid", "--fork", "sh", "-c", IN_A_POD, root)
        words = (sys.executable, "-c", SCRIPT, dev, *procs)
        return subprocess.run(
            [*unshare, *words], capture_output=True, text=True, check=True
        ).stdout.strip()

    with (dev / "nvidia3").open() as node:
        holder = subprocess.Popen(["sleep", "99999"], stdin=node)
    try:
        assert seen(root / "proc", Path("/proc")) == f"sleep (PID {holder.pid})"
        assert seen(Path("/proc")) == ""
    finally:
        holder.kill()
        holder.wait()
