"""A driver as a process on a node of its own: folders, simulated GPUs, a small API server."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from apiserver.server import ApiServer
from dra_driver.simulator.driver_root import Options
from dra_driver.simulator.machine import Machine

NODE = "node-1"
SLICES = "resourceslices"


def eventually(condition: Callable[[], Any], what: str, tries: int = 1200) -> Any:
    tick = threading.Event()
    for _ in range(tries):
        if found := condition():
            return found
        tick.wait(0.05)
    pytest.fail(f"never: {what}")


class Node:
    """One node: its folders, its machine, its API server, and the driver's process."""

    def __init__(self, root: Path, api: ApiServer) -> None:
        self.root, self.api = root, api
        self.driver_root = root / "machine"
        self.plugins, self.registry, self.cdi = root / "p", root / "r", root / "cdi"
        self.log = root / "driver.log"
        self.kubeconfig = api.write_kubeconfig(root / "kubeconfig")
        self.process: subprocess.Popen[bytes] | None = None
        self.log_start = 0
        self.driver_root.mkdir()
        self.mounts = {"SYS_ROOT": "/sys", "PROC_ROOT": "/proc"}

    def install_gpus(self, profile: str, options: Options | None = None) -> Machine:
        machine = Machine.create(self.driver_root, profile, options)
        self.mounts = {"SYS_ROOT": str(machine.sys_root), "PROC_ROOT": str(machine.proc_root)}
        return machine

    def start(self, *words: str) -> None:
        self.log_start = self.log.stat().st_size if self.log.exists() else 0
        settings = {
            "NODE_NAME": NODE,
            "KUBECONFIG": str(self.kubeconfig),
            "KUBELET_PLUGINS_DIRECTORY_PATH": str(self.plugins),
            "KUBELET_REGISTRAR_DIRECTORY_PATH": str(self.registry),
            "CDI_ROOT": str(self.cdi),
            "NVIDIA_DRIVER_ROOT": str(self.driver_root),
            "CONTAINER_DRIVER_ROOT": str(self.driver_root),
            "RESCAN_INTERVAL": "0.5",
            "LOG_LEVEL": "debug",
        }
        environment = {name: os.environ.get(name, "") for name in ("PATH", "PYTHONPATH")}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dra_driver", "kubelet-plugin", *words],
                env=environment | settings | self.mounts,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def end(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)

    def events(self, name: str) -> list[dict[str, Any]]:
        with self.log.open("rb") as log:
            log.seek(self.log_start)
            lines = [json.loads(line) for line in log if line.startswith(b"{")]
        return [line for line in lines if line["event"] == name]

    def wait_event(self, name: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            found = self.events(name)
            if not found and self.process is not None and self.process.poll() is not None:
                pytest.fail(f"the driver ended before {name!r}:\n{self.log.read_text()}")
            return found[-1] if found else None

        found: dict[str, Any] = eventually(look, name)
        return found

    def devices(self) -> list[str]:
        """The whole GPUs that are published; cards with MIG have partitions beside them."""
        return sorted(
            device["name"]
            for one in self.api.objects(SLICES)
            for device in one["spec"].get("devices", ())
            if "-mig-" not in device["name"]
        )

    def wait_devices(self, count: int) -> list[str]:
        eventually(lambda: self.api.objects(SLICES) and len(self.devices()) == count, "devices")
        return self.devices()

    def wait_device(self, name: str) -> None:
        eventually(lambda: name in self.devices(), f"device {name}")

    def allocate(
        self, name: str, *devices: str, configs: Sequence[dict[str, Any]] = ()
    ) -> tuple[str, str, str]:
        """Store an allocated claim, as the scheduler would; return what a kubelet knows of it."""
        results = [
            {"request": "gpu", "driver": "gpu.nvidia.com", "pool": NODE, "device": device}
            for device in devices
        ]
        self.api.put(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"namespace": "default", "name": name, "uid": f"uid-{name}"},
                "spec": {
                    "devices": {
                        "requests": [
                            {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
                        ]
                    }
                },
                "status": {
                    "allocation": {"devices": {"results": results, "config": list(configs)}}
                },
            }
        )
        return ("default", name, f"uid-{name}")

    def specs(self) -> list[str]:
        return sorted(path.name for path in self.cdi.glob("*.json")) if self.cdi.exists() else []
