"""Containers without a cluster: runc, a root file system with glibc, and devices by CDI.

What a runtime does with CDI specs is done by the library that containerd and CRI-O use
(hack/cluster/go/cdi), and what hooks do by NVIDIA's own nvidia-cdi-hook.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.append(str(REPOSITORY / "hack" / "cluster"))

from local_cluster.binaries import Binaries, Store, default_cache  # noqa: E402
from local_cluster.errors import ClusterError  # noqa: E402
from local_cluster.image import CUDA_ENV, gpu_test_image  # noqa: E402
from local_cluster.progress import Progress  # noqa: E402
from local_cluster.versions import DEFAULT_MINOR, resolve  # noqa: E402

from dra_driver.simulator.build import find_compiler  # noqa: E402

__all__ = ["BARE_ENV", "CUDA_ENV", "ClusterError", "Containers", "Found", "look_up"]

BARE_ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

# Says of each name which file the loader takes, and the text behind the last NUL in it.
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
    """Which file the loader of a container takes for a name, and of which driver it is."""

    path: str
    version: str


class Containers:
    """Runs commands in containers of one image, each in a root file system of its own."""

    def __init__(self, folder: Path) -> None:
        """Take a folder for all files.

        Raises:
            ClusterError: the programs could not be had.
        """
        store = Store(
            cache=default_cache(os.environ), env=os.environ, progress=Progress(stream=sys.stderr)
        )
        self._folder = folder
        self._binaries = store.fetch(resolve(DEFAULT_MINOR), ["runc", "busybox", "cdi"])
        self._image = _unpacked(self._binaries, folder / "image")
        self._numbers = count()

    @property
    def hook(self) -> str:
        """Where NVIDIA's hook program is."""
        return str(self._binaries.path("nvidia-cdi-hook"))

    def run(
        self, command: Sequence[str], *, specs: Path, devices: Sequence[str], env: Mapping[str, str]
    ) -> str:
        """Run a command in a new container with CDI devices; return what it printed."""
        bundle = self._folder / f"container-{next(self._numbers)}"
        bundle.mkdir()
        self._do("cp", "-a", str(self._image), str(bundle / "rootfs"))
        config = json.dumps(_config(command, env, cgroup=f"dra-{os.getpid()}-{bundle.name}"))
        inject = (str(self._binaries.path("cdi-inject")), str(specs), *devices)
        (bundle / "config.json").write_text(self._do(*inject, stdin=config))
        root = ("--root", str(self._folder / "runc"))
        name = f"{os.getpid()}-{bundle.name}"
        runc = str(self._binaries.path("runc"))
        return self._do(runc, *root, "run", "--bundle", str(bundle), name)

    @staticmethod
    def _do(*words: str, stdin: str = "") -> str:
        done = subprocess.run(
            words, input=stdin, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{words[0]}: {done.stdout}{done.stderr}"
        return done.stdout


def look_up(output: str) -> dict[str, Found]:
    """What `look-up NAME...` printed, by name."""
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


def _config(command: Sequence[str], env: Mapping[str, str], *, cgroup: str) -> dict[str, Any]:
    """The OCI configuration of a container that may open no device but those it is given."""
    return {
        "ociVersion": "1.2.0",
        "root": {"path": "rootfs"},
        "process": {
            "user": {"uid": 0, "gid": 0},
            "cwd": "/",
            "args": list(command),
            "env": [f"{name}={value}" for name, value in env.items()],
            "noNewPrivileges": True,
        },
        "mounts": [
            {"destination": path, "type": kind, "source": kind, "options": list(options)}
            for path, kind, options in _BINDS
        ],
        "linux": {
            "cgroupsPath": f"/{cgroup}",
            "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "network")],
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
        },
    }
