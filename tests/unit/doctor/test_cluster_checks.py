"""What facts of a cluster mean: good, bad and unknown ones."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from msgspec.structs import replace
from testbed import manifests

from doctored import ERROR, INFO, OK, UNKNOWN, WARNING, severities
from dra_driver.admin.admission.policy import policy_yaml
from dra_driver.admin.doctor.checks import cluster_checks
from dra_driver.admin.doctor.checks.finding import Severity
from dra_driver.admin.doctor.facts.cluster_facts import (
    Feature,
    FeatureFacts,
    KubeletFacts,
    PermissionFacts,
    ServerFacts,
)
from dra_driver.admin.doctor.facts.installed import DaemonSets, Installed
from dra_driver.admin.doctor.facts.shipped import OF_CLAIM_STATUS
from dra_driver.errors import AccessError

Object = dict[str, Any]


@pytest.mark.parametrize(
    ("version", "severity"),
    [
        ("v1.37.1", OK),
        ("v1.34.0+k3s1", OK),
        ("v1.34+", OK),
        ("v1.33.9", ERROR),
        ("", UNKNOWN),
        ("None", UNKNOWN),
    ],
)
def test_kubernetes_is_new_enough(version: str, severity: Severity) -> None:
    facts = ServerFacts(version=version, ahead_seconds=0)
    assert severities(cluster_checks.server(facts)) == [severity]


@pytest.mark.parametrize(
    ("ahead", "severity", "words"),
    [
        (0.4, OK, ""),
        (-1.2, OK, ""),
        (60.0, WARNING, "60 s behind"),
        (-61.0, WARNING, "61 s ahead of"),
        (900.0, ERROR, "900 s behind"),
        (None, UNKNOWN, ""),
    ],
)
def test_clock_differences_are_reported(
    ahead: float | None, severity: Severity, words: str
) -> None:
    (seen,) = cluster_checks.clock(ServerFacts(version="v1.37.1", ahead_seconds=ahead))
    assert seen.severity is severity
    assert words in seen.text


ADVICE = {
    "v1.34.10": "run Kubernetes 1.36 or newer",
    "v1.35.8": "set the feature gate DRAPartitionableDevices=true",
    "what?": "set the feature gate DRAPartitionableDevices=true",
    "v1.38.0-beta.0": "remove DRAPartitionableDevices=false",
}


@pytest.mark.parametrize("version", ADVICE)
def test_missing_features_are_reported_with_their_use(version: str) -> None:
    has = dict.fromkeys(Feature, True) | {Feature.COUNTERS: False}
    seen = list(cluster_checks.features(FeatureFacts(has=has), version))
    assert severities(seen) == [OK, WARNING]
    assert "DRAPartitionableDevices: only existing MIG" in seen[1].text
    assert ADVICE[version] in seen[1].advice
    assert ("feature gate" in seen[1].advice) is ("=true" in ADVICE[version])


def test_a_dry_run_that_is_not_allowed_leaves_a_feature_unknown() -> None:
    refusal = AccessError("cannot create resourceslices: no; grant it", status=403)
    facts = FeatureFacts(has={}, refused=dict.fromkeys(Feature, refusal))
    (seen,) = cluster_checks.features(facts, "v1.36.1")
    assert seen.severity is UNKNOWN
    assert all(feature in seen.text for feature in Feature)
    assert "admin's kubeconfig" in seen.advice


def test_missing_permissions_are_named() -> None:
    granted = {"get nodes": True, "get resourceclaims.resource.k8s.io": False}
    (seen,) = cluster_checks.permissions(PermissionFacts(who="it", granted=granted))
    assert seen.severity is ERROR
    assert seen.text == "it may not: get resourceclaims.resource.k8s.io"
    no_status = granted | {"get resourceclaims.resource.k8s.io": True}
    no_status |= dict.fromkeys(OF_CLAIM_STATUS, False)
    (seen,) = cluster_checks.permissions(PermissionFacts(who="it", granted=no_status))
    assert seen.severity is INFO
    assert "patch resourceclaims/status.resource.k8s.io" in seen.text
    all_of_it = PermissionFacts(who="it", granted=dict.fromkeys(granted, True))
    assert severities(cluster_checks.permissions(all_of_it)) == [OK]


def node(name: str, version: str = "v1.37.1") -> Object:
    return {"metadata": {"name": name}, "status": {"nodeInfo": {"kubeletVersion": version}}}


def test_kubelets_are_listed_by_version() -> None:
    nodes = [node("a"), node("b"), node("old", "v1.33.4"), node("odd", "")]
    seen = list(cluster_checks.kubelet_versions(nodes))
    assert severities(seen) == [UNKNOWN, ERROR, OK]
    assert "old" in seen[1].text
    assert "a, b" in seen[2].text
    assert severities(cluster_checks.kubelet_versions([])) == [UNKNOWN]


def test_a_kubelet_without_dra_is_an_error() -> None:
    off = KubeletFacts(gates={"a": {"DynamicResourceAllocation": False}, "b": {}})
    (seen,) = cluster_checks.kubelet_gates(off)
    assert (seen.severity, "on a" in seen.text) == (ERROR, True)
    well = KubeletFacts(gates={"a": {"ResourceHealthStatus": True}})  # as of 1.38, without DRA's
    (seen,) = cluster_checks.kubelet_gates(well)
    assert (seen.severity, "ResourceHealthStatus" in seen.text) == (OK, True)


def test_nodes_with_gpus_have_a_label() -> None:
    label = "nvidia.com/gpu.present"
    there = {"metadata": {"name": "a", "labels": {label: "true"}}}
    other = {"metadata": {"name": "b", "labels": {label: "false"}}}
    assert severities(cluster_checks.gpu_labels([there, other])) == [OK]
    (seen,) = cluster_checks.gpu_labels([other, {}])
    assert seen.severity is WARNING
    assert "kubectl label node" in seen.advice


def installed(wanted: int = 2, ready: int = 2, name: str = "dra-driver") -> Installed:
    return Installed(
        namespace="dra-driver", short_name=name, account="dra-driver", wanted=wanted, ready=ready
    )


@pytest.mark.parametrize(
    ("ours", "severity"),
    [
        ((installed(),), OK),
        ((installed(ready=1),), ERROR),
        ((installed(wanted=0, ready=0),), ERROR),
        ((), WARNING),
    ],
)
def test_the_drivers_daemonset_runs_where_it_should(
    ours: tuple[Installed, ...], severity: Severity
) -> None:
    assert severities(cluster_checks.daemon_sets(DaemonSets(ours=ours)))[0] is severity


def test_others_that_give_out_gpus_are_named() -> None:
    nobody = DaemonSets(ours=(installed(),))
    assert severities(cluster_checks.other_drivers(nobody, [node("a")])) == [OK]

    peer = DaemonSets(nvidias=(installed(name="nvidia-dra-driver-kubelet-plugin"),))
    (seen,) = cluster_checks.other_drivers(peer, [])
    assert (seen.severity, "nvidia-dra-driver" in seen.text) == (ERROR, True)

    gone = DaemonSets(nvidias=(installed(wanted=0, ready=0, name="nvidia"),))
    assert severities(cluster_checks.other_drivers(gone, [])) == [INFO]

    plugin = DaemonSets(device_plugins=(installed(name="nvidia-device-plugin"),))
    plugged = {"metadata": {"name": "a"}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}
    seen_both = list(cluster_checks.other_drivers(plugin, [plugged, node("b")]))
    assert severities(seen_both) == [INFO, WARNING]
    assert "node a (nvidia.com/gpu: 8)" in seen_both[1].text


def test_nodes_are_named_on_which_gpu_operator_runs_nvidias_driver() -> None:
    selector = {"nvidia.com/gpu.deploy.dra-driver": "true"}
    theirs = replace(installed(name="nvidia-dra-driver-kubelet-plugin"), selector=selector)
    nodes = [node(name) for name in ("a", "b", "c")]
    nodes[1]["metadata"]["labels"] = selector
    nodes[2]["metadata"]["labels"] = {"nvidia.com/gpu.deploy.dra-driver": "false"}
    (seen,) = cluster_checks.other_drivers(DaemonSets(nvidias=(theirs,)), nodes)
    assert seen.severity is ERROR
    assert seen.text.endswith("-kubelet-plugin, 2 pods wanted; its node selector matches b")
    assert "gpuCluster.deployCR=false" in (seen.advice or "")
    assert "label node NODE --overwrite nvidia.com/gpu.deploy.dra-driver=false" in seen.advice


ALL = dict.fromkeys(Feature, True)


def shipped_classes() -> list[Object]:
    return manifests.installed("DeviceClass")


def test_missing_or_changed_classes_are_named() -> None:
    classes = {one["metadata"]["name"]: one for one in shipped_classes()}
    del classes["mig.nvidia.com"]
    gpu = classes["gpu.nvidia.com"]["spec"]["selectors"][0]["cel"]
    gpu["expression"] = "device.driver == 'gpu.nvidia.com'"
    del classes["gpu.resource.nvidia.com"]["spec"]["extendedResourceName"]
    seen = list(cluster_checks.classes(classes.values(), ALL))
    found = {one.text: one.severity for one in seen}
    assert found["there is no DeviceClass mig.nvidia.com"] is ERROR
    assert found["DeviceClass gpu.nvidia.com is not as shipped: its selectors differ"] is WARNING
    missing = (
        "DeviceClass gpu.resource.nvidia.com is not as shipped: its extendedResourceName is "
        "missing, not nvidia.com/gpu"
    )
    assert found[missing] is WARNING
    assert severities(seen).count(OK) == 1


def test_classes_of_a_server_that_drops_resource_names_are_as_shipped_without_them() -> None:
    found = shipped_classes()
    for one in found:
        one["spec"].pop("extendedResourceName", None)
    (seen,) = cluster_checks.classes(found, ALL | {Feature.EXTENDED_RESOURCE: False})
    assert seen.severity is OK
    assert WARNING in severities(cluster_checks.classes(found, ALL))
    assert WARNING in severities(cluster_checks.classes(found, {}))


def test_a_second_class_behind_a_resource_name_is_named() -> None:
    second = {"metadata": {"name": "old"}, "spec": {"extendedResourceName": "nvidia.com/gpu"}}
    seen = list(cluster_checks.classes([*shipped_classes(), second], ALL))
    assert severities(seen) == [WARNING, OK]
    assert "DeviceClass old also serves nvidia.com/gpu" in seen[0].text


def policies(text: str) -> tuple[list[Object], list[Object]]:
    documents = list(yaml.safe_load_all(text))
    return (
        [document for document in documents if document["kind"] == "ValidatingAdmissionPolicy"],
        [
            document
            for document in documents
            if document["kind"] == "ValidatingAdmissionPolicyBinding"
        ],
    )


def test_the_policy_of_configs_is_known_by_its_rules_under_any_name() -> None:
    found, bindings = policies(policy_yaml())
    assert severities(cluster_checks.config_policy(found, bindings)) == [OK]
    found[0]["metadata"]["name"] = bindings[0]["spec"]["policyName"] = "mine"
    (seen,) = cluster_checks.config_policy(found, bindings)
    assert (seen.severity, "mine" in seen.text) == (OK, True)


def test_a_policy_of_another_version_is_a_warning() -> None:
    found, bindings = policies(policy_yaml())
    found[0]["spec"]["validations"].pop()
    assert severities(cluster_checks.config_policy(found, bindings)) == [WARNING, OK]


@pytest.mark.parametrize(
    ("actions", "severity"), [(["Deny"], OK), (["Warn", "Audit"], INFO), ([], WARNING)]
)
def test_a_policys_binding_is_checked(actions: list[str], severity: Severity) -> None:
    found, bindings = policies(policy_yaml())
    bindings[0]["spec"]["validationActions"] = actions
    assert severities(cluster_checks.config_policy(found, bindings)) == [severity]


USER = "system:serviceaccount:dra-driver:dra-driver"


@pytest.mark.parametrize(
    ("accounts", "expected"),
    [
        ([], [OK, OK]),
        ([USER], [OK, OK]),
        (["system:serviceaccount:other:dra-driver"], [OK, WARNING, OK]),
    ],
)
def test_the_policy_of_slices_is_about_the_drivers_account(
    accounts: list[str], expected: list[Severity]
) -> None:
    found = manifests.installed("ValidatingAdmissionPolicy")
    bindings = manifests.installed("ValidatingAdmissionPolicyBinding")
    assert len(found) == 6
    seen = cluster_checks.own_node_policy(found, bindings, accounts)
    assert severities(seen) == expected


@pytest.mark.parametrize("lost", ["pool.name", "metadata.name"])
def test_a_slice_policy_without_names_is_reported(lost: str) -> None:
    found = json.loads(
        json.dumps(manifests.installed("ValidatingAdmissionPolicy")).replace(lost, "x")
    )
    bindings = manifests.installed("ValidatingAdmissionPolicyBinding")
    seen = list(cluster_checks.own_node_policy(found, bindings, [USER]))
    assert severities(seen) == [OK, WARNING, OK]
    assert "own-node lets a node's driver use the slice names and the pool" in seen[1].text
    assert seen[1].advice == cluster_checks.INSTALL_AGAIN


def test_a_policy_of_another_drivers_slices_may_leave_names_alone() -> None:
    found = manifests.installed("ValidatingAdmissionPolicy")
    theirs = json.loads(json.dumps(found).replace("pool.name", "x").replace("dra-driver", "other"))
    seen = cluster_checks.own_node_policy([*found, *theirs], [], [USER])
    assert not [one.text for one in seen if "pool of another node" in one.text]


def test_the_policy_of_claims_status_is_known_and_has_to_be_bound() -> None:
    found = manifests.installed("ValidatingAdmissionPolicy")
    bindings = manifests.installed("ValidatingAdmissionPolicyBinding")
    assert severities(cluster_checks.own_node_policy(found, [], [])) == [WARNING, WARNING]
    others = [one for one in found if not one["metadata"]["name"].endswith("own-claims")]
    assert severities(cluster_checks.own_node_policy(others, bindings, [])) == [WARNING, OK]


@pytest.mark.parametrize("broken", [{}, {"spec": None}, {"spec": {"validations": "x"}}])
def test_objects_of_any_shape_are_passed_over(broken: Mapping[str, Any]) -> None:
    assert severities(cluster_checks.config_policy([broken], [broken])) == [WARNING]
    assert severities(cluster_checks.own_node_policy([broken], [broken], [USER])) == [WARNING] * 2
    assert set(severities(cluster_checks.classes([broken], ALL))) == {ERROR}
