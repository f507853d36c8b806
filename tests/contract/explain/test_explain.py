"""`dra-driver explain` over an API server, as people run it."""

import json
from typing import Any

import pytest
import yaml
from testbed.apiserver.server import ApiServer

import explained
import make
from dra_driver.cli import main
from dra_driver.slices.consumable import Consumable
from dra_driver.slices.offer.shares import ShareOffer
from dra_driver.slices.project import projection
from explained import Command, Object, claim, gpus, having, node, pod, request, template
from published import part_of, slices

A100 = "NVIDIA A100-SXM4-80GB"
GPU = "nvidia.com/gpu"
OWN = "device.attributes['gpu.nvidia.com']"
NODES = [node(), node("node-2")]
CLUSTER = [*gpus(), *gpus(A100, A100, node="node-2"), *explained.classes(), *NODES]
ALONE = [node(), *explained.classes()]
FULL = [
    *CLUSTER,
    having("gpu-0", "gpu-1"),
    having("gpu-0", name="b", user="infer", pool="node-2"),
    having("gpu-1", name="c", user="notebook", pool="node-2"),
]


def test_a_pod_that_fits_is_shown_its_devices(command: Command) -> None:
    said = command.says(*CLUSTER, having("gpu-0"), template(), pod(templates=["one-gpu"]), status=0)
    assert said.splitlines()[:6] == [
        "pod default/train: fits on node-1, node-2",
        "  claim one-gpu of template one-gpu: its ResourceClaim does not exist yet",
        "",
        "NODE    FITS  WHY",
        "node-1  yes   gpu: gpu-1",
        "node-2  yes   gpu: gpu-0",
    ]
    assert "CPU, memory, volumes and other pods matter, too" in said


def test_a_selector_is_shown_with_what_the_devices_have(command: Command) -> None:
    wanted = claim(request(selector=f"{OWN}.productName == 'NVIDIA H200'"))
    assert command.says(*CLUSTER, wanted, pod("wanted")).splitlines() == [
        "pod default/train: does not fit on any of 2 nodes",
        "",
        "What is in the way:",
        (
            "  * request gpu of claim default/wanted: its selectors select none of the 4 devices "
            "that DeviceClass gpu.nvidia.com selects"
        ),
        f"      false for 4 devices: {OWN}.productName == 'NVIDIA H200'",
        (
            f'        gpu.nvidia.com/productName is "{A100}" (2 devices), "NVIDIA H100 80GB HBM3" '
            "(2 devices)"
        ),
        "    -> correct the selector, or add nodes that have such devices",
        "",
        "NODE            FITS  WHY",
        "node-1, node-2  no    gpu: none of 2 devices selected",
    ]


def test_a_class_that_selects_nothing(command: Command) -> None:
    said = command.says(*CLUSTER, claim(request(device_class="mig.nvidia.com")), pod("wanted"))
    assert "DeviceClass mig.nvidia.com selects none of 4 devices" in said
    assert 'gpu.nvidia.com/type is "gpu" (4 devices)' in said
    assert "-> name another class" in said


def test_holders_of_the_devices(command: Command) -> None:
    said = command.says(*FULL, template(), pod(templates=["one-gpu"]))
    assert said.splitlines()[3:7] == [
        "What is in the way:",
        (
            "  * request gpu of claim one-gpu of template one-gpu: asks for 1 device; 4 devices "
            "selected, none is available"
        ),
        (
            "      4 devices are taken by claim default/theirs (pod train-0), claim default/b (pod "
            "infer), claim default/c (pod notebook)"
        ),
        "    -> end one of these pods or wait for it, or add devices",
    ]


def test_a_resource_name_and_the_class_behind_it(command: Command) -> None:
    said = command.says(*FULL, pod(limits={GPU: 1}))
    assert f"  {GPU}: DeviceClass gpu.resource.nvidia.com\n" in said
    assert f"* {GPU} of container main: asks for 1 device; 4 devices selected" in said


def test_the_device_plugin_of_a_node_is_not_judged(command: Command) -> None:
    plugin = node("node-3", allocatable={GPU: "8"})
    said = command.says(*FULL, plugin, pod(limits={GPU: 1}), status=2)
    assert "node-3          ?     a device plugin offers nvidia.com/gpu there" in said
    assert "may or may not fit" in said.splitlines()[0]


def test_partitions_are_in_the_way_of_the_whole_gpu(command: Command) -> None:
    said = command.says(
        *ALONE,
        *gpus(mig=True),
        having("gpu-0-mig-1g10gb-19-0", name="slice", user="small"),
        having("gpu-1", name="big", user="large"),
        claim(),
        pod("wanted"),
    )
    assert "1 device is taken by claim default/big (pod large)" in said
    assert (
        "gpu-0 shares hardware with gpu-0-mig-1g10gb-19-0, in use by claim default/slice (pod "
        "small)\n"
    ) in said
    assert "gpu: 0 of 2 selected free (1 taken, 1 partly in use)" in said


def test_a_gpu_that_is_used_whole_keeps_its_parts(command: Command) -> None:
    wanted = claim(request(device_class="mig.nvidia.com"))
    big = having("gpu-0", name="big", user="large")
    said = command.says(*ALONE, *gpus(mig=True, count=1), big, wanted, pod("wanted"))
    assert ": is part of gpu-0, which is used as a whole by claim default/big (pod large)\n" in said
    assert "-> end one of these pods or wait for it" in said


def test_equal_requests_are_reported_once(command: Command) -> None:
    wanted = claim(request("a"), request("b"), request("c"), request("d", count=3))
    waiting = pod("wanted", templates=["x", "y"], limits={GPU: 1})
    said = command.says(*FULL, wanted, waiting, template(name="x"), template(name="y"))
    assert (
        "  * nvidia.com/gpu of container main, requests a, b, c of claim default/wanted, request "
        "gpu of claims x of template x, y of template y: asks for 1 device; 4 devices selected, "
        "none is available\n"
    ) in said
    assert said.count("asks for 1 device") == 1
    assert "  * request d of claim default/wanted: asks for 3 devices on one node" in said
    assert "  no    a, b, c, and 2 more: 0 of 2 selected free (2 taken); d: 0 of 2 sel" in said


def shared() -> list[Object]:
    """A GPU of 80 GiB whose memory claims share."""
    share = ShareOffer(consumable=Consumable.of("memory"))
    return slices(projection(make.inventory(make.gpu(0)), share=share).devices)


def test_consumable_capacity_that_others_have(command: Command) -> None:
    wanted = claim(request(capacity={"requests": {"memory": "20Gi"}}))
    said = command.says(
        *ALONE, *shared(), part_of("gpu-0", "a", {"memory": "70Gi"}), wanted, pod("wanted")
    )
    assert (
        "gpu-0 has 80Gi of memory, of which 10Gi is left and 20Gi is needed: the rest is taken by "
        "claim default/a (pod pod)"
    ) in said
    assert "-> ask for less" in said


@pytest.mark.parametrize(
    ("name", "amount", "said"),
    [
        ("memory", "200Gi", "gpu-0 has 80Gi of memory, and 200Gi is needed"),
        ("tubes", "2", "gpu-0 has no capacity tubes, of which the request asks for 2"),
    ],
)
def test_capacity_that_no_device_has(command: Command, name: str, amount: str, said: str) -> None:
    wanted = claim(request(capacity={"requests": {name: amount}}))
    assert said in command.says(*ALONE, *shared(), wanted, pod("wanted"))


def test_more_devices_than_a_node_has(command: Command) -> None:
    said = command.says(*CLUSTER, claim(request(count=3)), pod("wanted"))
    assert "asks for 3 devices on one node, and no node has more than 2 of them" in said
    assert "node-1, node-2  no    gpu: 2 of 2 selected free, 3 needed" in said


def test_a_selector_that_fails_ends_it_on_all_nodes(command: Command) -> None:
    said = command.says(*CLUSTER, claim(request(selector=f"{OWN}.nope == 1")), pod("wanted"))
    assert said.splitlines()[3:7] == [
        (
            "  * the scheduler stops trying, on all nodes: a selector of request gpu of claim "
            "default/wanted fails: no such key: nope"
        ),
        "      found on every node, such as at device gpu.nvidia.com/node-1/gpu-0",
        f"      the selector is {OWN}.nope == 1",
        (
            "    -> no device has an attribute nope; they have addressingMode, architecture, "
            "brand, cudaComputeCapability, cudaDriverVersion, driverVersion, productName, type, "
            "uuid"
        ),
    ]


def test_a_node_where_it_fails_keeps_the_pod_from_those_where_it_would_not(
    command: Command,
) -> None:
    """As the scheduler has it: the error of one node ends the attempt."""
    other = gpus(node="node-2")
    for device in other[0]["spec"]["devices"]:
        device["attributes"]["nope"] = {"int": 1}
    wanted = claim(request(selector=f"{OWN}.nope == 1"))
    said = command.says(*gpus(), *other, *explained.classes(), *NODES, wanted, pod("wanted"))
    assert "found on node-1, such as at device" in said
    assert "node-2  yes   gpu: gpu-0" in said
    assert said.startswith("pod default/train: does not fit on any of 2 nodes")


def test_a_class_that_does_not_exist(command: Command) -> None:
    said = command.says(*CLUSTER, claim(request(device_class="nope")), pod("wanted"))
    assert "the scheduler stops trying, on all nodes: the DeviceClass nope does not exist" in said
    assert "-> create it, or correct deviceClassName" in said


def test_a_selector_that_is_not_understood_is_no_answer(command: Command) -> None:
    wanted = claim(request(selector="ip('10.0.0.1').family() == 4"))
    said = command.says(*CLUSTER, wanted, pod("wanted"), status=2)
    assert "may or may not fit" in said
    assert "which is not understood here" in said


def test_a_selector_cannot_write_to_the_terminal(command: Command) -> None:
    hidden = "device.driver == '\x1b[2J\x1b[1;1H" + "x" * 9000 + "'"
    said = command.says(*CLUSTER, claim(request(selector=hidden)), pod("wanted"))
    assert "\x1b" not in said
    assert "false for 4 devices: device.driver == '\\u001b[2J" in said
    assert max(map(len, said.splitlines())) < 400


def test_nodes_on_which_the_pod_cannot_be(command: Command) -> None:
    taint = {"key": GPU, "value": "present", "effect": "NoSchedule"}
    said = command.says(
        *gpus(),
        *explained.classes(),
        node(unschedulable=True),
        node("node-2", taints=[taint]),
        claim(),
        pod("wanted"),
    )
    assert "* the pod fits on no node, regardless of devices" in said
    assert "node-1  no    the node is cordoned" in said
    assert f"node-2  no    the pod does not tolerate the node's taint {GPU}=present" in said


def test_a_constraint_that_free_devices_do_not_fulfil(command: Command) -> None:
    constraint = {"matchAttribute": "resource.kubernetes.io/pcieRoot"}
    wanted = claim(request(count=2), constraints=[constraint])
    said = command.says(*CLUSTER, wanted, pod("wanted"))
    assert (
        "matchAttribute resource.kubernetes.io/pcieRoot: its devices must have the same value, "
        'and those that are free have "pci0000:0f" (1 device), "pci0000:10" (1 device)'
    ) in said
    assert "-> ask for fewer devices, or remove the constraint" in said


def test_requests_that_want_the_same_devices(command: Command) -> None:
    wanted = claim(request("a", count=2), request("b"))
    said = command.says(*CLUSTER, wanted, pod("wanted"))
    assert "each request alone has enough devices, but not all together" in said


def test_alternatives_of_which_none_fits(command: Command) -> None:
    alternatives = {
        "name": "any",
        "firstAvailable": [
            {"name": "small", "deviceClassName": "mig.nvidia.com", "count": 1},
            {"name": "many", "deviceClassName": "gpu.nvidia.com", "count": 4},
        ],
    }
    said = command.says(*CLUSTER, claim(alternatives), pod("wanted"))
    assert "request any/small of claim default/wanted: DeviceClass mig.nvidia.com selects" in said
    assert "request any/many of claim default/wanted: asks for 4 devices on one node" in said


@pytest.mark.parametrize("selector", [{}, {"driver": "gpu.nvidia.com"}])
def test_a_tainted_device_by_a_rule_of_an_admin(command: Command, selector: Object) -> None:
    rule = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "mend"},
        "spec": {
            "deviceSelector": selector,
            "taint": {"key": "example.com/mend", "effect": "NoExecute"},
        },
    }
    said = command.says(*CLUSTER, rule, claim(), pod("wanted"))
    by_rule = "has the taint example.com/mend:NoExecute of DeviceTaintRule mend, which the request"
    assert f"{by_rule} does not tolerate" in said
    assert "is meant: kubectl edit devicetaintrule mend\n    -> let the request tolerate" in said
    by_limits = command.says(pod(limits={GPU: 1}, name="limits"), of="pod limits")
    assert "-> limits cannot tolerate a device's taint" in by_limits
    assert "let the request tolerate" not in by_limits
    tolerant = claim(request(tolerations=[{"operator": "Exists"}]), name="tolerant")
    command.says(tolerant, pod("tolerant", name="mender"), of="pod mender", status=0)


def test_admin_access_has_devices_that_others_have(command: Command) -> None:
    wanted = claim(request(adminAccess=True, allocationMode="All"))
    assert "gpu: gpu-0, gpu: gpu-1" in command.says(*FULL, wanted, pod("wanted"), status=0)


def test_a_pool_that_is_being_written(command: Command) -> None:
    things = gpus()
    things[0]["spec"]["pool"]["resourceSliceCount"] = 2
    said = command.says(*things, *ALONE, claim(), pod("wanted"))
    assert "pool node-1 of gpu.nvidia.com is incomplete: 1 of 2 ResourceSlices" in said
    assert "* no device is published for node-1" in said


def test_devices_of_other_drivers_are_understood(command: Command) -> None:
    spec = {
        "driver": "nic.example.com",
        "allNodes": True,
        "pool": {"name": "nics", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "nic-0", "attributes": {"speed": {"int": 100}}}],
    }
    things = [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": "nics"},
            "spec": spec,
        },
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "nic"},
            "spec": {"selectors": [{"cel": {"expression": "device.driver == 'nic.example.com'"}}]},
        },
    ]
    both = claim(request(), request("nic", device_class="nic"))
    said = command.says(*CLUSTER, *things, both, pod("wanted"), status=0)
    assert "node-1, node-2  yes   gpu: gpu-0, nic: nic-0" in said


def test_a_claim_alone(command: Command) -> None:
    said = command.says(*CLUSTER, claim(), of="claim wanted", status=0)
    assert said.startswith("claim default/wanted: fits on node-1, node-2\n")
    assert "Its pod's choice of nodes is not considered: explain the pod." in said


def test_a_claim_that_has_its_devices(command: Command) -> None:
    said = command.says(*CLUSTER, having("gpu-0", name="wanted"), of="claim wanted", status=0)
    assert said.splitlines() == [
        "claim default/wanted: has its devices",
        "  claim default/wanted has gpu-0 of pool node-1; pod train-0",
    ]


def test_a_pod_that_runs(command: Command) -> None:
    running = pod("wanted", nodeName="node-1")
    said = command.says(*CLUSTER, having("gpu-0", name="wanted"), running, status=0)
    assert said.startswith("pod default/train: is on node node-1\n  claim default/wanted has gpu-0")


def test_a_claim_that_is_missing(command: Command) -> None:
    said = command.says(*CLUSTER, pod("wanted"))
    assert said.startswith("pod default/train: cannot be scheduled yet\n")
    assert "* namespace default has no ResourceClaim wanted: create it there" in said


def test_every_device_and_why(command: Command) -> None:
    said = command.says(*FULL, claim(), pod("wanted"), flags="-o wide")
    assert (
        "node-2  gpu      gpu-1   is taken by claim default/c (pod notebook)" in said.splitlines()
    )


def test_as_json(command: Command) -> None:
    wanted = claim(request(selector=f"{OWN}.productName == 'NVIDIA H200'"))
    found: dict[str, Any] = json.loads(
        command.says(*CLUSTER, wanted, pod("wanted"), flags="--output=json")
    )
    assert (found["subject"], found["fits"]) == ("pod default/train", False)
    assert [one["name"] for one in found["nodes"]] == ["node-1", "node-2"]
    (wish,) = found["nodes"][0]["requests"]
    assert wish["devices"][0] == {
        "driver": "gpu.nvidia.com",
        "pool": "node-1",
        "device": "gpu-0",
        "kind": "selector",
        "why": "is not selected by the request's selector",
        "false": [f"{OWN}.productName == 'NVIDIA H200'"],
    }
    fitting = command.says(
        claim(name="other"), pod("other", name="p"), of="pod p", status=0, flags="-o json"
    )
    assert json.loads(fitting)["nodes"][0]["gets"] == [
        {
            "claim": "default/other",
            "request": "gpu",
            "driver": "gpu.nvidia.com",
            "pool": "node-1",
            "device": "gpu-0",
        }
    ]


@pytest.mark.parametrize(
    ("verb", "plural"),
    [
        ("get", "pods"),
        ("get", "resourceclaimtemplates"),
        ("list", "resourceslices"),
        ("list", "resourceclaims"),
        ("list", "deviceclasses"),
        ("list", "devicetaintrules"),
        ("list", "nodes"),
    ],
)
def test_a_missing_permission_is_named(
    api: ApiServer, command: Command, verb: str, plural: str
) -> None:
    api.fail(verb, plural, status=403, message="forbidden by RBAC")
    said = command.fails(*CLUSTER, template(), pod(templates=["one-gpu"]))
    assert f"grant the verb '{verb}' on {plural}" in said


def test_clusters_without_taint_rules_have_none(api: ApiServer, command: Command) -> None:
    api.fail("list", "devicetaintrules", status=404, message="404 page not found")
    assert "yes" in command.says(*CLUSTER, claim(), pod("wanted"), status=0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("pod nobody", "nobody"),
        ("claim nobody", "there is no ResourceClaim default/nobody"),
        ("pod train -n elsewhere", "elsewhere/train"),
    ],
)
def test_missing_objects_are_reported_as_unknown(command: Command, words: str, said: str) -> None:
    assert said in command.fails(*CLUSTER, pod(), of=words)


def test_the_namespace_is_that_of_the_kubeconfigs_context_unless_one_is_given(
    command: Command,
) -> None:
    content = yaml.safe_load(command.kubeconfig.read_text())
    content["contexts"][0]["context"]["namespace"] = "team"
    command.kubeconfig.write_text(yaml.safe_dump(content))
    assert "there is no ResourceClaim team/nobody" in command.fails(of="claim/nobody")
    assert "no ResourceClaim other/nobody" in command.fails(of="claim/nobody -n other")


@pytest.mark.parametrize("of", ["pod train", "pod/train", "po/train", "pods train"])
def test_a_pod_is_named_as_for_kubectl(command: Command, of: str) -> None:
    said = command.says(*CLUSTER, template(), pod(templates=["one-gpu"]), of=of, status=0)
    assert said.startswith("pod default/train: ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train"], "name one pod or claim, such as pod/train, not 'train'"),
        (["pod/"], "such as pod/train, not 'pod/'"),
        (["pod", "a", "b"], "such as pod/train, not 'pod a b'"),
        (["node/n"], "'node' is neither pod nor claim"),
    ],
)
def test_only_pods_and_claims_are_accepted(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *words]) == 2
    assert said in capsys.readouterr().err


def test_yaml_output_equals_json(command: Command) -> None:
    things = (*CLUSTER, claim(), pod("wanted"))
    read = yaml.safe_load(command.says(*things, status=0, flags="-o yaml"))
    assert read == json.loads(command.says(status=0, flags="-o json"))


def test_an_unreachable_api_server_is_reported(api: ApiServer, command: Command) -> None:
    api.stop()
    assert "the API server is not reachable" in command.fails()
