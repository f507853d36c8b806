"""Kubernetes, etcd, containerd, helm, vale and CDI's programs from Go modules, with progress.

In come the go.mod and go.sum files under hack/cluster/go, which pin every module by
version and checksum; out come static executables. The network is the Go module proxy
alone. `go build -v` names each package it has compiled; counted against the packages
that `go list` says are to be compiled, that is how far the build is.
"""

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cluster.errors import SourceError
from cluster.progress import Progress, duration, remaining
from cluster.toolchain import Go
from cluster.versions import (
    ALLOCATOR_GO_MOD,
    CDI_GO_MOD,
    ETCD_GO_MOD,
    GO_MOD_FILES,
    HELM_GO_MOD,
    METADATA_GO_MODS,
    MODULES,
    VALE_GO_MOD,
    VALE_MODULE,
    Versions,
    pinned,
)

KUBERNETES_PROGRAMS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kubectl",
)
CONTAINERD_PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr")
TOOLKIT_PROGRAMS = (
    "nvidia-cdi-hook",
    "nvidia-container-runtime",
    "nvidia-container-runtime-hook",
    "nvidia-ctk",
)
CDI_PROGRAMS = ("cdi-inject", *TOOLKIT_PROGRAMS)
ALLOCATOR_PROGRAMS = ("allocator-cost",)
JUDGE_PROGRAMS = ("allocation-judge",)
HELM_PROGRAMS = ("helm",)
VALE_PROGRAMS = ("vale",)
METADATA_PROGRAMS = tuple(f"read-metadata-{minor}" for minor in METADATA_GO_MODS)
# CPU time that a package takes on average, and linking in the end: for the first estimate.
PACKAGE_CPU_S = 0.35
LINK_S = 15.0
C_FLAGS = "-O2 -g"  # what go itself takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of `go build`: what, and out of which go.mod.

    `module` is the folder of the source; another folder's go.mod can pin it to another version.
    `cgo` where parts are written in C, which needs a C compiler; `c_flags` are for it,
    and `c_cpu_s` is the CPU time that it takes, for the first estimate.
    """

    title: str
    module: Path
    go_mod: Path
    packages: tuple[str, ...]
    ldflags: str
    cgo: bool = False
    c_flags: str = C_FLAGS
    c_cpu_s: float = 0.0


def kubernetes_job(versions: Versions) -> Job:
    """All Kubernetes programs as one executable that acts as the name it is called by."""
    major, minor = versions.minor.split(".")
    # The API server derives the APIs and feature gates it serves from its own version.
    variables = {
        "gitVersion": f"v{versions.kubernetes}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
    }
    flags = [f"-X k8s.io/component-base/version.{key}={value}" for key, value in variables.items()]
    return Job(
        title=f"kubernetes {versions.kubernetes}",
        module=MODULES / "kubernetes",
        go_mod=GO_MOD_FILES[versions.minor],
        packages=(".",),
        ldflags=" ".join(["-s -w", *flags]),
    )


def containerd_job(versions: Versions) -> Job:
    """containerd, its runc shim and ctr."""
    package, go_mod = versions.containerd_module
    return Job(
        title=f"containerd {versions.containerd}",
        module=go_mod.parent,
        go_mod=go_mod,
        packages=tuple(f"{package}/cmd/{name}" for name in CONTAINERD_PROGRAMS),
        ldflags=f"-s -w -X {package}/version.Version=v{versions.containerd}",
    )


def etcd_job(versions: Versions) -> Job:
    """etcd. Distributions have versions without what the API server's cache needs of it."""
    return Job(
        title=f"etcd {versions.etcd}",
        module=ETCD_GO_MOD.parent,
        go_mod=ETCD_GO_MOD,
        packages=(".",),
        ldflags="-s -w",
    )


def allocator_job() -> Job:
    """What measures the scheduler's allocator of devices."""
    return Job(
        title="allocator-cost",
        module=ALLOCATOR_GO_MOD.parent,
        go_mod=ALLOCATOR_GO_MOD,
        packages=(".",),
        ldflags="-s -w",
    )


def judge_job() -> Job:
    """What says whether the scheduler's allocator finds devices for claims."""
    return Job(
        title="allocation-judge",
        module=ALLOCATOR_GO_MOD.parent,
        go_mod=ALLOCATOR_GO_MOD,
        packages=("./judge",),
        ldflags="-s -w",
    )


def helm_job() -> Job:
    """helm, which says of itself the version that go.mod pins."""
    module = "helm.sh/helm/v4"
    version = f"{module}/internal/version.version=v{pinned(HELM_GO_MOD, module)}"
    return Job(
        title="helm",
        module=HELM_GO_MOD.parent,
        go_mod=HELM_GO_MOD,
        packages=(f"{module}/cmd/helm",),
        ldflags=f"-s -w -X {version}",
    )


def vale_job() -> Job:
    """vale, which checks the English of texts, and says of itself the version that go.mod pins."""
    return Job(
        title="vale",
        module=VALE_GO_MOD.parent,
        go_mod=VALE_GO_MOD,
        packages=(f"{VALE_MODULE}/cmd/vale",),
        ldflags=f"-s -w -X main.version=v{pinned(VALE_GO_MOD, VALE_MODULE)}",
        cgo=True,
        # For its parsers of programming languages: 100 MB of C, which pages do not need to be fast.
        c_flags="-O0",
        c_cpu_s=150.0,
    )


def metadata_job(minor: str) -> Job:
    """What reads device metadata with the library of a Kubernetes minor version."""
    go_mod = METADATA_GO_MODS[minor]
    return Job(
        title=f"read-metadata-{minor}",
        module=go_mod.parent,
        go_mod=go_mod,
        packages=(".",),
        ldflags="-s -w",
    )


def cdi_job(versions: Versions) -> Job:
    """What a runtime does with a CDI spec, and programs of NVIDIA's container toolkit."""
    package = "github.com/NVIDIA/nvidia-container-toolkit"
    return Job(
        title=f"nvidia-container-toolkit {versions.container_toolkit}",
        module=CDI_GO_MOD.parent,
        go_mod=CDI_GO_MOD,
        packages=(".", *(f"{package}/cmd/{name}" for name in TOOLKIT_PROGRAMS)),
        ldflags="-s -w",
        cgo=True,
    )


def compile_kubernetes(go: Go, versions: Versions, folder: Path, progress: Progress) -> None:
    """Compile Kubernetes into a folder, each program a link to the one executable."""
    out = folder / "kubernetes"
    _build(go, kubernetes_job(versions), out, progress)
    for name in KUBERNETES_PROGRAMS:
        (folder / name).symlink_to(out.name)


def compile_containerd(go: Go, versions: Versions, folder: Path, progress: Progress) -> None:
    """Compile containerd, its shim and ctr into a folder."""
    # With several packages, -o names a folder, recognised by its trailing slash.
    _build(go, containerd_job(versions), folder, progress)


def compile_etcd(go: Go, versions: Versions, folder: Path, progress: Progress) -> None:
    """Compile etcd into a folder."""
    _build(go, etcd_job(versions), folder, progress)


def compile_allocator(go: Go, _: Versions, folder: Path, progress: Progress) -> None:
    """Compile allocator-cost into a folder."""
    _build(go, allocator_job(), folder / ALLOCATOR_PROGRAMS[0], progress)


def compile_judge(go: Go, _: Versions, folder: Path, progress: Progress) -> None:
    """Compile allocation-judge into a folder."""
    _build(go, judge_job(), folder / JUDGE_PROGRAMS[0], progress)


def compile_helm(go: Go, _: Versions, folder: Path, progress: Progress) -> None:
    """Compile helm into a folder."""
    _build(go, helm_job(), folder / HELM_PROGRAMS[0], progress)


def compile_vale(go: Go, _: Versions, folder: Path, progress: Progress) -> None:
    """Compile vale into a folder."""
    _build(go, vale_job(), folder / VALE_PROGRAMS[0], progress)


def compile_metadata(go: Go, _: Versions, folder: Path, progress: Progress) -> None:
    """Compile all readers of device metadata into a folder."""
    for minor, program in zip(METADATA_GO_MODS, METADATA_PROGRAMS, strict=True):
        _build(go, metadata_job(minor), folder / program, progress)


def compile_cdi(go: Go, versions: Versions, folder: Path, progress: Progress) -> None:
    """Compile cdi-inject and programs of NVIDIA's container toolkit into a folder."""
    _build(go, cdi_job(versions), folder, progress)


def _cores() -> int:
    # Those that this process may use, which in a container can be fewer than the machine has.
    return max(1, len(os.sched_getaffinity(0)))


def _build(go: Go, job: Job, out: Path, progress: Progress) -> None:
    """Run one job.

    Raises:
        SourceError: the module proxy did not deliver, or the compiler failed.
    """
    started = time.monotonic()
    stale = _packages_to_compile(go, job, progress)
    total, done = len(stale), 0
    guess_s = (total * PACKAGE_CPU_S + job.c_cpu_s) / _cores() + LINK_S
    progress.say(
        f"{job.title}: compiling {total} packages of Go, about {duration(guess_s)} if this machine "
        "does nothing else; the result is kept"
    )
    # Fetching the modules is no measure of the compiler's pace.
    compiling = time.monotonic()

    def count(line: str) -> None:
        nonlocal done
        if line not in stale:
            return
        done += 1
        elapsed = time.monotonic() - compiling
        pace = f"about {duration(remaining(done, total, elapsed, guess_s))} left"
        if elapsed > guess_s:  # large packages come last, so the pace says too little
            pace = f"slower than the {duration(guess_s)} that were expected"
        progress.update(
            f"{job.title}: compiled {done} of {total} packages in {duration(elapsed)}, {pace}"
        )

    target = f"{out}/" if out.is_dir() else str(out)
    command = ["build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", job.ldflags, "-o", target]
    _run_go(go, job, [*command, *job.packages], on_line=count)
    progress.say(f"{job.title}: compiled in {duration(time.monotonic() - started)}")


def _packages_to_compile(go: Go, job: Job, progress: Progress) -> set[str]:
    """The import paths that the build has to compile; fetches the modules on the way."""
    modules = 0

    def count(line: str) -> None:
        nonlocal modules
        if line.startswith("go: downloading "):
            modules += 1
            name = line.removeprefix("go: downloading ").split(" ")[0]
            progress.update(f"{job.title}: fetched {modules} Go modules, now {name}")

    form = "{{if .Stale}}{{.ImportPath}}{{end}}"
    flags = ["-trimpath", "-buildvcs=false", "-ldflags", job.ldflags]
    output = _run_go(go, job, ["list", *flags, "-deps", "-f", form, *job.packages], on_line=count)
    return {line for line in output if line}


def _run_go(go: Go, job: Job, command: list[str], on_line: Callable[[str], None]) -> list[str]:
    """Run go, handing each line of its stderr to a function; its stdout as lines."""
    verb, *rest = command
    nice = [shutil.which("nice") or "nice"]
    full = [*nice, str(go.command), verb, f"-modfile={job.go_mod}", "-mod=readonly", *rest]
    tail: deque[str] = deque(maxlen=15)
    output: list[str] = []
    with subprocess.Popen(
        full,
        cwd=job.module,
        env={**go.env, **_for_c(job)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as process:
        if process.stdout is None or process.stderr is None:
            raise SourceError("go was started without pipes")
        reader = threading.Thread(
            target=_collect, args=(process.stdout, output), name="go-stdout", daemon=True
        )
        reader.start()
        try:
            for line in process.stderr:
                tail.append(line.rstrip())
                on_line(line.strip())
        except BaseException:
            # go leaves its compilers behind when it alone is ended.
            os.killpg(process.pid, signal.SIGKILL)
            raise
        reader.join(timeout=60)
        status = process.wait(timeout=60)
    if status != 0:
        raise SourceError(_failure(job, verb, list(tail)))
    return output


def _for_c(job: Job) -> dict[str, str]:
    if not job.cgo:
        return {}
    return {"CGO_ENABLED": "1", "CGO_CFLAGS": job.c_flags, "CGO_CXXFLAGS": job.c_flags}


def _collect(stream: IO[str], into: list[str]) -> None:
    into.extend(line.rstrip("\n") for line in stream)


def _failure(job: Job, verb: str, tail: list[str]) -> str:
    text = "\n".join(tail)
    if re.search(r"dial tcp|no such host|i/o timeout|connection refused|proxyconnect", text):
        last = next((line for line in reversed(tail) if line), "")
        return f"the Go module proxy cannot be reached (GOPROXY sets it): {last}"
    return f"{job.title}: go {verb} failed:\n{text}"
