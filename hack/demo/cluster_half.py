"""The cluster half, on a real node: pods ask for GPUs, and containers print what they see."""

import os
from collections.abc import Mapping, Sequence
from functools import partial

from testbed import mps
from testbed.commands import TestbedError, run, wait_until
from testbed.machine import DRIVER
from testbed.nics import gpus_beside_nics
from testbed.node import GpuNode
from testbed.pods import (
    claim_uids,
    environment,
    explaining,
    gpus_seen,
    iommu_groups,
    migs_seen,
    mount_points,
    wait_running,
)

from demo.demos import Demo, Found, Seen, complaints
from demo.prepared import prepared
from demo.screen import Screen
from demo.sick_half import play


def show_offer(screen: Screen, node: GpuNode) -> None:
    """Show which devices pods can get on the node, by resource name."""
    screen.step("`dra-driver status --cluster`, run by an admin:")
    kubeconfig = node.cluster.env["KUBECONFIG"]
    screen.text(run((DRIVER, "status", "--cluster", "--kubeconfig", kubeconfig)))


def run_demos(
    screen: Screen, node: GpuNode, chosen: Sequence[Demo], *, keep_last: bool = False
) -> list[str]:
    """Run demos one after the other; return the names of those that failed.

    Each is removed before the next is applied, so that all GPUs are free for it. `keep_last` leaves
    the last one in place.
    """
    failed = []
    for demo in chosen:
        screen.part(f"Demo {demo.name}")
        if demo.mps and not node.can_run_mps:
            screen.line(f"demo {demo.name}: left out: NVIDIA's MPS programs are missing")
            failed += [demo.name] if os.environ.get("CI") else []
            continue
        try:
            problems = _run(screen, node, demo, keep=keep_last and demo is chosen[-1])
        except TestbedError as error:
            problems = [str(error)]
        for problem in problems:
            screen.text(problem)
        screen.line(f"demo {demo.name}: {'FAILED, for the reason above' if problems else 'ok'}")
        if problems:
            failed.append(demo.name)
    return failed


def _run(screen: Screen, node: GpuNode, demo: Demo, *, keep: bool) -> list[str]:
    with prepared(screen, node, demo, keep=keep):
        return _run_prepared(screen, node, demo, keep=keep)


def _run_prepared(screen: Screen, node: GpuNode, demo: Demo, *, keep: bool) -> list[str]:
    before = node.machine.settings(), node.machine.mig_devices()
    problems = []
    try:
        node.cluster.kubectl("apply", "-f", "-", stdin=demo.text)
        screen.step(f"applied {demo.name}/demo.yaml{_adapted(demo)}")
        names = _pod_names(node, demo)
        wait_running(node.cluster.api, demo.namespace, [*names.values()], timeout=90)
        screen.step("all pods run; `nvidia-smi -L` inside their containers:")
        seen = look(node, demo, names)
        _show(screen, demo, seen)
        if demo.share_config or demo.driver:
            screen.step("`dra-driver status` on the node:")
            screen.text(_status(node))
        problems += complaints(demo, seen)
        problems += play(screen, node, demo, names, seen)
    finally:
        if not keep:
            _remove(node, demo)
    if not keep:
        problems += _left(node, before)
        screen.step("removed again" + ("" if problems else "; the node is as it was before"))
    return problems


def _adapted(demo: Demo) -> str:
    """Print which MIG profiles replace those in the demo's folder."""
    changed = [f"{new} for {old}" for old, new in sorted(demo.fit.names.items()) if new != old]
    return f", on {demo.fit.card} with {', '.join(changed)}" if changed else ""


def _pod_names(node: GpuNode, demo: Demo) -> dict[str, str]:
    """Return the pods' real names by those in the demo, where a Deployment's pods are numbered."""

    def of(deployment: str, count: int) -> list[str] | None:
        pods = node.cluster.api.all("Pod", demo.namespace)
        names = sorted(pod["metadata"]["name"] for pod in pods)
        own = [name for name in names if name.rsplit("-", 2)[0] == deployment]
        return own if len(own) == count else None

    names = {pod: pod for pod in demo.pods()}
    for deployment, count in demo.deployments().items():
        running = wait_until(
            partial(of, deployment, count),
            f"{count} pods of {deployment}",
            timeout=30,
        )
        names |= {f"{deployment}-{number}": name for number, name in enumerate(running)}
    return names


def _status(node: GpuNode) -> str:
    """The output of `dra-driver status` on the node."""
    paths = ("--kubelet-plugins-directory-path", node.place.plugins)
    return run((DRIVER, "status", *paths, "--proc-root", node.place.driver_root / "proc"))


def look(node: GpuNode, demo: Demo, names: Mapping[str, str]) -> Found:
    """Query each container of a running demo, and the node's settings.

    `names` are the pods' real names, by those in the demo.
    """

    def where(container: str) -> tuple[str, str, str]:
        pod, name = container.split("/")
        return names[pod], name, demo.namespace

    cluster = node.cluster
    return Found(
        gpus={
            ctr: gpus_seen(cluster, *where(ctr)) if count else ()
            for ctr, count in demo.gpus.items()
        },
        env={ctr: environment(cluster, *where(ctr)) for ctr in demo.env},
        mig={ctr: migs_seen(cluster, *where(ctr)) for ctr in demo.mig},
        mounts={ctr: mount_points(cluster, *where(ctr)) for ctr in demo.mounts},
        node=node.machine.settings() if demo.node else {},
        mps={ctr: _mps_answers(node, demo, ctr, where(ctr)[0]) for ctr in demo.mps},
        beside_nics=gpus_beside_nics(node) if demo.nics else frozenset(),
        groups={ctr: iommu_groups(cluster, *where(ctr)) for ctr in demo.passthrough},
    )


def _mps_answers(node: GpuNode, demo: Demo, container: str, pod: str) -> dict[str, str]:
    (claim,) = claim_uids(node.cluster.api, node.cluster.api.get("Pod", pod, demo.namespace))
    joined = sorted((node.place.mps / "members").glob(f"*/{claim}"))
    domain = joined[0].parent.name if joined else claim
    return {question: mps.ask(node.place, domain, question) for question in demo.mps[container]}


def _show(screen: Screen, demo: Demo, seen: Found) -> None:
    screen.table(("POD", "CONTAINER", "GPU"), _rows(seen.gpus))
    if seen.mig:
        screen.table(("POD", "CONTAINER", "MIG DEVICE", "PROFILE"), _mig_rows(seen.mig))
    for container, groups in seen.groups.items():
        screen.text(f"{container}: {', '.join(f'/dev/vfio/{group}' for group in groups)}")
    for container, variables in demo.env.items():
        for name in variables:
            if name in seen.env[container]:
                screen.text(f"{container}: {name}={seen.env[container][name]}")
    if demo.node:
        screen.step("on the node:")
        uuids = dict.fromkeys(uuid for ctr in demo.node for uuid in seen.gpus[ctr])
        rows = [(uuid, seen.node[uuid].time_slice, seen.node[uuid].compute_mode) for uuid in uuids]
        screen.table(("GPU", "TIME SLICE", "COMPUTE MODE"), rows)
    for container, answers in seen.mps.items():
        screen.step(f"the MPS daemon of {container} answers:")
        for question, answer in answers.items():
            screen.text(f"{question}: {answer}")


def _left(node: GpuNode, before: object) -> list[str]:
    """Print what is left of a demo that was removed."""
    problems = [f"left on the node: {name}" for name in node.place.left_over()]
    if (node.machine.settings(), node.machine.mig_devices()) != before:
        problems.append("the GPUs are not set or divided as they were before")
    if left := mps.processes(node.place.plugins):
        problems.append(f"MPS daemons still run: {', '.join(map(str, left))}")
    return problems


def _remove(node: GpuNode, demo: Demo) -> None:
    api = node.cluster.api
    words = ("delete", "-f", "-", "--ignore-not-found", "--wait=false")
    node.cluster.kubectl(*words, stdin=demo.text)

    with explaining(api, demo.namespace):
        wait_until(
            lambda: api.find("Namespace", demo.namespace) is None,
            f"the namespace {demo.namespace} to go",
            timeout=90,
        )


def _mig_rows(seen: Mapping[str, Mapping[str, str]]) -> list[tuple[str, ...]]:
    return [
        (*container.split("/"), uuid, profile)
        for container, devices in seen.items()
        for uuid, profile in devices.items()
    ]


def _rows(seen: Seen) -> list[tuple[str, str, str]]:
    rows = []
    for container, uuids in seen.items():
        pod, name = container.split("/")
        rows += [(pod, name, uuid) for uuid in uuids or ("(none)",)]
    return rows
