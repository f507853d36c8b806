"""What the node's facts mean for pods with GPUs. Pure: facts in, findings out."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from dra_driver.admin.doctor.checks.finding import Seen, error, info, ok, unknown, warning
from dra_driver.admin.doctor.facts.gone_claims import GoneFacts
from dra_driver.admin.doctor.facts.node_facts import (
    DriverFacts,
    GroupFacts,
    HolderFacts,
    NodeFiles,
    OtherFacts,
    SocketFacts,
    SpecFacts,
)
from dra_driver.admin.stored import StoredRecords, made_for
from dra_driver.admin.takeover import peer_claims
from dra_driver.admin.takeover.peer_claims import PeerClaims
from dra_driver.admin.takeover.take_over import STUCK
from dra_driver.cdi.nodes import UVM
from dra_driver.devices.driver_root.modprobe import BY_HAND
from dra_driver.devices.model import Gpu, Inventory, MigMode, PassthroughGpu
from dra_driver.devices.names import gpu_name
from dra_driver.devices.nvml.memory_limits import FIRST_DRIVER
from dra_driver.host.words import count, named
from dra_driver.slices.offer.mig import COST_BEFORE_1_37, KubernetesVersion, has_cheap_counters

NODE_LABEL = "nvidia.com/dra-driver=true"
"""The label that an admin sets by hand on a node with GPUs."""


def kernel_driver(facts: DriverFacts) -> Iterator[Seen]:
    """Check whether the GPU driver runs."""
    gpus = "" if facts.gpus_on_pci is None else f", {count(facts.gpus_on_pci, 'GPU')} on PCI"
    if facts.version is not None:
        yield ok(f"GPU driver {facts.version} runs{gpus}")
    elif facts.gpus_on_pci:
        yield error(
            f"no GPU driver runs{gpus}",
            "install it or load it (modprobe nvidia), and see dmesg if that fails",
        )
    else:
        yield info(
            f"no GPU driver runs{gpus}",
            "nothing, if this node has no GPU; else install the GPU driver",
        )


def library(path: Path) -> Iterator[Seen]:
    """Report where NVML's library was found."""
    yield ok(f"NVML is {path}")


def gpus(inventory: Inventory) -> Iterator[Seen]:
    """Check the GPUs that NVML reports."""
    if inventory.gpus:
        products = dict.fromkeys(gpu.product_name for gpu in inventory.gpus)
        yield ok(
            f"{count(len(inventory.gpus), 'GPU')} ({named(products)}), "
            f"driver {inventory.driver_version}"
        )
    elif not (inventory.sick or inventory.excluded):
        yield error(
            f"driver {inventory.driver_version} answers, but finds no GPU",
            "see dmesg for NVRM lines; in a virtual machine, check that a GPU is passed through",
        )
    for sick in inventory.sick:
        yield error(
            f"GPU {sick.index} is not offered: {sick.reason}",
            "see dmesg for NVRM and Xid lines; reset the GPU, as `dra-driver health` explains, or "
            "drain the node and reboot it",
        )


def excluded(inventory: Inventory) -> Iterator[Seen]:
    """Report which GPUs --exclude-gpus leaves out."""
    for gpu in inventory.excluded:
        yield info(f"{gpu} is not offered: {gpu.why}", "nothing, if that is intended")
    for text in inventory.unmatched:
        yield warning(
            text,
            "see the names of GPUs in `dra-driver inspect`, and correct or remove the entry",
        )
    if not (inventory.excluded or inventory.unmatched):
        yield ok("no GPU is left out")


def persistence(inventory: Inventory) -> Iterator[Seen]:
    """Check whether GPUs stay initialised while no program uses them."""
    without = [gpu for gpu in inventory.gpus if gpu.is_persistent is False]
    silent = [gpu for gpu in inventory.gpus if gpu.is_persistent is None]
    if without:
        yield warning(
            f"persistence mode is off on {_gpus(without)}",
            "run nvidia-persistenced on the node, as NVIDIA's packages set it up "
            "(systemctl enable --now nvidia-persistenced)",
        )
    if silent:
        yield unknown(f"NVML does not report whether persistence mode is on: {_gpus(silent)}")
    if not (without or silent):
        yield ok("persistence mode is on")


def mig_modes(inventory: Inventory, kubernetes: KubernetesVersion | None) -> Iterator[Seen]:
    """Check for GPUs in MIG mode that may have nothing to offer."""
    divided = [gpu for gpu in inventory.gpus if gpu.mig_mode is MigMode.ENABLED]
    empty = [gpu for gpu in divided if not gpu.mig_instances]
    if empty and not has_cheap_counters(kubernetes):
        yield warning(
            f"{_gpus(empty)} in MIG mode without a MIG device: not offered before Kubernetes "
            "1.37, unless --mig is on-demand",
            f"make MIG devices (nvidia-smi mig -i {empty[0].pci_address} -cgi PROFILES -C, or "
            f"mig-parted), turn MIG mode off (nvidia-smi -i {empty[0].pci_address} -mig 0), or "
            f"set --mig on-demand, at a cost: {COST_BEFORE_1_37}",
        )
    elif divided:
        yield ok(f"{count(len(divided), 'GPU')} in MIG mode")
    else:
        yield ok("no GPU is in MIG mode: all are offered as a whole, unless --mig is on-demand")


def _gpus(some: Sequence[Gpu]) -> str:
    return f"{count(len(some), 'GPU')} ({named(gpu_name(gpu.minor) for gpu in some)})"


def holders(facts: HolderFacts) -> Iterator[Seen]:
    """Report which processes have the GPUs open."""
    if not facts.sees_node:
        yield unknown(
            "this pod does not see the node's processes",
            "run doctor on the node, or in a pod that has the node's root mounted (--host-root)",
        )
        return
    held = {minor: some for minor, some in facts.holders.items() if some}
    for minor, processes in held.items():
        yield info(
            f"/dev/nvidia{minor} is open in {named(processes)}",
            "nothing, unless you want to change the GPU's MIG mode; then "
            "end the processes, except the driver itself (dra-driver), which closes the GPU",
        )
    if not held:
        yield ok("no other process has a GPU open")


def device_nodes(facts: NodeFiles) -> Iterator[Seen]:
    """Check the device nodes that every CUDA program needs."""
    if "nvidiactl" not in facts.present | facts.numbered:
        yield error(
            f"{facts.folder}/nvidiactl is missing",
            "load the GPU driver (modprobe nvidia), and check --nvidia-dev-root",
        )
    if UVM not in facts.present | facts.numbered:
        yield warning(
            f"{facts.folder}/{UVM} is missing: the driver makes it at the first claim, if the "
            "driver root has nvidia-modprobe",
            f"run `{BY_HAND}` on the node; to keep it, load nvidia-uvm at boot "
            "(/etc/modules-load.d)",
        )
    if {"nvidiactl", UVM} <= facts.present | facts.numbered:
        yield ok(f"nvidiactl and {UVM} can be given to containers")


def control_groups(facts: GroupFacts) -> Iterator[Seen]:
    """Check the control groups."""
    if facts.hierarchy is None:
        yield warning(
            "cgroup v2 is not mounted",
            "boot the node with systemd.unified_cgroup_hierarchy=1; in a pod, mount the node's "
            "/sys/fs/cgroup and name it (--cgroup-root)",
        )
        return
    if facts.hierarchy.name == "unified":
        yield info(
            f"cgroup v2 is at {facts.hierarchy}, beside version 1",
            "boot the node with systemd.unified_cgroup_hierarchy=1",
        )
    if facts.kernel_counts_gpus:
        yield info(
            "the kernel counts GPU memory (dmem), so control groups do not limit shares",
            "share GPUs by MPS, whose limits need no control groups",
        )
        return
    yield ok(
        f"cgroup v2 is at {facts.hierarchy}; a GPU driver of R{FIRST_DRIVER} or newer limits the "
        "memory of shares there"
    )


def specs(facts: SpecFacts) -> Iterator[Seen]:
    """Check the folder of CDI specs."""
    if not facts.is_folder:
        yield warning(
            f"{facts.folder} is not there",
            "nothing, if no claim was prepared since the node started; else mount the node's "
            "folder there, or name it (--cdi-root)",
        )
        return
    if facts.of_others:
        yield warning(
            f"{facts.folder} has another driver's specs of the same kind: {named(facts.of_others)}",
            "they belong to pods that NVIDIA's DRA driver prepared: wait for these to end; once "
            "no pod uses the files, delete them",
        )
    if facts.unreadable:
        yield warning(
            f"{facts.folder} has files that a runtime cannot use: {named(facts.unreadable)}",
            "correct or remove them: runtimes report them for each container",
        )
    if not (facts.of_others or facts.unreadable):
        yield ok(f"{facts.folder} has {count(facts.of_claims, 'spec')} of prepared claims")


def missing(claims: Mapping[str, Sequence[str]]) -> Iterator[Seen]:
    """Check whether the files exist that containers of prepared claims mount."""
    for path, users in claims.items():
        mount = f"claim {users[0]} mounts" if len(users) == 1 else f"claims {named(users)} mount"
        yield error(
            f"{mount} {path}, which does not exist: containers that start or restart fail",
            "complete the GPU driver's upgrade, or reboot the node: then the driver writes the "
            "specs again within two minutes, and until then logs what it waits for",
        )
    if not claims:
        yield ok("all files that containers of prepared claims mount exist")


def gone(facts: GoneFacts) -> Iterator[Seen]:
    """Check whether claims that have no right to their devices any more are still prepared."""
    if facts.why_unknown is not None:
        yield warning(
            f"claims that are gone stay prepared: {facts.why_unknown}",
            "mount the kubelet's pod-resources folder and the node's /sys/fs/cgroup into the "
            "driver's pod, as the chart does",
        )
    for claim, why in facts.kept.items() if facts.why_unknown is None else ():
        yield warning(
            f"claim {claim}, but {why}: it keeps its devices, and others wait for them",
            "end that pod; if none of its processes runs, restart the kubelet or the node",
        )
    for claim in facts.ended:
        yield info(f"nothing uses claim {claim}: the driver will unprepare it soon")
    if facts == GoneFacts(why_unknown=None):
        yield ok("no prepared claim is known to be gone")


def damaged(stored: StoredRecords, inventory: Inventory) -> Iterator[Seen]:
    """Check for records that cannot be read, and MIG devices that may have been made for them."""
    broken = {name: why for name, why in stored.damaged.items() if name not in stored.newer}
    for name, why in broken.items():
        yield warning(
            f"the record {name} of a claim is damaged: {why}; the driver does not know what was "
            "done for the claim",
            "when its pod has ended, and the steps below are done, delete the file in "
            "quarantine/ in the driver's directory",
        )
    for name in stored.newer:
        yield warning(
            f"the record {name} is of a newer version of this driver",
            "install that version again, or drain the node with it first",
        )
    made = {slot for record in stored.records for slot in made_for(record)}
    lost = [stored.lost.get(name, frozenset()) for name in broken]
    for gpu in inventory.gpus:
        for instance in (
            gpu.mig_instances if any(gpu.uuid in one or not one for one in lost) else ()
        ):
            if instance.slot not in made:
                smi = f"nvidia-smi mig -i {gpu.index} -gi {instance.gpu_instance}"
                yield warning(
                    f"GPU {gpu.index} has {instance.profile.name} at {instance.placement.start} "
                    f"(GPU instance {instance.gpu_instance}), which may have been made for that "
                    "claim: nothing will destroy it",
                    f"if nobody made it by hand, run `{smi} -dci`, then `{smi} -dgi`, and without "
                    f"any other MIG device there, `nvidia-smi -i {gpu.index} -mig 0`",
                )
    if not stored.damaged:
        yield ok("all records of claims can be read")


def sockets(facts: SocketFacts) -> Iterator[Seen]:
    """Check the sockets by which the kubelet finds this driver."""
    if not facts.is_folder:
        yield error(
            f"{facts.folder} is not there",
            "name the kubelet's folder (--kubelet-registrar-directory-path), or check that a "
            "kubelet runs here",
        )
    elif not facts.live:
        yield error(
            f"no driver listens in {facts.folder}",
            "see why the driver's pod does not run on this node (kubectl get pods "
            "--all-namespaces --output wide) or, if it runs, read its log",
        )
    elif len(facts.live) > 1:
        yield warning(
            f"{count(len(facts.live), 'driver')} listen in {facts.folder}: {named(facts.live)}",
            "nothing during a rolling update; else remove all but one: two drivers with the same "
            "name can give out a GPU twice",
        )
    else:
        yield ok(f"the driver listens on {facts.folder}/{facts.live[0]}")
    if facts.dead:
        yield warning(
            f"{facts.folder} has sockets on which nothing listens: {named(facts.dead)}",
            "start the driver on this node: it removes them",
        )


def others(facts: OtherFacts) -> Iterator[Seen]:
    """Check for traces of other software on this node that gives out GPUs."""
    if facts.device_plugins:
        yield warning(
            f"NVIDIA's device plugin listens here: {named(facts.device_plugins)}",
            "remove it from this node; while it gives out GPUs, this driver publishes none",
        )
    yield from _peer(facts.peer)
    if not facts.device_plugins and facts.peer.file is None:
        yield ok("no device plugin, and no trace of NVIDIA's DRA driver")


def _peer(peer: PeerClaims) -> Iterator[Seen]:
    """Check what NVIDIA's DRA driver has prepared and this driver has not taken over."""
    if peer.file is None:
        return
    if peer.problem is not None and peer.is_of_this_boot:
        yield warning(
            f"NVIDIA's DRA driver has run here, and its claims are not taken over: {peer.file}: "
            f"{peer.problem}",
            STUCK,
        )
        return
    unread = peer.unread if peer.is_of_this_boot else ()
    for claim in unread:
        yield warning(
            f"NVIDIA's DRA driver had prepared {peer_claims.named(claim)}, which is not taken "
            f"over: {claim.reason}",
            STUCK,
        )
    if not unread:
        yield info(
            f"NVIDIA's DRA driver has run here, and lists {count(len(peer.claims), 'claim')}: "
            f"{peer.file}",
            "remove its DaemonSet; this driver's pod takes over its claims before it starts; if "
            "that fails, the log of its init container take-over has the reason; delete the pod "
            "to try again",
        )


def labelled(facts: DriverFacts, labels: Iterable[str], node: str) -> Iterator[Seen]:
    """Check whether a node with GPUs has a label by which the DaemonSets find it."""
    if facts.gpus_on_pci and not list(labels):
        yield error(
            f"node {node} has {count(facts.gpus_on_pci, 'GPU')}, but no label of GPU nodes",
            f"kubectl label node {node} {NODE_LABEL}, or install Node Feature Discovery, which "
            "labels such nodes",
        )


def for_machines(cards: Sequence[PassthroughGpu]) -> Iterator[Seen]:
    """Check whether virtual machines can use the GPUs on the PCI bus.

    The text of a problem comes from the driver (devices/passthrough/rules.py): a reason and, after
    a colon, what to do.
    """
    offered = [card for card in cards if card.problem is None]
    by_problem: dict[str, list[PassthroughGpu]] = {}
    for card in cards:
        if card.problem is not None:
            by_problem.setdefault(card.problem, []).append(card)
    for problem, refused in by_problem.items():
        reason, _, advice = problem.partition(": ")
        verb = "is" if len(refused) == 1 else "are"
        are_for_containers = offered and all(card.driver == "nvidia" for card in refused)
        yield (info if are_for_containers else warning)(
            f"{named([card.gpu.pci_address for card in refused])} {verb} not offered to virtual "
            f"machines: {reason}",
            advice or "nothing, if that is intended",
        )
    if offered:
        yield ok(f"{count(len(offered), 'GPU')} can be given to virtual machines")
    elif not cards:
        yield info("there is no GPU on the PCI bus to give to a virtual machine")
