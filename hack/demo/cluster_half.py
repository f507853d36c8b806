"""The whole way, on a real Kubernetes node: pods ask for GPUs, containers say what they see."""

from collections.abc import Sequence

from demos import Demo, Seen, complaints
from screen import Screen
from testbed.cluster import Cluster
from testbed.commands import TestbedError, wait_until
from testbed.pods import explain, gpus_seen, wait_running

TEST_IMAGE = "registry.local/gpu-test:1"
"""The image that hack/cluster makes: busybox, bash and a C library."""


def run_demos(
    screen: Screen, cluster: Cluster, chosen: Sequence[Demo], *, keep_last: bool = False
) -> list[str]:
    """Run demos one after the other; return the names of those that failed.

    Each is removed before the next is applied, so that all GPUs are free for it. `keep_last` leaves
    the last one in place.
    """
    failed = []
    for demo in chosen:
        screen.part(f"Demo {demo.name}")
        try:
            problems = _run(screen, cluster, demo, keep=keep_last and demo is chosen[-1])
        except TestbedError as error:
            problems = [str(error)]
        for problem in problems:
            screen.text(problem)
        screen.line(f"demo {demo.name}: {'FAILED, for the reason above' if problems else 'ok'}")
        if problems:
            failed.append(demo.name)
    return failed


def _run(screen: Screen, cluster: Cluster, demo: Demo, *, keep: bool) -> list[str]:
    _provide_images(screen, cluster, demo)
    try:
        cluster.kubectl("apply", "-f", demo.manifest)
        screen.step(f"applied {demo.manifest.parent.name}/{demo.manifest.name}")
        wait_running(cluster.api, demo.namespace, demo.pods(), timeout=90)
        screen.step("all pods run; `nvidia-smi -L` inside their containers:")
        seen = look(cluster, demo)
        screen.table(("POD", "CONTAINER", "GPU"), _rows(seen))
        problems = complaints(demo, seen)
    finally:
        if not keep:
            _remove(cluster, demo)
            screen.step("removed again")
    return problems


def look(cluster: Cluster, demo: Demo) -> Seen:
    """Ask each container of a running demo which GPUs it has."""
    seen = {}
    for container in demo.gpus:
        pod, name = container.split("/")
        seen[container] = gpus_seen(cluster, pod, name, demo.namespace)
    return seen


def _provide_images(screen: Screen, cluster: Cluster, demo: Demo) -> None:
    """Give the test image the names that the demo's pods use, since there is no registry here."""
    here = cluster.ctr("images", "list", "--quiet").split()
    for image in sorted(demo.images()):
        full = _full_name(image)
        if full not in here:
            cluster.ctr("images", "tag", TEST_IMAGE, full)
            screen.step(f"no registry here: the test image stands in for {image}")


def _full_name(image: str) -> str:
    """Return an image's name as container runtimes keep it: with registry and namespace."""
    first, slash, _ = image.partition("/")
    if slash and ("." in first or ":" in first):
        return image
    return f"docker.io/{image}" if slash else f"docker.io/library/{image}"


def _remove(cluster: Cluster, demo: Demo) -> None:
    cluster.kubectl("delete", "-f", demo.manifest, "--ignore-not-found", "--wait=false")

    def gone() -> bool:
        return cluster.api.find("Namespace", demo.namespace) is None

    try:
        wait_until(gone, f"the namespace {demo.namespace} to go", timeout=90)
    except TestbedError as error:
        pods = cluster.api.all("Pod", demo.namespace)
        reasons = "\n".join(explain(cluster.api, pod) for pod in pods)
        raise TestbedError(f"{error}\n{reasons}") from error


def _rows(seen: Seen) -> list[tuple[str, str, str]]:
    rows = []
    for container, uuids in seen.items():
        pod, name = container.split("/")
        rows += [(pod, name, uuid) for uuid in uuids or ("(none)",)]
    return rows
