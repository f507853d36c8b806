"""The whole driver as a process, as it says in claims' own status how their devices are doing."""

from datetime import UTC, datetime
from typing import Any

from testbed.kubelet import ClaimName, KubeletClient

from dra_driver.simulator.machine import Machine
from worlds import sick
from worlds.process import ProcessNode, eventually, process_node
from worlds.sick import KNOWS_NO_RECOVERY, looked, machine_of, start, uuid_of

node = process_node()


def prepared(node: ProcessNode, kubelet: KubeletClient, **devices: str) -> None:
    sick.prepared(node, kubelet, **devices)
    eventually(lambda: all(conditions(node, name) for name in devices), "conditions")


def conditions(node: ProcessNode, name: str) -> dict[str, dict[str, Any]]:
    """The conditions of the one device of a claim, by type."""
    for claim in node.api.objects("resourceclaims"):
        if claim["metadata"]["name"] == name:
            for device in claim["status"].get("devices", ()):
                return {condition["type"]: condition for condition in device["conditions"]}
    return {}


def healthy(node: ProcessNode, name: str) -> str:
    return str(conditions(node, name)["Healthy"]["status"])


def test_a_change_is_written_at_once_to_the_claims_concerned_and_no_other(
    node: ProcessNode,
) -> None:
    machine = machine_of(node, "t4x4", KNOWS_NO_RECOVERY)
    with KubeletClient(node.place.registry) as kubelet:
        start(node, kubelet)
        prepared(node, kubelet, one="gpu-1", two="gpu-2")
        well = conditions(node, "two")
        assert {type_: one["status"] for type_, one in well.items()} == {
            "Ready": "True",
            "Healthy": "True",
        }
        before = len(node.api.seen("patch", "resourceclaims"))
        was = str(well["Healthy"]["lastTransitionTime"])
        eventually(lambda: f"{datetime.now(tz=UTC):%FT%TZ}" > was, "another second")
        machine.emit_xid(uuid_of(machine, 2), 79)
        eventually(lambda: healthy(node, "two") == "False", "sick")
        found = conditions(node, "two")
        assert found["Ready"] == well["Ready"]
        assert found["Healthy"]["reason"] == "Xid79"
        assert "fallen off the bus; remedy" in found["Healthy"]["message"]
        assert found["Healthy"]["lastTransitionTime"] > well["Healthy"]["lastTransitionTime"]
        assert healthy(node, "one") == "True"
        assert len(node.api.seen("patch", "resourceclaims")) == before + 1

        machine.lose_gpu(uuid_of(machine, 2))
        eventually(lambda: "out of reach" in conditions(node, "two")["Healthy"]["message"], "loss")
        machine.restore_gpu(uuid_of(machine, 2))
        eventually(lambda: healthy(node, "two") == "True", "it to be well")
        assert conditions(node, "two")["Healthy"]["message"] == ""


def test_steady_health_asks_and_writes_nothing_also_after_a_restart(node: ProcessNode) -> None:
    machine = machine_of(node, "t4x4", KNOWS_NO_RECOVERY)
    with KubeletClient(node.place.registry) as kubelet:
        start(node, kubelet)
        prepared(node, kubelet, one="gpu-1", two="gpu-2")
        machine.emit_xid(uuid_of(machine, 2), 62)
        eventually(lambda: healthy(node, "two") == "False", "sick")
        eventually(lambda: node.api.objects("events"), "an event")
        eventually(node.taints, "its taint")
        looked(machine, 2)
        before = written(node), len(node.api.seen("get", "resourceclaims"))
        looked(machine, 8)
        assert (written(node), len(node.api.seen("get", "resourceclaims"))) == before
    node.driver.kill()
    with KubeletClient(node.place.registry) as kubelet:
        looks = len(node.api.seen("get", "resourceclaims"))
        start(node, kubelet)
        node.driver.wait_log("slices published")
        eventually(lambda: len(node.api.seen("get", "resourceclaims")) >= looks + 2, "its looks")
        looked(machine, 2)
        assert written(node) == before[0]


def written(node: ProcessNode) -> list[tuple[str, str]]:
    """What was changed in the cluster, but for what is only tried out."""
    return [
        (one.verb, one.plural)
        for one in node.api.seen()
        if one.verb not in {"get", "list", "watch"} and "dryRun" not in one.query
    ]


def test_a_slow_first_look_takes_nothing_back(node: ProcessNode) -> None:
    machine = machine_of(node, "t4x4", KNOWS_NO_RECOVERY)
    with KubeletClient(node.place.registry) as kubelet:
        start(node, kubelet)
        prepared(node, kubelet, one="gpu-1")
    node.driver.kill()
    before = len(node.api.seen("patch", "resourceclaims"))
    machine.slow_call("nvmlDeviceGetMemoryInfo", 8000, uuid=uuid_of(machine, 3), times=1)
    node.driver.start()
    found = node.driver.wait_log("gpus found")
    assert found["gpus"] == 4
    looked(machine, 2)
    assert len(node.api.seen("patch", "resourceclaims")) == before
    assert healthy(node, "one") == "True"


def mig_claims(node: ProcessNode, kubelet: KubeletClient) -> tuple[Machine, str]:
    """Have a claim `found` on a MIG device that was there, and `made` on one made for it."""
    machine = machine_of(node, "h100x8", KNOWS_NO_RECOVERY)
    gpu = uuid_of(machine, 0)
    machine.set_mig_mode(gpu, enabled=True)
    machine.create_mig(gpu, "2g.20gb", 0)
    node.driver.env["MIG"] = "on-demand"
    start(node, kubelet, gpus=8)
    prepared(node, kubelet, found="gpu-0-mig-2g20gb-14-0", made="gpu-0-mig-1g10gb-19-4")
    return machine, gpu


def reasons(node: ProcessNode) -> dict[str, str]:
    return {name: conditions(node, name)["Healthy"]["reason"] for name in ("found", "made")}


def uuid_in(node: ProcessNode, name: str) -> str:
    (claim,) = [
        one for one in node.api.objects("resourceclaims") if one["metadata"]["name"] == name
    ]
    return str(claim["status"]["devices"][0]["data"]["uuid"])


def test_a_mig_device_that_somebody_destroyed_is_not_healthy_until_it_is_made_again(
    node: ProcessNode,
) -> None:
    with KubeletClient(node.place.registry) as kubelet:
        machine, _ = mig_claims(node, kubelet)
        looked(machine, 5)  # of which none misses what was made after it began
        assert reasons(node) == {"found": "Well", "made": "Well"}
        gone = uuid_in(node, "made")
        machine.destroy_mig(gone)
        eventually(lambda: healthy(node, "made") == "False", "the loss")
        condition = conditions(node, "made")["Healthy"]
        assert condition["reason"] == "MigDeviceMissing"
        assert condition["message"].startswith(f"{gone} (1g.10gb of GPU-")
        assert "delete the pods that have it" in condition["message"]
        assert reasons(node)["found"] == "Well"
        assert len(node.driver.events("mig device of a claim is gone")) == 1
        # As a kubelet does that was restarted.
        made = ClaimName(namespace="default", name="made", uid="uid-made")
        assert kubelet.prepare(made)["uid-made"].error == ""
        eventually(lambda: healthy(node, "made") == "True", "it to be there again")


def test_after_a_reset_of_the_gpu_a_new_driver_says_at_once_what_is_gone(node: ProcessNode) -> None:
    with KubeletClient(node.place.registry) as kubelet:
        machine, gpu = mig_claims(node, kubelet)
    node.driver.kill()  # as it has the GPU open
    machine.reset_gpu(gpu)
    with KubeletClient(node.place.registry) as kubelet:
        start(node, kubelet, gpus=8)
        eventually(lambda: healthy(node, "made") == "False", "the loss")
        assert reasons(node) == dict.fromkeys(("found", "made"), "MigDeviceMissing")
        wrote = len(node.api.seen("patch", "resourceclaims"))
        node.driver.kill()
        node.driver.start()
        node.driver.wait_log("slices published")
        looked(machine, 3)
        assert len(node.api.seen("patch", "resourceclaims")) == wrote


def test_without_the_nvidia_driver_it_is_unknown(node: ProcessNode) -> None:
    machine = machine_of(node, "t4x4", KNOWS_NO_RECOVERY)
    with KubeletClient(node.place.registry) as kubelet:
        start(node, kubelet)
        prepared(node, kubelet, one="gpu-1")
        node.driver.kill()  # as it has NVML open
        machine.unload_driver()
        node.driver.start()
        eventually(lambda: healthy(node, "one") == "Unknown", "unknown")
        assert "is unknown" in conditions(node, "one")["Healthy"]["message"]
        machine.load_driver()
        eventually(lambda: healthy(node, "one") == "True", "well")
