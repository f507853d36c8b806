"""`dra-driver explain` names what is in the way, and nothing else."""

import explained
import make
from dra_driver.slices.consumable import Consumable
from dra_driver.slices.offer.shares import ShareOffer
from dra_driver.slices.project import projection
from explained import Command, claim, gpus, having, node, pod, request
from published import slices

A100 = "NVIDIA A100-SXM4-80GB"
GPU = "nvidia.com/gpu"
OWN = "device.attributes['gpu.nvidia.com']"
NODES = [node(), node("node-2")]
CLUSTER = [*gpus(), *gpus(A100, A100, node="node-2"), *explained.classes(), *NODES]
ALONE = [node(), *explained.classes()]


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


def test_gpus_whose_mig_mode_is_off_have_no_mig_devices(command: Command) -> None:
    selector = f"{OWN}.type == 'mig'"
    by_class = command.says(*CLUSTER, claim(request(device_class="mig.nvidia.com")), pod("wanted"))
    anything = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "any"},
        "spec": {},
    }
    wanted = claim(request(device_class="any", selector=selector), name="other")
    by_selector = command.says(anything, wanted, pod("other", name="p"), of="pod p")
    for said in (by_class, by_selector):
        assert "a GPU whose MIG mode is off is published as a whole" in said
    of_model = claim(request(selector=f"{OWN}.productName == 'NVIDIA H200'"), name="model")
    assert "MIG mode" not in command.says(of_model, pod("model", name="q"), of="pod q")


def test_a_constraint_is_not_blamed_for_counters(command: Command) -> None:
    parents = "gpu.nvidia.com/parentUUID"
    wanted = claim(
        request(device_class="mig.nvidia.com", selector=f"{OWN}.profile == '3g.40gb'", count=2),
        constraints=[{"matchAttribute": parents}],
    )
    halves = [having(f"gpu-{n}-mig-3g40gb-9-0", name=f"half-{n}") for n in (0, 1)]
    said = command.says(*ALONE, *gpus(mig=True), *halves, wanted, pod("wanted"))
    first, second = (f"GPU-00000000-0000-4000-8000-00000000000{n}" for n in (0, 1))
    assert (
        f"claim default/wanted has the constraint matchAttribute {parents}: its devices must have "
        f'one and the same value, and too few of any are free, 1 of 2 with "{first}", 1 of 2 with '
        f'"{second}": the others are in use by claim default/half-0 (pod train-0), claim '
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
    said = command.says(*ALONE, *two, wanted, pod("wanted"))
    assert "enough devices have" in said
    assert "they use the same counters or capacity" in said
