"""Kubernetes, etcd, containerd, Kueue, helm, vale, CDI's programs: from Go modules, with progress.

In: the go.mod and go.sum files under hack/cluster/go, which pin every module by version and
checksum. Out: static executables. Only the Go module proxy is needed from the network. `go build
-v` names each package that it has compiled; together with the number of packages that `go list`
reports, this shows the progress.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cluster import versions as pins
from cluster.errors import SourceError
from cluster.progress import Progress, duration
from cluster.toolchain import Go
from cluster.versions import Versions, pinned

KUBERNETES_PROGRAMS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kubectl",
)
CONTAINERD_PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr")
TOOLKIT_PROGRAMS = ("nvidia-cdi-hook", "nvidia-ctk")
ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint"
KUEUE_CONFIG = "config"
"""The folder of Kueue's manifests, beside its program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of `go build`: what, and out of which go.mod.

    `module` is the folder of the source, if it is not that of go.mod: another folder's go.mod can
    pin it to another version. `program` is the executable's name; without it go names one for each
    package. `cgo` says that parts are written in C, which needs a C compiler; `c_flags` are for it,
    by default go's own.
    """

    title: str
    go_mod: Path
    module: Path | None = None
    packages: tuple[str, ...] = (".",)
    program: str = ""
    tags: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of packages for the linker to set."""

    cgo: bool = False
    c_flags: str = "-O2 -g"

    @property
    def ldflags(self) -> str:
        """Without symbols, and with the variables."""
        return " ".join(
            ["-s -w", *(f"-X {name}={value}" for name, value in self.variables.items())]
        )

    @property
    def flags(self) -> list[str]:
        """The arguments of go for the job, to compile and to list."""
        tags = ["-tags", ",".join(self.tags)] if self.tags else []
        return ["-trimpath", "-buildvcs=false", *tags, "-ldflags", self.ldflags]


def jobs(group: str, versions: Versions) -> list[Job]:
    """The jobs that compile a group of programs; none if it is not compiled here."""
    toolkit = "github.com/NVIDIA/nvidia-container-toolkit"
    cdi = Job(
        title=f"nvidia-container-toolkit {versions.container_toolkit}",
        go_mod=pins.CDI_GO_MOD,
        packages=(".", *(f"{toolkit}/cmd/{name}" for name in TOOLKIT_PROGRAMS)),
        cgo=True,
    )
    vale = Job(
        title="vale",
        go_mod=pins.VALE_GO_MOD,
        packages=(f"{pins.VALE_MODULE}/cmd/vale",),
        program="vale",
        variables={"main.version": f"v{pinned(pins.VALE_GO_MOD, pins.VALE_MODULE)}"},
        cgo=True,
        # Its parsers are 100 MB of C, which our pages do not need to be fast.
        c_flags="-O0",
    )
    plugin = Job(
        title="NVIDIA's device plugin",
        go_mod=pins.DEVICE_PLUGIN_GO_MOD,
        packages=(f"{pins.DEVICE_PLUGIN_MODULE}/cmd/nvidia-device-plugin",),
        program="nvidia-device-plugin",
        cgo=True,
    )
    readers = {f"read-metadata-{minor}": path for minor, path in pins.METADATA_GO_MODS.items()}
    return {
        "kubernetes": [kubernetes_job(versions)],
        "containerd": [containerd_job(versions)],
        # Distributions have versions without features that the API server's cache needs.
        "etcd": [Job(title=f"etcd {versions.etcd}", go_mod=pins.ETCD_GO_MOD)],
        "cdi": [cdi],
        "judge": _judges(pins.DEFAULT_MINOR),
        "judge-1.38": _judges("1.38", "-1.38", "kubernetes_1_38"),
        "autoscaler": [_own_job("autoscaler-judge", pins.AUTOSCALER_GO_MOD)],
        "karpenter": [_own_job("karpenter-judge", pins.KARPENTER_GO_MOD)],
        "device-plugin": [plugin],
        "helm": [_tool("helm", pins.HELM_GO_MOD, pins.HELM_MODULE, "internal/version.version")],
        "kueue": [_tool("kueue", pins.KUEUE_GO_MOD, pins.KUEUE_MODULE, "pkg/version.GitVersion")],
        "vale": [vale],
        "actionlint": [_own_job("actionlint", pins.ACTIONLINT_GO_MOD, ACTIONLINT)],
        "metadata": [_own_job(program, path) for program, path in readers.items()],
    }.get(group, [])


def _judges(minor: str, suffix: str = "", *tags: str) -> list[Job]:
    """What asks the scheduler's allocator, and what asks the API server's validation."""
    return [
        Job(
            title=f"{program}{suffix}",
            module=pins.JUDGES,
            go_mod=pins.GO_MOD_FILES[minor],
            packages=(package,),
            program=f"{program}{suffix}",
            tags=tags,
        )
        for program, package in (("allocation-judge", "./allocator"), ("api-judge", "./api"))
    ]


def _tool(name: str, go_mod: Path, module: str, variable: str) -> Job:
    """A module's command, which says the pinned version because the linker sets a variable."""
    return Job(
        title=name,
        go_mod=go_mod,
        packages=(f"{module}/cmd/{name}",),
        program=name,
        variables={f"{module}/{variable}": f"v{pinned(go_mod, module)}"},
    )


def _own_job(program: str, go_mod: Path, package: str = ".") -> Job:
    """The job of one of our own programs."""
    return Job(title=program, go_mod=go_mod, packages=(package,), program=program)


def kubernetes_job(versions: Versions) -> Job:
    """All Kubernetes programs as one executable, called by several names; or the scheduler."""
    major, minor = versions.minor.split(".")
    # The API server derives the APIs and feature gates it serves from its own version.
    variables = {
        "gitVersion": f"v{versions.kubernetes}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
    }
    alone = versions.minor == pins.SCHEDULER_ONLY
    return Job(
        title=f"{'kube-scheduler' if alone else 'kubernetes'} {versions.kubernetes}",
        module=pins.JUDGES if alone else pins.MODULES / "kubernetes",
        go_mod=pins.GO_MOD_FILES[versions.minor],
        program="kube-scheduler" if alone else "kubernetes",
        variables={f"k8s.io/component-base/version.{key}": text for key, text in variables.items()},
    )


def containerd_job(versions: Versions) -> Job:
    """containerd, its runc shim and ctr."""
    package, go_mod = versions.containerd_module
    return Job(
        title=f"containerd {versions.containerd}",
        go_mod=go_mod,
        packages=tuple(f"{package}/cmd/{name}" for name in CONTAINERD_PROGRAMS),
        variables={f"{package}/version.Version": f"v{versions.containerd}"},
    )


def compile_group(group: str, go: Go, versions: Versions, folder: Path, progress: Progress) -> None:
    """Compile the programs of a group into a folder."""
    for job in jobs(group, versions):
        build(go, job, folder / job.program, progress)
        if group == "kueue":
            _copy(module_folder(go, job, pins.KUEUE_MODULE) / "config", folder / KUEUE_CONFIG)
    for name in KUBERNETES_PROGRAMS if (folder / "kubernetes").exists() else ():
        (folder / name).symlink_to(group)


def _copy(source: Path, target: Path) -> None:
    """Copy a folder of manifests, without the modes of Go's cache, where nothing may be deleted."""
    for path in source.rglob("*.yaml"):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)


def build(go: Go, job: Job, out: Path, progress: Progress) -> None:
    """Run one job.

    Raises SourceError if the module proxy did not deliver, or the compiler failed.
    """
    started = time.monotonic()
    stale = _packages_to_compile(go, job, progress)
    total, done = len(stale), 0
    progress.say(f"{job.title}: compiling {total} packages of Go; the result is kept")

    def count(line: str) -> None:
        nonlocal done
        if line not in stale:
            return
        done += 1
        elapsed = duration(time.monotonic() - started)
        progress.update(f"{job.title}: compiled {done} of {total} packages in {elapsed}")

    # With several packages, -o names a folder, recognised by its trailing slash.
    target = f"{out}/" if out.is_dir() else str(out)
    _run_go(go, job, ["build", "-v", *job.flags, "-o", target, *job.packages], on_line=count)
    progress.say(f"{job.title}: compiled in {duration(time.monotonic() - started)}")


def _packages_to_compile(go: Go, job: Job, progress: Progress) -> set[str]:
    """The import paths that the build has to compile; also fetches the modules."""
    modules = 0

    def count(line: str) -> None:
        nonlocal modules
        if line.startswith("go: downloading "):
            modules += 1
            name = line.removeprefix("go: downloading ").split(" ")[0]
            progress.update(f"{job.title}: fetched {modules} Go modules, now {name}")

    form = "{{if .Stale}}{{.ImportPath}}{{end}}"
    listed = ["list", *job.flags, "-deps", "-f", form, *job.packages]
    return {line for line in _run_go(go, job, listed, on_line=count) if line}


def module_folder(go: Go, job: Job, module: str) -> Path:
    """The folder with the source of a module that a job's go.mod pins."""
    command = ["list", "-m", "-f", "{{.Dir}}", module]
    return Path(_run_go(go, job, command, on_line=lambda _: None)[0])


def _run_go(go: Go, job: Job, command: list[str], on_line: Callable[[str], None]) -> list[str]:
    """Run go, handing each line of its stderr to a function; its stdout as lines."""
    verb, *rest = command
    nice = [shutil.which("nice") or "nice"]
    full = [*nice, str(go.command), verb, f"-modfile={job.go_mod}", "-mod=readonly", *rest]
    tail: deque[str] = deque(maxlen=15)
    with (
        tempfile.TemporaryFile("w+") as output,
        subprocess.Popen(
            full,
            cwd=job.module or job.go_mod.parent,
            env={**go.env, **_for_c(job)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        ) as process,
    ):
        try:
            for line in process.stderr or ():
                tail.append(line.rstrip())
                on_line(line.strip())
        except BaseException:
            # go leaves its compilers running if only it is ended.
            os.killpg(process.pid, signal.SIGKILL)
            raise
        if process.wait(timeout=60) != 0:
            raise SourceError(_failure(job, verb, list(tail)))
        output.seek(0)
        return output.read().splitlines()


def _for_c(job: Job) -> dict[str, str]:
    if not job.cgo:
        return {}
    return {"CGO_ENABLED": "1", "CGO_CFLAGS": job.c_flags, "CGO_CXXFLAGS": job.c_flags}


def _failure(job: Job, verb: str, tail: list[str]) -> str:
    text = "\n".join(tail)
    if re.search(r"dial tcp|no such host|i/o timeout|connection refused|proxyconnect", text):
        last = next((line for line in reversed(tail) if line), "")
        return f"the Go module proxy cannot be reached (GOPROXY sets it): {last}"
    return f"{job.title}: go {verb} failed:\n{text}"
