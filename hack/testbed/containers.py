"""Containers without a cluster: runc or crun, a root file system with glibc, and devices by CDI.

CDI specs are applied by the library that containerd and CRI-O use (hack/cluster/go/cdi), and hooks
are NVIDIA's own nvidia-cdi-hook.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from cluster.binaries import Binaries, of_this_user
from cluster.image import gpu_test_image
from cluster.progress import Progress
from cluster.versions import DEFAULT_MINOR, resolve

from dra_driver.simulator.build import find_compiler

BARE_ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

# Prints for each name the file that the loader loads, and the text after its last NUL.
_LOOK_UP = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **names) {
    for (int i = 1; i < count; i++) {
        struct link_map *map = NULL;
        char content[1 << 16], *end = content;
        void *library = dlopen(names[i], RTLD_NOW);
        if (!library || dlinfo(library, RTLD_DI_LINKMAP, &map)) {
            printf("%s\t%s\t\n", names[i], dlerror());
            continue;
        }
        FILE *file = fopen(map->l_name, "r");
        size_t size = file ? fread(content, 1, sizeof content - 1, file) : 0;
        content[size] = 0;
        for (size_t at = 0; at + 1 < size; at++)
            if (!content[at]) end = content + at + 1;
        printf("%s\t%s\t%s\n", names[i], map->l_name, end);
    }
    return 0;
}
"""
_BINDS = (
    ("/proc", "proc", ("nosuid", "noexec", "nodev")),
    ("/dev", "tmpfs", ("nosuid", "strictatime", "mode=755", "size=65536k")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The file that a container's loader loads for a name, and its driver."""

    path: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What a container runs, and its settings.

    `devices` are CDI devices that the kubelet named; `capabilities` are all that it has.
    `every_device`: it may open any device, like a privileged one.
    """

    command: Sequence[str]
    env: Mapping[str, str]
    devices: Sequence[str] = ()
    capabilities: Sequence[str] = ()
    every_device: bool = False


class Containers:
    """Runs commands in containers of one image, each in a root file system of its own."""

    def __init__(
        self, folder: Path, programs: Sequence[Path] = (), name: str = "", oci: str = "runc"
    ) -> None:
        """Take a folder for all files, and additional programs for the image.

        Containers' control groups are called `dra-NAME-container-NUMBER`; by default NAME is the
        PID of this process. Raises ClusterError if the programs are not available.
        """
        store = of_this_user(Progress(stream=sys.stderr))
        self._folder, self._own, self._oci = folder, name or str(os.getpid()), oci
        self._binaries = store.fetch(resolve(DEFAULT_MINOR), [oci, "busybox", "cdi"])
        self._image = _unpacked(self._binaries, folder / "image")
        for path in programs:
            shutil.copy(path, self._image / "usr" / "bin" / path.name)
        self._numbers = count()

    @property
    def hook(self) -> str:
        """The path of NVIDIA's hook program."""
        return self.program("nvidia-cdi-hook")

    def program(self, name: str) -> str:
        """Where the runtime, or a program of NVIDIA's container toolkit, is."""
        return str(self._binaries.path(name))

    def run(self, container: Container, specs: Path) -> str:
        """Run a container to its end; return what it printed."""
        bundle = self._bundle(container, specs)
        return do(*self._runc("run"), "--bundle", str(bundle), self._name(bundle))

    def _runc(self, verb: str) -> tuple[str, ...]:
        return self.program(self._oci), "--root", str(self._folder / "runc"), verb

    def _name(self, bundle: Path) -> str:
        return f"{self._own}-{bundle.name}"

    def _bundle(self, container: Container, specs: Path) -> Path:
        bundle = self._folder / f"container-{next(self._numbers)}"
        bundle.mkdir()
        do("cp", "-a", str(self._image), str(bundle / "rootfs"))
        config = json.dumps(_config(container, cgroup=f"dra-{self._name(bundle)}"))
        if container.devices:
            inject = (str(self._binaries.path("cdi-inject")), str(specs), *container.devices)
            config = do(*inject, stdin=config)
        (bundle / "config.json").write_text(config)
        return bundle


def do(*words: str, stdin: str = "") -> str:
    """Run a program that has to succeed; return what it printed."""
    done = subprocess.run(
        words, input=stdin, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{words[0]}: {done.stdout}{done.stderr}"
    return done.stdout


def look_up(output: str) -> dict[str, Found]:
    """Return the output of `look-up NAME...`, by name."""
    rows = (line.split("\t") for line in output.splitlines())
    return {name: Found(path=path, version=version) for name, path, version in rows}


def _unpacked(binaries: Binaries, folder: Path) -> Path:
    """The image of the end-to-end tests as a folder, with a program that asks the loader."""
    for entry in gpu_test_image(binaries.path("busybox")).entries:
        path = folder / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if entry.target:
            path.symlink_to(entry.target)
        elif entry.content is None:
            path.mkdir(exist_ok=True)
        else:
            path.write_bytes(entry.content)
            path.chmod(entry.mode)
    source = folder.with_name("look-up.c")
    source.write_text(_LOOK_UP)
    compiler = find_compiler(os.environ)
    program = folder / "usr" / "bin" / "look-up"
    subprocess.run([compiler, "-o", program, source, "-ldl"], check=True, timeout=60)
    return folder


def _config(container: Container, *, cgroup: str) -> dict[str, Any]:
    """The OCI configuration of a container, which may open only given devices."""
    capabilities = {kind: list(container.capabilities) for kind in ("bounding", "permitted")}
    mounts = [
        {"destination": path, "type": kind, "source": kind, "options": list(options)}
        for path, kind, options in _BINDS
    ]
    return {
        "ociVersion": "1.2.0",
        "root": {"path": "rootfs"},
        "process": {
            "user": {"uid": 0, "gid": 0},
            "cwd": "/",
            "args": list(container.command),
            "env": [f"{name}={value}" for name, value in container.env.items()],
            "noNewPrivileges": True,
            "capabilities": capabilities,
        },
        "mounts": mounts,
        "linux": {
            "cgroupsPath": f"/{cgroup}",
            "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "network")],
            "resources": {"devices": [{"allow": container.every_device, "access": "rwm"}]},
        },
    }
