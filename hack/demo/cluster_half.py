"""The whole way, on a real Kubernetes node: pods ask for GPUs, containers say what they see."""

import os
from collections.abc import Mapping, Sequence

from demos import Demo, Found, Seen, complaints
from screen import Screen
from testbed import mps
from testbed.commands import TestbedError, wait_until
from testbed.node import GpuNode
from testbed.pods import (
    claim_uids,
    environment,
    explain,
    gpus_seen,
    migs_seen,
    mount_points,
    wait_running,
)

TEST_IMAGE = "registry.local/gpu-test:1"
"""The image that hack/cluster makes: busybox, bash and a C library."""


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
            screen.line(f"demo {demo.name}: left out: NVIDIA's MPS programs could not be had")
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
    _provide_images(screen, node, demo)
    before = node.machine.settings(), node.machine.mig_devices()
    problems = []
    try:
        node.cluster.kubectl("apply", "-f", demo.manifest)
        screen.step(f"applied {demo.manifest.parent.name}/{demo.manifest.name}")
        wait_running(node.cluster.api, demo.namespace, demo.pods(), timeout=90)
        screen.step("all pods run; `nvidia-smi -L` inside their containers:")
        found = look(node, demo)
        _show(screen, demo, found)
        problems += complaints(demo, found)
    finally:
        if not keep:
            _remove(node, demo)
    if not keep:
        problems += _left(node, before)
        screen.step("removed again" + ("" if problems else "; the node is as it was before"))
    return problems


def look(node: GpuNode, demo: Demo) -> Found:
    """Ask each container of a running demo what it has, and the node how it is set."""
    cluster, place = node.cluster, demo.namespace
    return Found(
        gpus={ctr: gpus_seen(cluster, *ctr.split("/"), place) for ctr in demo.gpus},
        env={ctr: environment(cluster, *ctr.split("/"), place) for ctr in demo.env},
        mig={ctr: migs_seen(cluster, *ctr.split("/"), place) for ctr in demo.mig},
        mounts={ctr: mount_points(cluster, *ctr.split("/"), place) for ctr in demo.mounts},
        node=node.machine.settings() if demo.node else {},
        mps={ctr: _mps_answers(node, demo, ctr) for ctr in demo.mps},
    )


def _mps_answers(node: GpuNode, demo: Demo, container: str) -> dict[str, str]:
    pod = node.cluster.api.get("Pod", container.split("/", maxsplit=1)[0], demo.namespace)
    (claim,) = claim_uids(node.cluster.api, pod)
    return {question: mps.ask(node.place, claim, question) for question in demo.mps[container]}


def _show(screen: Screen, demo: Demo, found: Found) -> None:
    screen.table(("POD", "CONTAINER", "GPU"), _rows(found.gpus))
    if found.mig:
        screen.table(("POD", "CONTAINER", "MIG DEVICE", "PROFILE"), _mig_rows(found.mig))
    for container, variables in demo.env.items():
        for name in variables:
            if name in found.env[container]:
                screen.text(f"{container}: {name}={found.env[container][name]}")
    if demo.node:
        screen.step("on the node:")
        uuids = dict.fromkeys(uuid for ctr in demo.node for uuid in found.gpus[ctr])
        rows = [
            (uuid, found.node[uuid].time_slice, found.node[uuid].compute_mode) for uuid in uuids
        ]
        screen.table(("GPU", "TIME SLICE", "COMPUTE MODE"), rows)
    for container, answers in found.mps.items():
        screen.step(f"the MPS daemon of {container} answers:")
        for question, answer in answers.items():
            screen.text(f"{question}: {answer}")


def _left(node: GpuNode, before: object) -> list[str]:
    """Say what is left of a demo that was removed."""
    problems = [f"left on the node: {name}" for name in node.place.left_over()]
    if (node.machine.settings(), node.machine.mig_devices()) != before:
        problems.append("the GPUs are not set or divided as they were before")
    if left := mps.processes(node.place.plugins):
        problems.append(f"MPS daemons still run: {', '.join(map(str, left))}")
    return problems


def _provide_images(screen: Screen, node: GpuNode, demo: Demo) -> None:
    """Give the test image the names that the demo's pods use, since there is no registry here."""
    here = node.cluster.ctr("images", "list", "--quiet").split()
    for image in sorted(demo.images()):
        full = _full_name(image)
        if full not in here:
            node.cluster.ctr("images", "tag", TEST_IMAGE, full)
            screen.step(f"no registry here: the test image stands in for {image}")


def _full_name(image: str) -> str:
    """Return an image's name as container runtimes keep it: with registry and namespace."""
    first, slash, _ = image.partition("/")
    if slash and ("." in first or ":" in first):
        return image
    return f"docker.io/{image}" if slash else f"docker.io/library/{image}"


def _remove(node: GpuNode, demo: Demo) -> None:
    api = node.cluster.api
    node.cluster.kubectl("delete", "-f", demo.manifest, "--ignore-not-found", "--wait=false")

    def gone() -> bool:
        return api.find("Namespace", demo.namespace) is None

    try:
        wait_until(gone, f"the namespace {demo.namespace} to go", timeout=90)
    except TestbedError as error:
        reasons = "\n".join(explain(api, pod) for pod in api.all("Pod", demo.namespace))
        raise TestbedError(f"{error}\n{reasons}") from error


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
