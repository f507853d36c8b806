"""The hostile tenant of a soak: carries out the turns of chaos.turns with its own rights.

It calls the API server with the token of its ServiceAccount, which may edit its namespace. Only
what runs inside its container is started there by the cluster's admin.
"""

import itertools
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml
from testbed import mps
from testbed.api import Api, ApiStatusError, Object
from testbed.attackers import attack, attackers_pod
from testbed.claims import claim, gpu_config
from testbed.commands import TestbedError, wait_until
from testbed.node import GpuNode
from testbed.pods import exec_in, make_namespace, wait_running
from testbed.reboot import kill_all

from chaos.greed import GREEDY_MIB, computing
from chaos.odd_claims import odd, only, with_configs
from chaos.turns import OUTSIDE, Turn
from chaos.workloads import SHARE_CLASS, pod_of

NAMESPACE = "hostile"
MATE, LOUD = "mate", "loud"
"""Pods of the hostile tenant besides those that attack: a mate, replaced now and then, which keeps
its shared MPS domain, and one that floods."""

FLOOD_S = 100.0
"""Seconds of a flood: longer than a kubelet takes to give up a container whose probes fail."""

_LIMITS = {"limits": {"cpu": "500m", "memory": "512Mi"}}
"""Limits of each attacking pod, because protecting CPU and memory is not this driver's task."""

_GONE_S = 150.0
_ENDED_S = 30.0
_ODD_S = 6.0
"""Seconds until odd claims and pods are deleted."""


class Intruder:
    """The tenant; `whole` and `shared` are its GPUs by UUID, `doors` addresses that it floods."""

    def __init__(
        self, node: GpuNode, whole: Sequence[str], shared: str, doors: Sequence[str]
    ) -> None:
        self._node = node
        self._whole = whole
        self._shared = shared
        self._share = claim("", device_class=SHARE_CLASS, selectors=only([shared]))
        self._doors = doors
        self.domain = f"shared_{shared}"
        """The MPS domain of its pods with shares."""

        self._mate = ""
        self._numbers = itertools.count(1)
        self.did: Counter[str] = Counter()
        """How often each attack and act happened, and with what result."""

    def settle(self) -> None:
        """Get the namespace, and start the mate."""
        admin = self._node.cluster.api
        make_namespace(admin, NAMESPACE)
        words = ("create", "rolebinding", "tenant", "--clusterrole=edit")
        account = f"--serviceaccount={NAMESPACE}:default"
        self._node.cluster.kubectl(*words, account, "--namespace", NAMESPACE)
        self._api = self._as_tenant()
        loud = pod_of(LOUD)
        loud["spec"] |= attackers_pod(**_LIMITS)
        self._make(loud)
        wait_running(self._api, NAMESPACE, (LOUD,), timeout=120)
        self.relieve_mate()

    def relieve_mate(self) -> None:
        """Replace the mate by another one, so that what belongs to no member can be removed."""
        before, self._mate = self._mate, f"{MATE}-{next(self._numbers)}"
        self._make(self._share | {"metadata": {"name": self._mate}}, pod_of(self._mate, self._mate))
        wait_running(self._api, NAMESPACE, (self._mate,), timeout=120)
        for kind in ("Pod", "ResourceClaim") if before else ():
            self._api.delete(kind, before, NAMESPACE)

    def flood(self, name: str, stopping: threading.Event) -> None:
        """Flood again and again until told to stop."""
        while not stopping.is_set():
            self._attack(LOUD, name, f"{FLOOD_S}", *self._doors)
            stopping.wait(1)

    def silence(self) -> None:
        """End the pod that floods."""
        self._api.delete("Pod", LOUD, NAMESPACE, grace=0)

    def take(self, turn: Turn) -> None:
        """Take a turn, and delete its pods and claims.

        Raises TestbedError if these could not be deleted.
        """
        chance = random.Random(turn.seed)  # noqa: S311
        name = f"attacker-{turn.number}"
        with ThreadPoolExecutor(1) as beside:
            acts = beside.submit(self._act, turn, chance)
            if self._enter(turn, name):
                for made in turn.attacks:
                    self._attack(name, made, *self._words(made))
            acts.result()
        self.leave(is_abrupt=turn.is_abrupt)

    def leave(self, *, is_abrupt: bool = False, is_last: bool = False) -> None:
        """Delete pods and claims, at the end also lasting ones, and wait until they are gone."""
        kinds, stay = ("Pod", "ResourceClaim"), set() if is_last else {self._mate, LOUD}
        for kind in kinds:
            for name in {*self._names(kind)} - stay:
                self._api.delete(kind, name, NAMESPACE, grace=0 if is_abrupt else None)
        wait_until(
            lambda: all({*self._names(kind)} <= stay for kind in kinds),
            "the hostile tenant's pods and claims to go",
            timeout=_GONE_S,
        )

    def _as_tenant(self) -> Api:
        """The API with the token of the tenant's ServiceAccount, and no other right."""
        cluster = self._node.cluster
        token = cluster.kubectl(
            *("create", "token", "default", "--namespace", NAMESPACE, "--duration", "48h")
        ).strip()
        config = yaml.safe_load(Path(cluster.env["KUBECONFIG"]).read_text())
        for user in config["users"]:
            user["user"] = {"token": token}
        path = self._node.folder / "hostile.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        path.chmod(0o600)
        return Api.from_kubeconfig(path)

    def _names(self, kind: str) -> list[str]:
        return [each["metadata"]["name"] for each in self._api.all(kind, NAMESPACE)]

    # Inside

    def _enter(self, turn: Turn, name: str) -> bool:
        """Start the attacking pod; tell whether it runs. If not, only this tenant is affected."""
        whole = claim("", selectors=only(self._whole))
        own = with_configs(whole, gpu_config(strategy="MPS"))
        body = self._share if turn.body == "share" else own
        pod = pod_of(name, name)
        pod["spec"] |= attackers_pod("c0", **_LIMITS)
        self._make(body | {"metadata": {"name": name}}, pod)
        try:
            wait_running(self._api, NAMESPACE, (name,), timeout=60)
        except TestbedError:
            self.did["(its pod did not start)"] += 1
            return False
        return True

    def _words(self, attack: str) -> tuple[str, ...]:
        place = self._node.place
        words = {
            "order": ("quit", "quit -t 1", "set_default_active_thread_percentage 100"),
            "forge": (f"{mps.MARK}={place.mps / 'domains' / self.domain}",),
            "links": (str(place.data), "/etc/passwd", "/proc/1/mem"),
        }
        return words.get(attack, ())

    def _attack(self, pod: str, name: str, *words: str) -> None:
        self.did[name] += 1
        where = (self._node.cluster, pod, "ctr", NAMESPACE)
        try:
            said = exec_in(*where, *attack(name, *words), timeout=2 * FLOOD_S)
        except TestbedError as error:
            self.did[f"{name} (broke off)"] += 1
            said = str(error).splitlines()[0]
        print(f"  {name}: {said[:150]}", flush=True)

    # At the API server

    def _act(self, turn: Turn, chance: random.Random) -> None:
        for act in turn.acts:
            self.did[act] += 1
            if act in OUTSIDE:
                self._kill_daemons() if act == "daemons-kill" else self._be_greedy(turn.number)
                continue
            made = odd(act, chance, self._whole)
            if refused := self._make(*made.claims, *made.pods):
                self.did[f"{act} (refused objects)"] += refused
            time.sleep(chance.uniform(0, 1.5) if made.is_hurried else _ODD_S)
            for thing in (*made.pods, *made.claims):
                grace = 0 if made.is_hurried or turn.is_abrupt else None
                self._api.delete(thing["kind"], thing["metadata"]["name"], NAMESPACE, grace=grace)

    def _be_greedy(self, number: int) -> None:
        """Have a pod take more memory than its share, and wait until it was ended for that.

        Raises TestbedError if it was not.
        """
        name = f"greedy-{number}"
        self._make(self._share | {"metadata": {"name": name}}, pod_of(name, name))
        wait_running(self._api, NAMESPACE, (name,), timeout=120)

        def pod() -> Object:
            return self._api.get("Pod", name, NAMESPACE)

        with computing(self._node, pod(), self._shared, GREEDY_MIB, by_mps=True):
            wait_until(
                lambda: pod()["status"]["phase"] == "Failed",
                f"{name} to be ended for more memory than its share",
                timeout=_ENDED_S,
            )

    def _make(self, *things: Object) -> int:
        """Create what the API server accepts; return how many objects it refused."""
        refused = 0
        for thing in things:
            try:
                self._api.create(thing, NAMESPACE)
            except ApiStatusError:
                refused += 1
        return refused

    def _kill_daemons(self) -> None:
        """Kill the MPS daemons and servers of this tenant's claims and shares."""
        claims = self._node.cluster.api.all("ResourceClaim", NAMESPACE)
        mine = {self.domain, *(each["metadata"]["uid"] for each in claims)}
        processes = mps.processes(self._node.place.plugins)
        kill_all(pid for pid, domain in processes.items() if domain in mine)


def open_ports(address: str) -> list[str]:
    """All TCP ports of an address that accept connections, as `ADDRESS:PORT`."""
    ports = []
    for port in range(1, 65_536):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as peer:
            peer.settimeout(0.5)
            if peer.connect_ex((address, port)) == 0:
                ports.append(f"{address}:{port}")
    return ports
