"""What the container runtime's version and configuration mean for pods with GPUs. Pure.

containerd supports CDI devices from 1.7 on, off by default; from 2.0 on they are on by default, and
from 2.4 on always. Its CDI library refuses specs of a version that it does not know. CRI-O has no
such setting.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from dra_driver.admin.doctor.checks.finding import Seen, error, info, ok, unknown, warning
from dra_driver.admin.doctor.facts.runtime_config import CONTAINERD, RuntimeConfig
from dra_driver.host.words import named

Version = tuple[int, ...]

CDI_KNOWN = 1, 7
"""The first containerd whose CRI supports CDI devices."""

CDI_SWITCHED_ON = 2, 0
"""The first containerd with CDI on by default."""

CDI_GROUPS = 1, 7, 16
"""The first containerd that reads version 0.7.0 of CDI, which has device nodes' groups."""

_ALWAYS_ON = 2, 4
_EXPECTED_DIRS = ("/var/run/cdi", "/run/cdi")
_SET_IT = "set enable_cdi = true for its CRI plugin{where} and restart it"


def containerd_version(versions: Mapping[str, Sequence[str]], node: str) -> Version | None:
    """Return the version of a node's containerd; None if unknown.

    `versions` has the nodes by the runtime that each reports, such as containerd://2.0.1.
    """
    own = [version for version, nodes in versions.items() if node in nodes]
    # If this node's name is unknown, it has the one version that all nodes report, if there is one.
    candidates = own or (list(versions) if len(versions) == 1 else [])
    return _numbers(candidates[0]) if candidates and _is_containerd(candidates[0]) else None


def runtime_cdi(
    configs: Sequence[RuntimeConfig] | None,
    versions: Mapping[str, Sequence[str]],
    node: str = "",
) -> Iterator[Seen]:
    """Check whether containers get devices by CDI; `configs` is None if files are not visible."""
    seen = False
    own = containerd_version(versions, node)
    is_seen = any(each.name == CONTAINERD and each.files for each in configs or ())
    for version, nodes in sorted(versions.items()):
        seen = True
        others = [other for other in nodes if other != node]
        if len(versions) == 1 and len(nodes) == 1:
            others = []
        yield from _runtime_version(version, nodes, others if is_seen else nodes)
    for config in configs or ():
        seen = True
        yield from _runtime_files(config, own)
    if not seen:
        yield unknown(
            "no configuration of containerd or CRI-O was found, and the Node is not known",
            "run doctor with a kubeconfig, or on the node (--host-root in a pod)",
        )


def _runtime_version(version: str, nodes: Sequence[str], unseen: Sequence[str]) -> Iterator[Seen]:
    where = f"{version} on {named(nodes)}"
    numbers = _numbers(version)
    if version.startswith("cri-o://"):
        yield ok(f"{where}: CDI is always on")
    elif not _is_containerd(version) or numbers is None:
        yield unknown(f"{where}: a runtime unknown to doctor", "check that it supports CDI in CRI")
    elif numbers < CDI_KNOWN:
        yield error(f"{where}: it does not support CDI devices", "update it to 2.0 or newer")
    elif numbers >= _ALWAYS_ON:
        yield ok(f"{where}: CDI is always on")
    elif numbers >= CDI_SWITCHED_ON:
        yield ok(f"{where}: CDI is on unless its configuration says otherwise")
    else:
        if numbers < CDI_GROUPS:
            yield warning(
                f"{where}: it refuses CDI specs of version 0.7.0, which claims have if their GPUs "
                "have nodes in /dev/dri",
                f"update it to {'.'.join(map(str, CDI_GROUPS))} or newer",
            )
        if unseen:
            yield warning(
                f"{version} on {named(unseen)}: CDI is off unless its configuration has "
                "enable_cdi = true",
                f"update it to 2.0 or newer, or {_SET_IT.format(where='')}",
            )


def _runtime_files(config: RuntimeConfig, own: Version | None) -> Iterator[Seen]:
    files = named(config.files)
    if config.problems:
        yield warning(
            f"{config.name} has files that cannot be read: {named(config.problems)}",
            "correct them: the runtime does not start with them, or uses other settings",
        )
    if config.spec_dirs is not None and not set(_EXPECTED_DIRS) & set(config.spec_dirs):
        yield error(
            f"{config.name} looks for CDI specs in {named(config.spec_dirs) or 'no folder'} only",
            "add /var/run/cdi to cdi_spec_dirs and restart it, or make the driver write to one of "
            "these (--cdi-root)",
        )
    if not config.files:
        return
    if own is not None and own >= _ALWAYS_ON:
        yield ok(f"{config.name}: nothing turns CDI off in {files}")
    elif config.cdi is False:
        yield _switched_off(config, own)
    elif config.problems:
        pass  # the file with the setting may be one of them
    elif config.may_be_old and not config.cdi:
        yield _switched_off(config, own)
    else:
        yield ok(
            f"{config.name}: {'CDI is on' if config.cdi else 'nothing turns CDI off'} in {files}"
        )


def _switched_off(config: RuntimeConfig, own: Version | None) -> Seen:
    """Report why CDI is off, or may be."""
    files = named(config.files)
    where = ""
    if config.cdi is False:
        why = f"enable_cdi = false in {files}"
    elif config.lost:
        where = f" in {config.cri_file}"
        why = (
            f"enable_cdi = true in {named(config.lost)} has no effect, because containerd 1.7 "
            f"takes the whole table of its CRI plugin from {config.cri_file}"
        )
    else:
        why = f"enable_cdi = true is not in {files}"
    if config.cdi is None and own is None:
        return unknown(
            f"{config.name} may have CDI switched off, if it is 1.7: {why}",
            f"nothing from 2.0 on; with 1.7, {_SET_IT.format(where=where)}: without CDI, "
            "containers get no GPU",
        )
    return error(
        f"{config.name} has CDI switched off: {why}",
        f"{_SET_IT.format(where=where)}: without CDI, containers get no GPU",
    )


def default_runtime(configs: Sequence[RuntimeConfig] | None) -> Iterator[Seen]:
    """Check whether pods without a claim may see GPUs through NVIDIA's runtime."""
    if configs is None:
        yield unknown(
            "this pod does not see the configuration of the node's container runtime",
            "run doctor on the node, or in a pod that has the node's root mounted (--host-root)",
        )
        return
    if not configs:
        yield unknown(
            "no configuration of containerd or CRI-O was found",
            "in a pod, name the node's root (--host-root)",
        )
        return
    by_default = [config for config in configs if config.gives_gpus_by_default]
    for config in by_default:
        what = config.default_runtime or config.default_program
        if config.sees_environment is False:
            yield info(
                f"{config.name} runs all pods with the runtime {what!r}, which honours the "
                "environment of privileged containers only"
            )
            continue
        yield warning(
            f"{config.name} runs all pods with the runtime {what!r}: an image with "
            "NVIDIA_VISIBLE_DEVICES=all sees every GPU without a claim",
            "set the default runtime back to runc (nvidia-ctk runtime configure without "
            "--set-as-default), or set accept-nvidia-visible-devices-envvar-when-unprivileged = "
            "false in /etc/nvidia-container-runtime/config.toml",
        )
    if not by_default:
        yield ok("pods without a claim do not get NVIDIA's runtime by default")


def _is_containerd(version: str) -> bool:
    return version.startswith(f"{CONTAINERD}://")


def _numbers(version: str) -> Version | None:
    """Return the two or three numbers of a runtime's version; None if it has none."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version.partition("://")[2], re.ASCII)
    return tuple(int(number) for number in match.groups() if number) if match else None
