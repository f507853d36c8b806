"""The command line: python3 hack/cluster COMMAND.

Exit status: 0 done · 1 a failure, or `status` finds something unhealthy · 2 a wrong command
line · 3 no source has the programs · 4 root is needed.
"""

import argparse
import json
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from cluster import components, teardown
from cluster.binaries import (
    GROUPS,
    OCI_RUNTIMES,
    OTHER_GROUPS,
    RUNTIMES,
    Binaries,
    groups_of,
    of_this_user,
)
from cluster.errors import BinariesUnavailableError, ClusterError, NotRootError
from cluster.image import TEST_IMAGE
from cluster.kubelet_view import become
from cluster.lifecycle import Node, obtain
from cluster.progress import Progress
from cluster.state import DEFAULT_ROOT, Cluster, all_folders, load, locked, state_folder
from cluster.versions import CONTAINERD_MODULES, DEFAULT_MINOR, GO_MOD_FILES, Versions, resolve

_RUNTIME_OPTIONS = {
    "--runtime": ("the container runtime", RUNTIMES),
    "--oci": ("what the container runtime calls", OCI_RUNTIMES),
}


def main(arguments: Sequence[str]) -> int:
    """Run one command; its exit status."""
    if arguments[:1] == ["kubelet-view"]:
        # Only for this program, which starts a kubelet by it.
        become(Path(arguments[1]), arguments[2:])
    options = _parser().parse_args(arguments)
    progress = Progress(stream=sys.stderr)
    # After SIGTERM a command cleans up as after Ctrl-C: a compiler must not continue alone.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        status: int = options.run(options, progress)
    except ClusterError as error:
        progress.say(f"hack/cluster {options.command}: {error}")
        return error.exit_status
    except OSError as error:
        # The machine refused an operation (a mount, a bridge, a write): errno and path say which.
        progress.say(f"hack/cluster {options.command}: {error}")
        return 1
    except KeyboardInterrupt:
        progress.say(f"hack/cluster {options.command}: interrupted")
        return 130
    return status


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 hack/cluster",
        description="A real one-node Kubernetes on this machine.",
        epilog="Exit status 3: no source has the programs; 4: root is needed.",
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--name", default="dra", help="which cluster (default: dra)")
    common.add_argument(
        "--root",
        type=Path,
        default=DEFAULT_ROOT,
        help=f"folder of all clusters (default: {DEFAULT_ROOT})",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, parents=[common], help=text, description=text)
        command.set_defaults(run=globals()[f"_{name}"])
        return command

    up = add("up", "bring a cluster up and wait until pods can be made")
    down = add("down", "remove a cluster: processes, mounts, network, cgroups, files")
    down.add_argument("--all", action="store_true", help="every cluster on this machine")
    status = add("status", "show the components; exit status 1 when one is not healthy")
    status.add_argument("--json", action="store_true")
    env = add("env", "print the cluster's addresses and paths as shell exports")
    env.add_argument("--json", action="store_true")
    for verb in ("start", "stop"):
        command = add(verb, f"{verb} one component")
        command.add_argument("component", choices=components.NAMES)
        if verb == "stop":
            command.add_argument(
                "--signal", default="TERM", help="TERM (default), KILL … sent to stop it"
            )
    fetch = add("fetch", "download or compile the programs without starting anything")
    fetch.add_argument(
        "groups",
        nargs="*",
        metavar="GROUP",
        help=f"of {', '.join((*GROUPS, *OTHER_GROUPS))} (default: all that a cluster is made of)",
    )
    for command in (up, fetch):
        command.add_argument(
            "--version",
            help=f"Kubernetes version, of {', '.join(GO_MOD_FILES)} (default: {DEFAULT_MINOR})",
        )
        command.add_argument(
            "--containerd", help=f"its version, {' or '.join(CONTAINERD_MODULES)} (default: 2)"
        )
        for flag, (text, known) in _RUNTIME_OPTIONS.items():
            command.add_argument(flag, choices=known, help=f"{text} (default: {known[0]})")
    _add_options(up)
    add("load", "import the images of an OCI archive").add_argument(
        "archive", metavar="ARCHIVE", type=Path
    )
    add("tag", "add a name to the test image").add_argument("image", metavar="NAME")
    return parser


def _add_options(up: argparse.ArgumentParser) -> None:
    """The options that a cluster's user may choose."""
    up.add_argument("--feature-gates", help="NAME=true|false,… for every component")
    up.add_argument(
        "--flag",
        action="append",
        type=_flag,
        metavar="COMPONENT:--NAME=VALUE",
        help="one more flag for one component; may be repeated",
    )
    up.add_argument(
        "--apiserver",
        choices=("loopback", "bridge"),
        help="where the API server listens: pods reach it only on the bridge (default: loopback)",
    )


def _flag(text: str) -> str:
    component, _, flag = text.partition(":")
    if component not in components.NAMES or not flag.startswith("--") or len(text.split()) > 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not COMPONENT:--NAME=VALUE without blanks, with a component of "
            f"{', '.join(components.NAMES)}"
        )
    return text


def _need_root() -> None:
    if os.geteuid() != 0:
        raise NotRootError("a kubelet needs root: run this as root (sudo)")


def _existing(options: argparse.Namespace) -> Cluster:
    cluster = load(state_folder(options.name, options.root))
    if cluster is None:
        name = options.name
        raise ClusterError(f"there is no cluster {name}; `up --name {name}` makes it")
    return cluster


def _node(cluster: Cluster, binaries: Binaries, progress: Progress) -> Node:
    return Node(cluster=cluster, binaries=binaries, env=os.environ, progress=progress)


def _versions_of(cluster: Cluster) -> Versions:
    return resolve(cluster.options.kubernetes, cluster.options.containerd)


def _existing_node(options: argparse.Namespace, progress: Progress) -> Node:
    cluster = _existing(options)
    groups = groups_of(cluster.options.runtime, cluster.options.oci)
    binaries = of_this_user(progress).present(_versions_of(cluster), groups)
    if binaries is None:
        raise BinariesUnavailableError("the cluster's programs are gone; `fetch` gets them again")
    return _node(cluster, binaries, progress)


def _up(options: argparse.Namespace, progress: Progress) -> int:
    _need_root()
    folder = state_folder(options.name, options.root)
    known = load(folder)
    version = options.version or (known.options.kubernetes if known else DEFAULT_MINOR)
    versions = resolve(version, options.containerd or (known.options.containerd if known else ""))
    runtime = options.runtime or (known.options.runtime if known else RUNTIMES[0])
    oci = options.oci or (known.options.oci if known else OCI_RUNTIMES[0])
    binaries = of_this_user(progress).fetch(versions, groups_of(runtime, oci))
    scheduler, kubelet = map(binaries.path, ("kube-scheduler", "kubelet"))
    if scheduler.resolve().parent != kubelet.resolve().parent:
        rest = resolve(DEFAULT_MINOR).kubernetes
        progress.say(
            f"only the scheduler is {versions.kubernetes}: the rest of Kubernetes is {rest}"
        )
    asked = {
        "kubernetes": versions.kubernetes,
        "containerd": versions.containerd if options.containerd or not known else None,
        "runtime": runtime,
        "oci": oci,
        "feature_gates": options.feature_gates,
        "flags": " ".join(options.flag) if options.flag else None,
        "apiserver": options.apiserver,
    }
    wanted = {key: value for key, value in asked.items() if value is not None}
    cluster = obtain(options.name, folder, wanted)
    with locked(cluster.ident):
        _node(cluster, binaries, progress).up()
    root = "" if options.root == DEFAULT_ROOT else f"--root {shlex.quote(str(options.root))} "
    progress.say(f'use it: eval "$(python3 hack/cluster env {root}--name {cluster.name})"')
    return 0


def _down(options: argparse.Namespace, progress: Progress) -> int:
    _need_root()
    if options.all:
        for folder in all_folders(options.root.resolve()):
            teardown.down(folder, progress)
    elif not teardown.down(state_folder(options.name, options.root), progress):
        progress.say(f"there is no cluster {options.name}: nothing to do")
    return 0


def _status(options: argparse.Namespace, progress: Progress) -> int:
    node = _existing_node(options, progress)
    rows = [
        _row(node, name, component)
        for name, component in components.components(node.cluster, node.binaries).items()
    ]
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        versions = _versions_of(node.cluster)
        runtime = node.cluster.options.runtime
        programs = f"Kubernetes {versions.kubernetes}, {runtime} {getattr(versions, runtime)}"
        print(f"cluster {node.cluster.name}, {programs}")
        print(f"{'COMPONENT':<25}{'PID':<9}HEALTHY")
        for row in rows:
            name, pid, healthy = row.values()
            print(f"{name:<25}{pid or '-':<9}{'yes' if healthy else 'no'}")
    return 0 if all(row["healthy"] for row in rows) else 1


def _row(node: Node, name: str, component: components.Component) -> dict[str, Any]:
    """One component: its pid while it runs."""
    process = node.service(name).process()
    return {
        "component": name,
        "pid": process and process.pid,
        "healthy": process is not None and component.healthy(),
    }


def _env(options: argparse.Namespace, progress: Progress) -> int:
    node = _existing_node(options, progress)
    values = environment(node.cluster, node.binaries)
    if options.json:
        print(json.dumps(values, indent=1))
    else:
        print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in values.items()))
    return 0


def environment(cluster: Cluster, binaries: Binaries) -> dict[str, str]:
    """The facts about a cluster that drivers, tests and people need, as variables."""
    values = {
        "KUBECONFIG": cluster.kubeconfig,
        "KUBE_APISERVER": cluster.apiserver_url,
        "NODE_NAME": cluster.node_name,
        "KUBELET_ROOT": cluster.kubelet_root,
        "KUBELET_PLUGINS_DIR": cluster.kubelet_root / "plugins",
        "KUBELET_REGISTRY_DIR": cluster.kubelet_root / "plugins_registry",
        "CDI_ROOT": cluster.cdi_dirs[1],
        "CDI_STATIC_ROOT": cluster.cdi_dirs[0],
        "CONTAINER_RUNTIME": cluster.options.runtime,
        "OCI_RUNTIME": binaries.path(cluster.options.oci),
        "CRI_SOCKET": cluster.cri_socket,
        "KUBECTL": binaries.path("kubectl"),
        "CLUSTER_STATE": cluster.state,
        "CLUSTER_LOGS": cluster.logs,
        "CLUSTER_CGROUP": cluster.cgroup,
        "CLUSTER_KUBERNETES_VERSION": cluster.options.kubernetes,
        "TEST_IMAGE": TEST_IMAGE,
    }
    versions = _versions_of(cluster)
    if cluster.options.runtime == "crio":
        values["CLUSTER_CRIO_VERSION"] = versions.crio
    else:
        values |= {
            # ctr reads these two by itself.
            "CONTAINERD_ADDRESS": cluster.cri_socket,
            "CONTAINERD_NAMESPACE": "k8s.io",
            "CTR": binaries.path("ctr"),
            "CLUSTER_CONTAINERD_VERSION": versions.containerd,
        }
    return {name: str(value) for name, value in values.items()}


def _start(options: argparse.Namespace, progress: Progress) -> int:
    _need_root()
    node = _existing_node(options, progress)
    with locked(node.cluster.ident):
        node.prepare()
        node.start(options.component)
        node.wait_healthy(options.component)
    return 0


def _stop(options: argparse.Namespace, progress: Progress) -> int:
    _need_root()
    node = _existing_node(options, progress)
    with locked(node.cluster.ident):
        node.stop(options.component, _signal(options.signal))
    return 0


def _load(options: argparse.Namespace, progress: Progress) -> int:
    _need_root()
    node = _existing_node(options, progress)
    with locked(node.cluster.ident):
        node.load(options.archive)
    return 0


def _tag(options: argparse.Namespace, progress: Progress) -> int:
    _need_root()
    node = _existing_node(options, progress)
    with locked(node.cluster.ident):
        node.tag(options.image)
    return 0


def _signal(text: str) -> signal.Signals:
    name = text.upper()
    try:
        return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"]
    except KeyError as error:
        raise ClusterError(f"there is no signal {text}; use TERM, KILL, STOP …") from error


def _fetch(options: argparse.Namespace, progress: Progress) -> int:
    if unknown := set(options.groups) - {*GROUPS, *OTHER_GROUPS}:
        raise ClusterError(
            f"there is no group {', '.join(sorted(unknown))};"
            f" there are {', '.join((*GROUPS, *OTHER_GROUPS))}"
        )
    versions = resolve(options.version or DEFAULT_MINOR, options.containerd or "")
    runtimes = options.runtime or RUNTIMES[0], options.oci or OCI_RUNTIMES[0]
    groups = options.groups or groups_of(*runtimes)
    binaries = of_this_user(progress).fetch(versions, groups)
    for group, folder in binaries.folders.items():
        print(f"{group:<12}{folder}")
    return 0
