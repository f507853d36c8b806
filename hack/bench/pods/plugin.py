"""NVIDIA's device plugin on a simulated node during a block (see dra-driver-nvidia-gpu#928).

In: a node that is up. The plugin has fixed paths for the folders of kubelet and container runtime,
so it runs in the kubelet's mount namespace, with the cluster's CDI folder over /var/run/cdi. This
driver notices it and offers no GPU until the plugin is gone.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.cluster import fetched
from testbed.commands import TestbedError, wait_until
from testbed.node import GpuNode

from bench.pods.variants import PLUGIN

RESOURCE = "nvidia.com/gpu"
_CDI = Path("/var/run/cdi")
_PATIENCE_S = 60.0
_LIBRARIES = "usr/lib/x86_64-linux-gnu/nvidia/current"
_SCRIPT = 'mount --bind "$0" "$1" && shift && exec "$@"'


@contextmanager
def serving(node: GpuNode, variant: str) -> Iterator[int]:
    """Serve pods of a variant; yield the process id of the driver or plugin that does it.

    Raises TestbedError if the plugin cannot be fetched, or its GPUs are not counted in time.
    """
    if variant != PLUGIN:
        yield node.driver.pid
        return
    with (node.folder / "device-plugin.log").open("ab") as log:
        process = subprocess.Popen(
            _command(node),
            env={**os.environ, "LD_LIBRARY_PATH": str(node.machine.root / _LIBRARIES)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: _counted(node) and not node.devices(), PLUGIN, timeout=_PATIENCE_S)
        yield process.pid
    except TestbedError as error:
        raise TestbedError(f"{error}\n{Path(log.name).read_text()[-2000:]}") from error
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        wait_until(lambda: not _counted(node), "the kubelet to count none", timeout=_PATIENCE_S)
        node.wait_published()


def hook() -> str:
    """Where NVIDIA's hook program is, without which this driver's containers start with less."""
    return str(fetched("cdi") / "nvidia-cdi-hook")


def _counted(node: GpuNode) -> int:
    status = node.cluster.api.get("Node", node.cluster.node)["status"]
    return int(status["allocatable"].get(RESOURCE, 0))


def _command(node: GpuNode) -> tuple[str, ...]:
    _CDI.mkdir(parents=True, exist_ok=True)
    root = node.machine.root
    return (
        *("nsenter", "--mount", f"--target={node.cluster.pid('kubelet')}"),
        *("unshare", "--mount", "sh", "-c", _SCRIPT, str(node.cluster.cdi_root), str(_CDI)),
        str(fetched(PLUGIN) / "nvidia-device-plugin"),
        *(f"--driver-root={root}", f"--driver-root-ctr-path={root}"),
        *(
            "--device-list-strategy=cdi-cri",
            f"--nvidia-cdi-hook-path={hook()}",
        ),
    )
