"""`dra-driver explain` names the cause that is there, and what to do that helps."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import explained
import make
from dra_driver.admin.explain.pod_state import unseen
from dra_driver.devices.model import Gpu
from dra_driver.devices.shares import Division, ShareStrategy
from dra_driver.slices.consumable import Consumable
from dra_driver.slices.offer.shares import ShareOffer
from dra_driver.slices.project import projection
from explained import Command, Object, claim, event, gpus, having, node, pod, request, template
from published import slices

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
OWN = "device.attributes['gpu.nvidia.com']"
NODES = [node(), node("node-2")]
CLUSTER = [*gpus(), *gpus(node="node-2"), *explained.classes(), *NODES]
QUOTA = (
    "failed to create ResourceClaim for claim gpu in pod default/train: resourceclaims.resource."
    'k8s.io "train-gpu-x" is forbidden: exceeded quota: gpus, requested: gpu.nvidia.com.'
    "deviceclass.resource.k8s.io/devices=2, used: …=0, limited: …=1"
)


def bound(*claims: str, phase: str = "Pending", node: str = "node-1", **facts: Any) -> Object:
    made = pod(*claims, nodeName=node, **facts)
    made["status"]["phase"] = phase
    return made


# Bypassing the scheduler


def test_a_pod_that_names_its_node_runs_without_the_gpus_of_its_limits(command: Command) -> None:
    said = command.says(*CLUSTER, bound(phase="Running", limits={GPU: 8}))
    assert said.splitlines()[0] == (
        "pod default/train: is on node node-1, without devices that it asks for"
    )
    assert (
        "the pod was bound to node node-1 without the scheduler, by spec.nodeName or another "
        f"program, and runs without what was not allocated: {GPU}"
    ) in said
    assert "-> delete the pod, and choose its node by a nodeSelector or affinity on " in said


def test_a_pod_that_names_its_node_never_gets_its_claim(command: Command) -> None:
    refused = event("FailedPrepareDynamicResources", "resource claim is not reserved for the pod")
    said = command.says(*CLUSTER, claim(), bound("wanted"), refused)
    assert "and never gets what was not allocated: claim default/wanted" in said
    assert "Has devices, but does not start" not in said


def test_a_pod_that_runs_by_a_resource_name_has_the_claim_that_was_made_for_it(
    command: Command,
) -> None:
    running = pod(limits={GPU: 1}, nodeName="node-1")
    running["status"] = {
        "phase": "Running",
        "extendedResourceClaimStatus": {"resourceClaimName": "train-extended-resources-x"},
    }
    mine = having("gpu-0", name="train-extended-resources-x", user="train")
    assert command.says(*CLUSTER, mine, running, status=0).splitlines() == [
        "pod default/train: is on node node-1",
        "  claim default/train-extended-resources-x has gpu-0 of pool node-1; pod train",
        f"  {GPU}: DeviceClass gpu.resource.nvidia.com",
    ]


def test_a_scheduled_served_or_finished_pod_has_no_cause(command: Command) -> None:
    by_scheduler = bound(limits={GPU: 1}, phase="Running")
    by_scheduler["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "theirs"}
    mine = having("gpu-0", user="train")
    assert "without" not in command.says(*CLUSTER, mine, by_scheduler, status=0)
    over = bound(limits={GPU: 1}, phase="Succeeded", name="over")
    assert "without" not in command.says(over, of="pod over", status=0)
    by_plugin = bound(limits={GPU: 1}, phase="Running", name="plugin", node="node-3")
    with_plugin = node("node-3", allocatable={GPU: "8"})
    assert "without" not in command.says(with_plugin, by_plugin, of="pod plugin", status=0)


def test_a_pod_by_an_annotation_of_kai_asks_for_no_gpu(command: Command) -> None:
    waits = pod(schedulerName="kai-scheduler")
    runs = bound(phase="Running", name="runs")
    for one in (waits, runs):
        one["metadata"]["annotations"] = {"gpu-fraction": "0.5"}
    said = command.says(*CLUSTER, waits, runs)
    assert said.splitlines()[:4] == [
        "pod default/train: asks for no device",
        "",
        "What is in the way:",
        "  * only KAI-Scheduler reads the pod's annotation gpu-fraction: it gets no GPU",
    ]
    assert "* no scheduler named kai-scheduler has handled the pod" in said
    said = command.says(of="pod runs")
    assert "is on node node-1, without devices that it asks for\n" in said
    assert "-> ask for nvidia.com/gpu in its limits, or by a claim for part of a GPU" in said
    with_claim = bound("theirs", phase="Running", name="has")
    with_claim["metadata"]["annotations"] = {"gpu-fraction": "0.5"}
    command.says(with_claim, having("gpu-0"), of="pod has", status=0)


# Not seen by a scheduler


def test_a_pod_without_a_scheduler_is_not_said_to_fit(command: Command) -> None:
    wanted = pod(limits={GPU: 1}, schedulerName="hami-scheduler")
    said = command.says(*CLUSTER, wanted)
    assert said.splitlines()[0] == "pod default/train: cannot be scheduled yet"
    assert (
        "  * no scheduler named hami-scheduler has handled the pod: run it, or create the pod "
        "again without spec.schedulerName\n"
    ) in said
    by_it = event("Waiting", "in the queue") | {"reportingController": "hami-scheduler"}
    command.says(by_it, status=0)
    wanted = pod(limits={GPU: 1}, schedulerName="volcano", name="tried")
    wanted["status"]["conditions"] = [{"type": "PodScheduled", "status": "False"}]
    command.says(wanted, of="pod tried", status=0)


def test_a_cluster_whose_own_scheduler_does_not_run() -> None:
    old = pod(limits={GPU: 1}, schedulerName="default-scheduler")
    made = datetime(2026, 1, 1, tzinfo=UTC)
    old["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    assert unseen(old, made + timedelta(seconds=50)) == ""
    said = "no scheduler named default-scheduler has handled the pod: check that kube-scheduler"
    assert unseen(old, made + timedelta(seconds=70)).startswith(said)


# Containers that do not start

LIBRARY = "/usr/lib/x86_64-linux-gnu/libcuda.so.535.183.06"
MOUNT = (
    "failed to create containerd task: OCI runtime create failed: runc create failed: unable to "
    f'start container process: error during container init: error mounting "{LIBRARY}" to rootfs '
    f'at "{LIBRARY}": mount src={LIBRARY}, dst={LIBRARY}, dstFd=/proc/thread-self/fd/8: no such '
    "file or directory"
)
STAT = f"crun: cannot stat `{LIBRARY}`: No such file or directory: OCI runtime attempted to start"
OPEN = f"failed to fulfil mount request: open {LIBRARY}: no such file or directory: unknown"
NO_PROGRAM = 'exec: "/bin/train": stat /bin/train: no such file or directory'
NO_DEVICE = "CDI device injection failed: unresolvable CDI devices k8s.gpu.nvidia.com/claim=x"


@pytest.mark.parametrize(
    ("reason", "message", "ended", "advice"),
    [
        ("RunContainerError", MOUNT, {}, f"-> node-1 has no {LIBRARY}, which the container"),
        ("RunContainerError", STAT, {}, f"-> node-1 has no {LIBRARY}, which the container"),
        (
            "CrashLoopBackOff",
            "back-off 5m0s restarting failed container",
            {"reason": "StartError", "exitCode": 128, "message": OPEN},
            f"-> node-1 has no {LIBRARY}, which the container",
        ),
        ("CreateContainerError", NO_DEVICE, {}, "-> the runtime does not find the claim's dev"),
        ("ImagePullBackOff", "no such image", {}, "-> correct the image's name"),
        ("CreateContainerConfigError", 'secret "s" not found', {}, ""),
        ("RunContainerError", NO_PROGRAM, {}, ""),
        (
            "CrashLoopBackOff",
            "back-off",
            {"reason": "Error", "exitCode": 1},
            "-> read its log: kubectl logs --namespace default train --container main --prev",
        ),
        ("", "", {"reason": "StartError", "exitCode": 128, "message": MOUNT}, "-> node-1 has no"),
    ],
)
def test_a_container_that_does_not_start_gets_advice(
    command: Command, reason: str, message: str, ended: Object, advice: str
) -> None:
    waits = bound("wanted")
    status: Object = {"name": "main", "state": {"waiting": {"reason": reason, "message": message}}}
    if ended:
        status["lastState" if reason else "state"] = {"terminated": ended}
    waits["status"]["containerStatuses"] = [status]
    said = command.says(*CLUSTER, having("gpu-0", name="wanted"), waits)
    assert said.startswith("pod default/train: is on node node-1, but does not run\n")
    assert f"  * container main does not start or stay up: {reason or 'StartError'}\n" in said
    assert message in said
    assert ended.get("message", "") in said
    assert advice in said
    assert ("->" in said) == bool(advice)


def test_a_starting_or_ended_container_is_no_problem(command: Command) -> None:
    states = [
        {"waiting": {"reason": "ContainerCreating"}},
        {"running": {}},
        {"terminated": {"reason": "Completed", "exitCode": 0}},
    ]
    runs = bound("wanted")
    runs["status"]["containerStatuses"] = [{"name": "main", "state": state} for state in states]
    crashed = {"terminated": {"reason": "StartError", "exitCode": 128}}
    runs["status"]["containerStatuses"][1]["lastState"] = crashed
    command.says(*CLUSTER, having("gpu-0", name="wanted"), runs, status=0)


# Claims that are not made


@pytest.mark.parametrize("why", [QUOTA, 'admission webhook "w" denied the request: no GPUs today'])
def test_a_claim_that_is_not_made_is_the_only_cause(command: Command, why: str) -> None:
    older = event("FailedResourceClaimCreation", "of before", seen=1)
    newest = event("FailedResourceClaimCreation", why, seen=2)
    wanted = pod(templates=["one-gpu"])
    said = command.says(*CLUSTER, template(), wanted, older, newest)
    assert said.splitlines()[0] == "pod default/train: cannot be scheduled yet"
    assert f"  * its claim cannot be made: {why}" in said
    assert "fits" not in said
    assert "of before" not in said


def test_events_of_an_earlier_pod_of_the_name_are_ignored(command: Command) -> None:
    before = event("FailedResourceClaimCreation", QUOTA, uid="another")
    command.says(*CLUSTER, template(), pod(templates=["one-gpu"]), before, status=0)


def test_a_quota_on_the_schedulers_claims_is_reported(command: Command) -> None:
    note = 'running PreBind plugin: create claim: resourceclaims "x" is forbidden: exceeded quota'
    scheduled = event("FailedScheduling", note)
    assert "exceeded quota" in command.says(*CLUSTER, pod(limits={GPU: 1}), scheduled)
    other = event("FailedScheduling", "0/1 nodes are available: 1 cannot allocate", of="other")
    command.says(pod(limits={GPU: 1}, name="other"), other, of="pod other", status=0)


# What the devices are


def test_the_name_of_gpus_in_old_kubernetes(command: Command) -> None:
    said = command.says(*CLUSTER, pod(limits={"alpha.kubernetes.io/nvidia-gpu": 1}))
    assert said.startswith("pod default/train: does not fit on any of 2 nodes")
    assert (
        "nothing offers alpha.kubernetes.io/nvidia-gpu: Kubernetes before 1.11 used this name; "
        "ask for nvidia.com/gpu"
    ) in said


def test_a_resource_name_that_no_class_has_names_the_command_that_prints_one(
    command: Command,
) -> None:
    said = command.says(*CLUSTER, pod(limits={"nvidia.com/mig-1g.5gb": 1}))
    assert "(`dra-driver classes nvidia.com/mig-1g.5gb` prints the DeviceClass)" in said
    other = command.says(pod(limits={"example.com/nic": 1}, name="p"), of="pod p")
    assert "dra-driver classes" not in other


def test_gpus_without_mig_are_not_told_to_turn_it_on(command: Command) -> None:
    wanted = claim(request(device_class="mig.nvidia.com"))
    t4 = [*gpus("Tesla T4", architecture="Turing"), node(), *explained.classes()]
    said = command.says(*t4, wanted, pod("wanted"))
    assert "-> none of these GPUs has MIG (architecture Turing)" in said
    assert "nvidia-smi" not in said


def test_gpus_with_mig_are_told_to_turn_it_on(command: Command) -> None:
    by_class = command.says(*CLUSTER, claim(request(device_class="mig.nvidia.com")), pod("wanted"))
    anything = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "any"},
        "spec": {},
    }
    wanted = claim(request(device_class="any", selector=f"{OWN}.type == 'mig'"), name="other")
    by_selector = command.says(anything, wanted, pod("other", name="p"), of="pod p")
    for said in (by_class, by_selector):
        assert "a GPU whose MIG mode is off is published as a whole; turn MIG mode on" in said
        assert "(`nvidia-smi -i INDEX -mig 1`), or run the driver with --mig on-demand" in said
        assert "--vfio" not in said
        assert "reset" not in said
    of_model = claim(request(selector=f"{OWN}.productName == 'NVIDIA H200'"), name="model")
    assert "MIG mode" not in command.says(of_model, pod("model", name="q"), of="pod q")


def test_an_a100_needs_a_reset_too(command: Command) -> None:
    wanted = claim(request(device_class="mig.nvidia.com"))
    a100 = [*gpus("NVIDIA A100-SXM4-80GB", architecture="Ampere"), node(), *explained.classes()]
    said = command.says(*a100, wanted, pod("wanted"))
    assert "-mig 1`); on an A100 or A30 the mode stays pending until the GPU is reset" in said
    assert "on-demand" not in said


def test_requests_for_passthrough_without_gpus_name_the_setting(command: Command) -> None:
    wanted = claim(request(device_class="vfio.gpu.nvidia.com"))
    said = command.says(*CLUSTER, wanted, pod("wanted"))
    assert "DeviceClass vfio.gpu.nvidia.com selects none of" in said
    assert "run the driver with --vfio (chart value vfio)" in said


def test_requests_for_renamed_shares_get_their_name(command: Command) -> None:
    gpu = make.gpu(0)
    division = Division(
        count=2, strategy=ShareStrategy.TIME_SLICING, served_as=SHARED, combines=True
    )
    offer = ShareOffer(divisions={make.place(gpu): division})
    found = projection(make.inventory(gpu), share=offer)
    shared = [*slices(found.devices, found.counter_sets), node(), *explained.classes()]
    said = command.says(*shared, pod(limits={GPU: 1}))
    assert f"-> ask for {SHARED}: these devices are shared, and only this name serves them" in said
    assert "name another class" not in said


@pytest.mark.parametrize(
    ("selector", "advice"),
    [
        (
            f"{OWN}.memory >= 80",
            "write `device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0`",
        ),
        (f"{OWN}.memoryGB > 40", "memory is a capacity, not an attribute"),
        (f"{OWN}.index == 0", "no device has an attribute index"),
        (f"{OWN}.productname == 'x'", "(did you mean productName?)"),
        (
            f"{OWN}.cudaComputeCapability >= 8.0",
            "write `.cudaComputeCapability.compareTo(semver('8.0.0')) >= 0`",
        ),
        (
            "device.capacity['gpu.nvidia.com'].memory >= quantity('40Gi')",
            "write `.memory.compareTo(quantity('40Gi')) >= 0`",
        ),
    ],
)
def test_a_selector_of_a_tutorial_is_put_right(
    command: Command, selector: str, advice: str
) -> None:
    said = command.says(*CLUSTER, claim(request(selector=selector)), pod("wanted"))
    assert advice in said
    assert "orValue" not in said


def test_an_attribute_that_some_devices_have_is_to_be_guarded(command: Command) -> None:
    wanted = claim(request(device_class="any", selector=f"{OWN}.profile == '1g.10gb'"))
    anyone = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "any"},
        "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]},
    }
    said = command.says(*gpus(mig=True), node(), anyone, wanted, pod("wanted"))
    assert "some devices do not have this attribute: guard it in the selector" in said


def divided(*gpus: Gpu, combines: bool) -> list[Object]:
    """A node whose GPUs are divided by MPS into ten shares each."""
    division = Division(count=10, strategy=ShareStrategy.MPS, served_as=GPU, combines=combines)
    offer = ShareOffer(divisions={make.place(gpu): division for gpu in gpus}, alone="a setting")
    found = projection(make.inventory(*gpus), share=offer)
    return [*slices(found.devices, found.counter_sets), node(), *explained.classes()]


@pytest.mark.parametrize("taken", [0, 7])
def test_requests_for_too_many_shares_get_the_limit(command: Command, taken: int) -> None:
    theirs = [having(f"gpu-0-single-share-{n}-of-10", name=f"c{n}") for n in range(taken)]
    wanted = pod(limits={GPU: 8})
    why = "x" if taken else 'is forbidden: policy "dra-driver-share-requests" denied: ask for 1'
    command.says(*divided(make.gpu(0), combines=False), *theirs, wanted)
    said = command.says(event("FailedScheduling", why))
    assert "asks for 8 devices; 10 devices selected, none is available" in said
    assert (
        "and 7 more: is a share, and the node's share config allows a request only one\n"
        "    -> ask for 1, or set failRequestsGreaterThanOne: false in its share config"
    ) in said
    assert "end one of these pods" not in said
    assert "0 of 10 selected free (10 one share each), 8 needed" in said
    command.says(pod(limits={GPU: 1}, name="one"), of="pod one", status=0)
    every = {"device_class": "gpu.resource.nvidia.com", "allocationMode": "All"}
    sees = claim(request("all", **every, adminAccess=True), request("two", count=2), name="sees")
    said = command.says(sees, of="claim sees")
    assert "* request two of claim default/sees: " in said
    assert "request all" not in said
    takes = claim(request(**every), name="takes")
    assert "allows a request only one" in command.says(takes, of="claim takes")


def test_shares_of_several_gpus_under_mps_get_advice(command: Command) -> None:
    theirs = [having(f"gpu-0-mps-share-{n}-of-10", name=f"c{n}") for n in range(3)]
    there = divided(make.gpu(0), make.gpu(1), combines=True)
    said = command.says(*there, *theirs, pod(limits={GPU: 8}))
    assert "would get shares of gpu-0, gpu-1, and under MPS they have to be of one device" in said
    assert "constraints: [{matchAttribute: gpu.nvidia.com/uuid}]" in said
    command.says(pod(limits={GPU: 7}, name="seven"), of="pod seven", status=0)


# What is not to blame


def test_a_constraint_is_not_blamed_for_counters(command: Command) -> None:
    parents = "gpu.nvidia.com/parentUUID"
    wanted = claim(
        request(device_class="mig.nvidia.com", selector=f"{OWN}.profile == '3g.40gb'", count=2),
        constraints=[{"matchAttribute": parents}],
    )
    halves = [having(f"gpu-{n}-mig-3g40gb-9-0", name=f"half-{n}") for n in (0, 1)]
    said = command.says(
        node(), *explained.classes(), *gpus(mig=True), *halves, wanted, pod("wanted")
    )
    first, second = (f"GPU-00000000-0000-4000-8000-00000000000{n}" for n in (0, 1))
    assert (
        f"claim default/wanted has the constraint matchAttribute {parents}: its devices must have "
        f'the same value, and too few with any one value are free, 1 of 2 with "{first}", 1 of 2 '
        f'with "{second}": the others are in use by claim default/half-0 (pod train-0), claim '
        "default/half-1 (pod train-0)"
    ) in said
    assert "-> end one of these pods or wait for it" in said


def test_a_constraint_is_not_blamed_for_capacity(command: Command) -> None:
    wanted = claim(
        request("a", capacity={"requests": {"memory": "50Gi"}}),
        request("b", capacity={"requests": {"memory": "50Gi"}}),
        constraints=[{"matchAttribute": "gpu.nvidia.com/uuid"}],
    )
    share = ShareOffer(consumable=Consumable.of("memory"))
    two = slices(projection(make.inventory(make.gpu(0), make.gpu(1)), share=share).devices)
    said = command.says(node(), *explained.classes(), *two, wanted, pod("wanted"))
    assert "enough devices have" in said
    assert "they use the same counters or capacity" in said
