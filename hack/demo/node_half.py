"""The node half: GPUs → ResourceSlice → claim → CDI spec → answer to the kubelet.

No cluster is needed: the API server is that of the contract tests, and this program makes the
kubelet's calls. Simulated GPUs and the driver are the same as in the cluster.
"""

import json
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from testbed.api import Api, Object, thing
from testbed.claims import allocation, claim
from testbed.commands import wait_until
from testbed.driver import DriverProcess, Place
from testbed.fake_api import fake_api
from testbed.kubelet import ClaimName, KubeletClient
from testbed.machine import SimulatedMachine

from demo.screen import Screen
from demo.versions import DEFAULT, Minor
from dra_driver.host.words import count

NODE = "demo-node"
NAMESPACE = "default"
SHOWN = 3
"""How many entries of a long list in a CDI spec are printed."""


def show(screen: Screen, folder: Path, profile: str, kubernetes: Minor = DEFAULT) -> None:
    """Run the node half in an empty `folder`, as on a version of Kubernetes; end all processes."""
    with ExitStack() as stack:
        machine = SimulatedMachine(folder / "gpus", profile)
        stack.callback(machine.down)
        machine.up()
        screen.step(f"simulated machine: {profile}, as a driver root in {machine.root}")
        version = ".".join(map(str, kubernetes))
        api, kubeconfig = stack.enter_context(fake_api(folder, [thing("Node", NODE)], version))
        place = Place.below(folder, kubeconfig, machine.root, node=NODE)
        driver = DriverProcess(place, folder / "driver.log")
        stack.callback(driver.stop)
        driver.start()
        kubelet = stack.enter_context(KubeletClient(place.registry))
        info = kubelet.register(driver=driver)
        screen.step(f"driver registered: {info.name} offers {', '.join(info.supported_versions)}")
        published = _published(api)
        gpus = [device for device in published if device["attributes"]["type"]["string"] == "gpu"]
        migs = [device for device in published if device not in gpus]
        in_mode = [gpu for gpu in machine.settings().values() if gpu.mig_mode == "Enabled"]
        whole = count(len(gpus), "GPU")
        screen.step(f"published in the pool {NODE}: {whole}{_and_divided(migs, len(in_mode))}")
        screen.table(("DEVICE", "PRODUCT", "MEMORY", "UUID"), [_row(device) for device in gpus])
        if migs:
            screen.table(("MIG PROFILE", "MEMORY", "PLACES"), _profiles(migs))
        # One of each kind, if there are both.
        if chosen := [*gpus[:1], *migs[:1], *gpus[1:]][:2]:
            _prepare(screen, api, kubelet, place, [device["name"] for device in chosen])


def _published(api: Api) -> list[Object]:
    """Wait for all of the driver's slices and return their devices."""

    def look() -> list[Object]:
        slices = [each["spec"] for each in api.all("ResourceSlice")]
        if any(each["pool"]["resourceSliceCount"] != len(slices) for each in slices):
            return []
        return [device for each in slices for device in each.get("devices", [])]

    return wait_until(look, "the driver to publish its GPUs", timeout=30)


def _row(device: Object) -> tuple[str, str, str, str]:
    attributes = device["attributes"]
    name, uuid = attributes["productName"]["string"], attributes["uuid"]["string"]
    return device["name"], name, device["capacity"]["memory"]["value"], uuid


def _and_divided(migs: list[Object], in_mode: int) -> str:
    """Print what is published for GPUs in MIG mode, and for how many."""
    if not in_mode:
        return ""
    others = f", and {in_mode} in MIG mode"
    if not migs:
        return f"{others}, of which nothing is until an admin makes MIG devices"
    return f"{others}, which the driver divides as pods need it"


def _profiles(migs: list[Object]) -> list[tuple[str, str, str]]:
    """Return a row for each MIG profile: its memory, and at how many places it is offered."""
    places = Counter(mig["attributes"]["profile"]["string"] for mig in migs)
    memory = {
        mig["attributes"]["profile"]["string"]: mig["capacity"]["memory"]["value"] for mig in migs
    }
    return [(name, memory[name], str(count)) for name, count in places.items()]


def _prepare(
    screen: Screen, api: Api, kubelet: KubeletClient, place: Place, devices: list[str]
) -> None:
    """Prepare claims in one call like the kubelet, show the result, and undo it.

    There are two, each for a device, or one if the machine offers only one device.
    """
    wanted = zip(("training", "inference"), devices, strict=False)
    claims = [_allocated(api, name, [device]) for name, device in wanted]
    answers = kubelet.must_prepare(*claims)
    count = "two claims" if len(claims) > 1 else "a claim"
    screen.step(f"{count} prepared; the kubelet is answered:")
    for prepared in claims:
        for device in answers[prepared.uid].devices:
            ids = ", ".join(device.cdi_device_ids)
            screen.text(f"{prepared.name}: {device.pool_name}/{device.device_name}, inject {ids}")
    spec = next(place.cdi_root.glob(f"*{claims[0].uid}*"))
    screen.step(f"the CDI spec of '{claims[0].name}' for the container runtime, shortened:")
    screen.text(_shortened(spec))
    kubelet.must_unprepare(*claims)
    screen.step(f"{count} unprepared; left over: {', '.join(place.left_over()) or 'nothing'}")


def _allocated(api: Api, name: str, devices: list[str]) -> ClaimName:
    """Create a claim and allocate devices to it, as the scheduler does in a cluster."""
    metadata = api.create(claim(name), NAMESPACE)["metadata"]
    status = {"status": allocation(NODE, *devices)}
    api.patch("ResourceClaim", name, status, NAMESPACE, part="/status")
    return ClaimName(uid=metadata["uid"], namespace=NAMESPACE, name=name)


def _shortened(path: Path) -> str:
    """Return a CDI spec with one line per entry, and long lists cut."""
    spec: Object = json.loads(path.read_text())
    lines = [f"{path.name}: CDI {spec['cdiVersion']}, kind {spec['kind']}"]
    for device in spec["devices"]:
        lines += [f"device {device['name']}", *_edits(device["containerEdits"])]
    lines += ["for every container of the claim", *_edits(spec.get("containerEdits", {}))]
    return "\n".join(lines)


def _edits(edits: Object) -> list[str]:
    nodes = (
        f"device node {node['path']}" + (f" from {node['hostPath']}" if "hostPath" in node else "")
        for node in edits.get("deviceNodes", [])
    )
    mounts = (f"mount {mount['containerPath']}" for mount in edits.get("mounts", []))
    hooks = (
        f"hook {' '.join(hook.get('args', [hook['path']]))}" for hook in edits.get("hooks", [])
    )
    env = (f"env {entry}" for entry in edits.get("env", []))
    return [
        *_cut(env, "variables"),
        *_cut(nodes, "device nodes"),
        *_cut(mounts, "mounts"),
        *_cut(hooks, "hooks"),
    ]


def _cut(entries: Iterable[str], what: str) -> list[str]:
    lines = [f"  {entry}" for entry in entries]
    if len(lines) <= SHOWN + 1:
        return lines
    return [*lines[:SHOWN], f"  … and {len(lines) - SHOWN} more {what}"]
