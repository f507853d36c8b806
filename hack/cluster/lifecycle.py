"""A cluster from nothing to Ready, and its components one by one.

`up` is idempotent and writes the cluster's record before it makes anything, so an interrupted
cluster can be brought up again or removed. Components start as soon as those that they need answer;
the images are imported while the API server starts.
"""

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from cluster import cgroups, configs, crio, image, mounts, network
from cluster.binaries import Binaries
from cluster.certs import write_pki
from cluster.components import Component, components, get
from cluster.errors import ClusterError
from cluster.kubelet_view import ensure_host_folders
from cluster.processes import Service, wait_until
from cluster.progress import Progress
from cluster.state import Cluster, Options, addresses, all_folders, load, locked
from cluster.versions import arch_of_this_machine

# On a cold machine with two busy cores, the API server has needed a minute.
START_TIMEOUT_S = 180.0
GRACE_S = 10.0
INOTIFY_LIMIT = Path("/proc/sys/fs/inotify/max_user_instances")
ENOUGH = 1024
"""A cluster needs about 25 instances of inotify; the kernel's usual 128 are too few for the five
clusters of the end-to-end tests, and then a kubelet ends at its start."""
NODE_FOLDERS = ("config", "kubelet", "logs", "pids", "runc", "etcd")


def obtain(name: str, folder: Path, wanted: Mapping[str, str]) -> Cluster:
    """The cluster in a folder: its record, or a new one with addresses of its own.

    `wanted` has the options that were given explicitly, by field name of `Options`. Raises
    ClusterError if the cluster exists with other options.
    """
    # One at a time on the whole machine, so that no two get the same port or subnet.
    with locked("addresses"):
        cluster = load(folder)
        if cluster is None:
            others = [addresses(other) for other in all_folders(folder.parent) if other != folder]
            known = [other for other in others if other is not None]
            cluster = Cluster(
                name=name,
                state=folder,
                subnet=network.free_subnet(subnet for subnet, _ in known),
                ports=network.free_ports(port for _, ports in known for port in ports),
                options=Options(**wanted),
            )
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        has = asdict(cluster.options)
        for key, value in wanted.items():
            if has[key] != value:
                raise ClusterError(
                    f"cluster {name} is there with {key} {has[key] or 'unset'}, not "
                    f"{value or 'unset'}; run `down --name {name}` first, or use another name"
                )
        cluster.save()
    return cluster


@dataclass(slots=True, kw_only=True)
class Node:
    """A cluster's record with its programs, for `up`, `start` and the other commands."""

    cluster: Cluster
    binaries: Binaries
    env: Mapping[str, str]
    progress: Progress

    def up(self) -> None:
        """Start everything that does not run; return when pods can be made.

        Raises ClusterError if a component did not start; its last log lines are in the text.
        """
        began = time.monotonic()
        cluster = self.cluster
        self.prepare()
        self.start("etcd")
        self.start(cluster.options.runtime)
        self.wait_healthy("etcd")
        self.start("kube-apiserver")
        problems: list[Exception] = []
        importing = threading.Thread(
            target=self._import_aside, args=(problems,), name="import-images", daemon=True
        )
        importing.start()
        self.wait_healthy("kube-apiserver")
        for name in ("kube-controller-manager", "kube-scheduler"):
            self.start(name)
        importing.join(timeout=START_TIMEOUT_S)
        if problems:
            raise problems[0]
        self.start("kubelet")
        for name in ("kube-controller-manager", "kube-scheduler", "kubelet"):
            self.wait_healthy(name)
        self._wait(self._node_ready, f"node {cluster.node_name} is not Ready", "kubelet")
        # Without its ServiceAccount, a pod made now would be refused.
        self._wait(
            self._account_present,
            "the ServiceAccount `default` is missing",
            "kube-controller-manager",
        )
        self.progress.say(
            f"cluster {cluster.name}: Kubernetes {cluster.options.kubernetes} is ready after "
            f"{time.monotonic() - began:.1f} s, node {cluster.node_name}"
        )

    def prepare(self) -> None:
        """Make what components need before they start: bridge, cgroups, files."""
        cluster = self.cluster
        for name in (*NODE_FOLDERS, cluster.options.runtime):
            (cluster.state / name).mkdir(mode=0o755, exist_ok=True)
        was = _ensure_instances()
        if was is not None:
            self.progress.say(f"fs.inotify.max_user_instances: raised from {was} to {ENOUGH}")
        network.create_bridge(cluster)
        cgroups.create(cluster.cgroup)
        mounts.share(cluster.kubelet_root)
        write_pki(cluster)
        configs.write_configs(cluster, self.binaries)

    def start(self, name: str) -> None:
        """Start a component, unless it runs."""
        component = self._component(name)
        service = self.service(name)
        if service.process() is None:
            if name == "kubelet":
                ensure_host_folders()
            service.start(component.argv, self._component_env())
            self.progress.say(f"{name}: started")

    def stop(self, name: str, with_signal: int) -> None:
        """Stop a component by a signal and wait until it is gone."""
        self._component(name)
        by = self.service(name).stop(with_signal, GRACE_S)
        if by is not None:
            how = "" if by == with_signal else f" by SIGKILL, after {GRACE_S:.0f} s of grace"
            self.progress.say(f"{name}: stopped{how}")

    def wait_healthy(self, name: str) -> None:
        """Wait until a component answers.

        Raises ClusterError if it ended, or did not answer in time.
        """
        component = self._component(name)
        self._wait(component.healthy, f"{name} does not answer", name)

    def service(self, name: str) -> Service:
        """The process of a component."""
        return Service(name=name, state=self.cluster.state)

    def import_images(self) -> None:
        """Make the sandbox image and the test image, and import them."""
        busybox = self.binaries.path("busybox")
        images = [image.gpu_test_image(busybox), image.sandbox_image(busybox)]
        archive = self.cluster.state / "images.tar"
        image.write_archive(images, archive, arch_of_this_machine())
        try:
            self.load(archive)
        finally:
            archive.unlink()

    def load(self, archive: Path) -> None:
        """Import an archive of images into the container runtime.

        Raises ClusterError if it refuses them.
        """
        if self.cluster.options.runtime == "crio":
            crio.import_images(self.cluster, self.binaries, archive)
        else:
            snapshotter = configs.snapshotter(self.cluster.state)
            self._images("import", "--local", "--snapshotter", snapshotter, str(archive))

    def tag(self, name: str) -> None:
        """Add a name to the test image."""
        if self.cluster.options.runtime == "crio":
            crio.tag(self.cluster, self.binaries, image.TEST_IMAGE, name)
        else:
            self._images("tag", "--force", image.TEST_IMAGE, name)

    def _images(self, *words: str) -> None:
        address = ("--address", str(self.cluster.cri_socket), "--namespace", "k8s.io")
        command = [str(self.binaries.path("ctr")), *address, "images", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode != 0:
            raise ClusterError(f"containerd refused the images: {done.stderr.strip()}")

    def _import_aside(self, problems: list[Exception]) -> None:
        try:
            self.wait_healthy(self.cluster.options.runtime)
            self.import_images()
        except Exception as error:  # noqa: BLE001 (raised by the thread that waits for this one)
            problems.append(error)

    def _component(self, name: str) -> Component:
        known = components(self.cluster, self.binaries)
        if name not in known:
            raise ClusterError(f"there is no component {name}; choose one of {', '.join(known)}")
        return known[name]

    def _component_env(self) -> dict[str, str]:
        # Proxies are for the internet; components connect only to this machine.
        kept = {k: v for k, v in self.env.items() if not k.lower().endswith("_proxy")}
        kept["PATH"] = f"{self.binaries.search_path}:{kept.get('PATH', os.defpath)}"
        return kept

    def _wait(self, condition: Callable[[], bool], complaint: str, name: str) -> None:
        service = self.service(name)
        ended = False

        def settled() -> bool:
            nonlocal ended
            ended = service.process() is None
            return ended or condition()

        if not wait_until(settled, START_TIMEOUT_S, poll_s=0.2) or ended:
            why = f"{name} ended" if ended else f"{complaint} after {START_TIMEOUT_S:.0f} s"
            raise ClusterError(
                f"{why}. The end of {service.log}:\n{service.last_words()}\n"
                f"Remove what is there with `down --name {self.cluster.name}`."
            )

    def _node_ready(self) -> bool:
        node = self._object(f"/api/v1/nodes/{self.cluster.node_name}")
        status = node.get("status")
        conditions = status.get("conditions", []) if isinstance(status, dict) else []
        return any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in conditions
        )

    def _account_present(self) -> bool:
        return bool(self._object("/api/v1/namespaces/default/serviceaccounts/default"))

    def _object(self, path: str) -> dict[str, object]:
        body = get(self.cluster, self.cluster.ports.apiserver, path)
        answer = json.loads(body) if body else {}
        return answer if isinstance(answer, dict) else {}


def _ensure_instances() -> int | None:
    """Raise inotify's limit until the next boot; return what it was, None if that was enough.

    Where it may not be written, `processes.REMEDIES` says what to do once it is used up.
    """
    try:
        was = int(INOTIFY_LIMIT.read_text())
        if was >= ENOUGH:
            return None
        INOTIFY_LIMIT.write_text(f"{ENOUGH}\n")
    except OSError:
        return None
    return was
