"""Runs the demo: the order of its parts, what is left out and why, and how it ends.

Everything that was started is torn down again, also after a failure and after Ctrl-C. `--keep`
leaves the cluster running with the last demo on it, and `--down` ends that.
"""

import argparse
import fcntl
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from cluster.binaries import RUNTIMES
from image.archive import ImageError
from image.builder import driver_archive
from testbed.cluster import COMMAND, Cluster, version_flags
from testbed.commands import TestbedError, stream
from testbed.installed_node import InstalledNode
from testbed.node import GpuNode

from demo import demos, machines, node_half, versions
from demo.cluster_half import run_demos, show_offer
from demo.prepared import SHARES_NOTHING
from demo.screen import Screen

NAME = "demo"
PROFILE = "h100x8-mig"
DEFAULT_DEMOS = ("whole-gpu", "mig", "shared-gpu")
LOCKS = Path("/run")
NAMES = re.compile(r"demo(-[a-z0-9]{1,10})?")
SETTINGS = {"RESCAN_INTERVAL": "1"}
"""Show changes of the machine immediately."""

_FETCH_S = 7200
"""The first time, programs that cannot be downloaded are compiled."""

KEPT_TOKEN_SECONDS = 7 * 24 * 3600
"""Nobody renews the token of a driver that was left running, so it is valid for long."""


def main(words: Sequence[str]) -> int:
    """Run the demo; return the exit status."""
    options = options_of(words)
    signal.signal(signal.SIGTERM, _interrupt)
    screen = Screen()
    try:
        chosen, left_out = _chosen(options)
        if options.down:
            return _end_kept(screen, options)
        return _show(screen, options, chosen, left_out)
    except TestbedError as error:
        screen.line(f"\ndemo: FAILED: {error}")
        return 1
    except KeyboardInterrupt:
        screen.line("\ndemo: interrupted; everything was torn down")
        return 130


def options_of(words: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command line."""
    about = "See the driver work, without a GPU."
    parser = argparse.ArgumentParser(prog="hack/demo", description=about)
    add = parser.add_argument
    add(
        "--demo",
        metavar="NAME|all",
        help=f"demos to run: {', '.join(demos.names())} (default: {' '.join(DEFAULT_DEMOS)})",
    )
    add(
        "--profile",
        metavar="NAME|FILE",
        default=PROFILE,
        help=f"the simulated machine, as `dra-driver simulate profiles` lists them ({PROFILE})",
    )
    usual = ".".join(map(str, versions.DEFAULT))
    add("--kubernetes", metavar="VERSION", default="", help=f"such as 1.36 ({usual})")
    add("--runtime", choices=RUNTIMES, default=RUNTIMES[0], help=f"usually {RUNTIMES[0]}")
    add("--install", choices=("chart",), help="run the driver from its image, by the chart")
    add("--keep", action="store_true", help="leave the cluster running")
    add("--down", action="store_true", help="end what --keep left running")
    add("--name", default="", help="a name of its own, to run beside other demos")
    options = parser.parse_args(words)
    options.cluster = f"{NAME}-{options.name}" if options.name else NAME
    options.home = Path("/var/lib", f"dra-{options.cluster}")
    if not NAMES.fullmatch(options.cluster):
        parser.error(f"--name {options.name}: use at most 10 of a-z and 0-9")
    return options


def _chosen(options: argparse.Namespace) -> tuple[list[demos.Demo], dict[str, str]]:
    """Return the demos to run, and by name the reasons why the machine cannot run the others.

    Raises TestbedError if there is no such demo, machine or version, or the one requested demo
    cannot run on them.
    """
    machine, demo = machines.machine(options.profile), options.demo
    kubernetes = versions.minor_of(options.kubernetes)
    if demo in {None, "all"}:
        wanted = demos.names() if demo else DEFAULT_DEMOS
        chosen, left_out = demos.load_all(wanted, machine, kubernetes)
        alone = {one.name for one in chosen if one.passthrough}
        left_out |= dict.fromkeys(alone, "it takes a GPU from the other demos; run it by its name")
        return [one for one in chosen if one.name not in alone], left_out
    try:
        return [demos.load(demo, machine, kubernetes)], {}
    except machines.UnfitError as reason:
        can = ", ".join(demos.profiles_for(demo)) or "none that is shipped"
        raise TestbedError(
            f"demo {demo} cannot run on {options.profile}: {reason}. Profiles that can: {can}"
        ) from reason


def _show(
    screen: Screen,
    options: argparse.Namespace,
    chosen: Sequence[demos.Demo],
    left_out: Mapping[str, str],
) -> int:
    if os.geteuid() != 0:
        _node_half(screen, options)
        command = _as_root(typed(options))
        screen.line(f"\ndemo: pods left out, because a kubelet needs root: {command} runs them")
        return 0
    kubernetes = versions.minor_of(options.kubernetes)
    with alone(screen, options):
        _node_half(screen, options)
        for name, reason in left_out.items():
            screen.line(f"demo {name}: left out on {options.profile}: {reason}")
        if any(demo.made for demo in chosen) and not versions.makes_mig(kubernetes):
            version = ".".join(map(str, kubernetes))
            screen.line(
                f"on Kubernetes {version} the driver makes no MIG devices unless it is told to: for"
                " the demos of MIG an admin makes them"
            )
        if not chosen:
            screen.line("\ndemo: ok, without pods, as this machine has no GPUs for these demos")
            return 0
        screen.part("Binaries of a real Kubernetes cluster")
        flags = version_flags(version=options.kubernetes, runtime=options.runtime)
        try:
            stream((sys.executable, COMMAND, "fetch", *flags), screen.text, timeout=_FETCH_S)
        except TestbedError:
            screen.line("\nThe cluster half was left out, for the reason above")
            return 1 if os.environ.get("CI") else 0
        return _cluster_half(screen, options, chosen)


def typed(options: argparse.Namespace) -> str:
    """Return the command line of this demo."""
    words = {
        f"DEMO={options.demo}": options.demo,
        f"PROFILE={options.profile}": options.profile != PROFILE,
        f"KUBERNETES={options.kubernetes}": options.kubernetes,
        f"RUNTIME={options.runtime}": options.runtime != RUNTIMES[0],
        f"INSTALL={options.install}": options.install,
        "KEEP=1": options.keep,
        f"NAME={options.name}": options.name,
    }
    return " ".join(["make demo", *(word for word, is_said in words.items() if is_said)])


def _as_root(command: str) -> str:
    return f"sudo {command}" if shutil.which("sudo") else f"su -c '{command}'"


def _node_half(screen: Screen, options: argparse.Namespace) -> None:
    screen.part("The node half: GPUs, driver, claims, CDI")
    # Unix socket paths are short, so this is no place for a long TMPDIR.
    with tempfile.TemporaryDirectory(prefix="dra-demo-", dir="/tmp") as folder:
        kubernetes = versions.minor_of(options.kubernetes)
        node_half.show(screen, Path(folder), options.profile, kubernetes)


def _cluster_half(screen: Screen, options: argparse.Namespace, chosen: Sequence[demos.Demo]) -> int:
    screen.part("A real Kubernetes node")
    keep = options.keep
    if options.install:
        node: GpuNode = _installed_node(screen, options)
    else:
        node = _gpu_node(options, mps=any(demo.mps for demo in chosen))
    node.clear()
    node.share(SHARES_NOTHING)
    if any(demo.passthrough for demo in chosen):
        node.machine.profile = machines.with_iommu(options.profile, options.home)
    kept = False
    try:
        node.up(screen.step, detached=keep)
        show_offer(screen, node)
        failed = run_demos(screen, node, chosen, keep_last=keep)
        if keep:
            (node.folder / "kept").touch()
            kept = True
            _tell_how_to_use(screen, options, node)
    finally:
        if not kept:
            _tear_down(screen, node)
    if failed:
        screen.line(f"\ndemo: FAILED: {', '.join(failed)}")
        return 1
    screen.line("\ndemo: ok")
    return 0


def _gpu_node(options: argparse.Namespace, *, mps: bool = False) -> GpuNode:
    return GpuNode(
        Cluster(options.cluster, options.kubernetes, runtime=options.runtime),
        options.home,
        profile=options.profile,
        token_life=KEPT_TOKEN_SECONDS if options.keep else 3600,
        driver_env=SETTINGS | {"SHARE_CONFIG": str(options.home / "share-configs")},
        mps=mps,
    )


def _installed_node(screen: Screen, options: argparse.Namespace) -> InstalledNode:
    """Build the image, or find the one built before, and return a node that will run it.

    Raises TestbedError if the image could not be built.
    """
    try:
        image = driver_archive(screen.step)
    except ImageError as error:
        raise TestbedError(f"the driver's image could not be built: {error}") from error
    cluster = Cluster(options.cluster, options.kubernetes, runtime=options.runtime, for_pods=True)
    return InstalledNode(cluster, options.home, image, profile=options.profile, driver_env=SETTINGS)


def _tear_down(screen: Screen, node: GpuNode) -> None:
    # A second Ctrl-C must not leave half a cluster behind.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    screen.part("Tearing down")
    node.down()
    screen.step("cluster, driver and simulated machine are gone")


def _tell_how_to_use(screen: Screen, options: argparse.Namespace, node: GpuNode) -> None:
    screen.part("Left running")
    env, machine = node.cluster.env, node.machine.root
    plugins = f"KUBELET_PLUGINS_DIRECTORY_PATH={node.place.plugins} PROC_ROOT={machine}/proc"
    screen.line(f"""\
    export KUBECONFIG={env["KUBECONFIG"]}
    alias kubectl={env["KUBECTL"]}
    kubectl get pods,resourceclaims,resourceslices -A
    kubectl apply -f manifests/demos/{DEFAULT_DEMOS[0]}/demo.yaml

    The driver's log:        {node.follow_log}
    Who shares which GPU:    {plugins} .venv/bin/dra-driver status
    The cluster's parts:     python3 hack/cluster status --name {options.cluster}
    Make a GPU fall off:     .venv/bin/dra-driver simulate fault lose --gpu 0 --root {machine}
    End all of it:           {_down(options)}""")


def _down(options: argparse.Namespace) -> str:
    name = f" --name {options.name}" if options.name else ""
    return f".venv/bin/python hack/demo --down{name}"


def _end_kept(screen: Screen, options: argparse.Namespace) -> int:
    if os.geteuid() != 0:
        raise TestbedError(f"only root can end it: {_as_root(_down(options))}")
    with alone(screen, options):
        _gpu_node(options).clear()
    screen.step("nothing is left of the demo")
    return 0


@contextmanager
def alone(screen: Screen, options: argparse.Namespace) -> Iterator[None]:
    """Hold the lock for cluster demos of a name.

    Raises TestbedError if another demo runs, or one was left running by `--keep`.
    """
    other = "; to run this one beside it, give it a name: make demo NAME=two"
    with (LOCKS / f"dra-{options.cluster}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TestbedError(f"{options.cluster} is running on this machine{other}") from error
        if (options.home / "kept").exists() and not options.down:
            screen.line(f"{options.cluster} was left running with --keep.")
            raise TestbedError(f"end it first: {_down(options)}{other}")
        yield


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
