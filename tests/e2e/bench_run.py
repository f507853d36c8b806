"""`dra-driver bench pods` as a process of its own, with the driver's image and a tenant in it."""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self

from image.recipe import NAME, version
from testbed.cluster import Cluster
from testbed.machine import DRIVER
from testbed.node import GpuNode

from images import with_bench


def loaded(cluster: Cluster, archive: Path) -> str:
    """Give a cluster the driver's image with the benchmark's code in it; return its name.

    On simulated GPUs, a tenant needs nothing else.
    """
    name = f"docker.io/library/{NAME}-bench:{version()}"
    with tempfile.TemporaryDirectory() as folder:
        cluster.load(with_bench(archive, Path(folder) / "bench.tar", name=name))
    return name


class Run:
    """`dra-driver bench pods` as a process of its own."""

    def __init__(self, node: GpuNode, image: str, folder: Path, *words: str) -> None:
        self.output = folder / "out"
        kubeconfig = node.cluster.env["KUBECONFIG"]
        places = ("--image", image, "--kubeconfig", kubeconfig, "--name", str(self.output))
        self.process = subprocess.Popen(
            [DRIVER, "bench", "pods", *places, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def end(self, timeout: float = 240) -> str:
        """Wait for its end; return what it said."""
        out, _ = self.process.communicate(timeout=timeout)
        print(out)  # noqa: T201 (pytest shows it with a failure)
        return out

    def report(self) -> dict[str, Any]:
        """What it measured."""
        return json.loads(self.output.with_suffix(".json").read_text())  # type: ignore[no-any-return]

    def states(self) -> list[str]:
        """What came of each case."""
        return [case["state"] for case in self.report()["cases"]]
