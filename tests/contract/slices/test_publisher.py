"""The publisher against an API server over HTTP: every rule of publishing that a user can see."""

from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs
from testbed.apiserver.kinds import kind_of
from testbed.apiserver.rules import without_device_fields
from testbed.apiserver.store import Refusal

import make
from dra_driver.devices.model import Inventory
from dra_driver.errors import StaleError
from dra_driver.ops.metrics import SliceWrite
from dra_driver.slices.consumable import Consumable
from dra_driver.slices.offer.shares import ShareOffer
from dra_driver.slices.project import Projection, projection

OTHERS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "theirs"},
    "spec": {
        "driver": "nic.example.com",
        "nodeName": "n1",
        "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
    },
}


class Rival:
    """A client before whose first delete somebody else writes the slice."""

    def __init__(self, bench: Any) -> None:
        self.bench = bench
        self.edited: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bench.client, name)

    def delete(self, resource: Any, name: str, **words: Any) -> None:
        if not self.edited:
            self.edited.append(name)
            (entry,) = [one for one in self.bench.slices() if one["metadata"]["name"] == name]
            entry["metadata"]["labels"] = {"theirs": "yes"}
            self.bench.edit(entry)
        self.bench.client.delete(resource, name, **words)


def rename(new: Any, _old: Any) -> None:
    """What an admission policy of the cluster may do to slices."""
    for device in new.get("spec", {}).get("devices") or ():
        device["attributes"]["productName"] = {"string": "renamed by admission"}


def with_taints(
    inventory: Inventory, *, with_counters: bool = True, with_consumables: bool = True
) -> Projection:
    """A projection whose first device has a taint."""
    found = projection(inventory, with_counters=with_counters)
    taint = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}
    first, *rest = found.devices
    return replace(found, devices=({**first, "taints": [taint]}, *rest))


class TestPublishing:
    def test_the_pool_is_named_after_the_node_and_owned_by_it(self, bench: Any) -> None:
        bench.start(make.inventory())
        (entry,) = bench.slices()
        assert entry["metadata"]["name"] == "00000-gpu.nvidia.com-n1"
        assert entry["metadata"]["ownerReferences"] == [
            {
                "apiVersion": "v1",
                "kind": "Node",
                "name": "n1",
                "uid": "node-uid",
                "controller": True,
            }
        ]
        assert entry["spec"]["driver"] == "gpu.nvidia.com"
        assert entry["spec"]["nodeName"] == "n1"
        assert entry["spec"]["pool"] == {"name": "n1", "generation": 1, "resourceSliceCount": 1}
        assert bench.devices() == ["gpu-0", "gpu-1"]

    def test_a_node_without_gpus_has_an_empty_pool(self, bench: Any) -> None:
        bench.start(make.inventory(gpus=(), driver_version=None, cuda_version=None))
        (entry,) = bench.slices()
        assert entry["spec"]["pool"]["resourceSliceCount"] == 1
        assert bench.devices() == []

    def test_nothing_is_written_when_nothing_changed(self, bench: Any) -> None:
        publisher = bench.start(make.inventory())
        bench.look_again(publisher, make.inventory())
        assert bench.writes() == 1

    def test_a_restarted_driver_writes_nothing(self, bench: Any) -> None:
        first = bench.start(make.inventory())
        assert first.stop(5)
        bench.look_again(bench.start(make.inventory()), make.inventory())
        assert bench.writes() == 1

    def test_stopping_leaves_the_slices(self, bench: Any) -> None:
        publisher = bench.start(make.inventory())
        assert publisher.stop(5)
        assert bench.devices() == ["gpu-0", "gpu-1"]

    def test_a_changed_gpu_is_one_write_and_keeps_the_generation(self, bench: Any) -> None:
        publisher = bench.start(make.inventory())
        publisher.update(make.inventory(make.gpu(0), make.gpu(1, memory_bytes=1024**3)))

        def memory() -> Any:
            (changed,) = [
                device
                for device in bench.slices()[0]["spec"]["devices"]
                if device["name"] == "gpu-1"
            ]
            return changed["capacity"]["memory"]["value"]

        bench.wait(lambda: memory() == "1Gi")
        (entry,) = bench.slices()
        assert entry["spec"]["pool"]["generation"] == 1
        assert bench.writes() == 2

    def test_the_latest_inventory_wins(self, bench: Any) -> None:
        publisher = bench.start()
        for minor in range(8):
            publisher.update(make.inventory(make.gpu(minor)))
        bench.wait(lambda: bench.devices() == ["gpu-7"])

    def test_an_inventory_that_comes_while_another_is_published_is_the_next(
        self, bench: Any
    ) -> None:
        later: list[Inventory] = []

        def project(inventory: Inventory, **settings: bool) -> Projection:
            if later:
                publisher.update(later.pop())
            return projection(inventory, **settings)

        publisher = bench.start(make.inventory(make.gpu(0)), project=project)
        later.append(make.inventory(make.gpu(1)))
        publisher.publish_again()  # of which no news comes, as it changes nothing
        bench.wait(lambda: bench.devices() == ["gpu-1"])

    def test_more_devices_than_a_slice_holds_make_two_slices_of_a_new_generation(
        self, bench: Any
    ) -> None:
        publisher = bench.start(make.inventory())
        many = make.inventory(*(make.gpu(minor) for minor in range(65)))
        publisher.update(many)
        bench.wait(lambda: len(bench.devices()) == 65)
        bench.look_again(publisher, many)
        pools = [entry["spec"]["pool"] for entry in bench.slices()]
        assert pools == [{"name": "n1", "generation": 2, "resourceSliceCount": 2}] * 2
        assert [len(entry["spec"]["devices"]) for entry in bench.slices()] == [64, 1]

    def test_fewer_devices_delete_the_slice_that_is_no_longer_needed(self, bench: Any) -> None:
        many = make.inventory(*(make.gpu(minor) for minor in range(65)))
        publisher = bench.start(many)
        publisher.update(make.inventory())
        bench.wait(lambda: len(bench.slices()) == 1 and bench.devices() == ["gpu-0", "gpu-1"])
        bench.look_again(publisher, make.inventory())
        assert bench.slices()[0]["spec"]["pool"]["resourceSliceCount"] == 1

    def test_outcomes_are_counted(self, bench: Any) -> None:
        bench.start(make.inventory())
        assert bench.count.publications[0] == (1, 2)
        assert bench.count.writes == [SliceWrite.CREATE]


class TestInterference:
    def test_wiped_slices_come_back(self, bench: Any) -> None:
        bench.start(make.inventory())
        bench.server.delete_all("resourceslices")
        bench.wait(lambda: bench.devices() == ["gpu-0", "gpu-1"])

    def test_one_deleted_slice_of_two_comes_back(self, bench: Any) -> None:
        many = make.inventory(*(make.gpu(minor) for minor in range(65)))
        publisher = bench.start(many)
        bench.server.store.delete(
            kind_of("resource.k8s.io/v1", "ResourceSlice"), "", "00001-gpu.nvidia.com-n1"
        )
        bench.wait(lambda: len(bench.devices()) == 65)
        bench.look_again(publisher, many)
        assert {entry["spec"]["pool"]["generation"] for entry in bench.slices()} == {2}

    def test_foreign_edits_are_repaired_and_foreign_labels_kept(self, bench: Any) -> None:
        bench.start(make.inventory())
        (entry,) = bench.slices()
        entry["metadata"]["labels"] = {"theirs": "yes"}
        entry["spec"]["devices"][0]["attributes"]["productName"] = {"string": "Voodoo 2"}
        entry["spec"]["devices"][1]["attributes"]["added"] = {"bool": True}
        bench.edit(entry)
        bench.wait(lambda: bench.writes() == 3)
        (entry,) = bench.slices()
        attributes = [device["attributes"] for device in entry["spec"]["devices"]]
        assert attributes[0]["productName"] == {"string": "NVIDIA H100 80GB HBM3"}
        assert "added" not in attributes[1]
        assert entry["metadata"]["labels"] == {"theirs": "yes"}

    def test_slices_of_other_drivers_and_nodes_are_left_alone(self, bench: Any) -> None:
        other_node = {**OTHERS, "metadata": {"name": "elsewhere"}}
        other_node["spec"] = {
            **OTHERS["spec"],  # type: ignore[dict-item]
            "driver": "gpu.nvidia.com",
            "nodeName": "n2",
        }
        bench.server.put(OTHERS, other_node)
        bench.start(make.inventory())
        names = [entry["metadata"]["name"] for entry in bench.slices()]
        assert names == ["00000-gpu.nvidia.com-n1", "elsewhere", "theirs"]

    def test_slices_of_nvidias_own_driver_are_taken_over_in_place(self, bench: Any) -> None:
        theirs = {**OTHERS, "metadata": {"name": "00000-gpu.nvidia.com-n1-x7k2p"}}
        theirs["spec"] = {
            **OTHERS["spec"],  # type: ignore[dict-item]
            "driver": "gpu.nvidia.com",
        }
        bench.server.put(theirs)
        bench.start(make.inventory())
        (entry,) = bench.slices()
        assert entry["metadata"]["name"] == "00000-gpu.nvidia.com-n1-x7k2p"
        assert bench.devices() == ["gpu-0", "gpu-1"]

    def test_two_drivers_of_one_node_agree(self, bench: Any) -> None:
        first = bench.start(make.inventory())
        second = bench.start(make.inventory())
        bench.look_again(first, make.inventory())
        bench.look_again(second, make.inventory())
        assert bench.writes() == 1

    def test_a_slice_that_changed_meanwhile_is_not_deleted(self, bench: Any) -> None:
        rival = Rival(bench)
        publication = bench.publication(client=rival)
        publication.publish(make.inventory(*(make.gpu(minor) for minor in range(65))))
        with pytest.raises(StaleError):
            publication.publish(make.inventory())
        assert rival.edited == ["00001-gpu.nvidia.com-n1"]
        assert [one["metadata"]["name"] for one in bench.slices()][1:] == rival.edited
        publication.publish(make.inventory())
        assert len(bench.slices()) == 1

    def test_fields_dropped_from_a_deleted_slice_are_requested_again(self, bench: Any) -> None:
        many = make.inventory(*(make.gpu(minor) for minor in range(65)))
        publication, other = bench.publication(), bench.publication()
        bench.server.store.rules.insert(0, rename)
        publication.publish(many)
        publication.publish(make.inventory())
        bench.server.store.rules.remove(rename)
        bench.server.delete_all("resourceslices")
        assert other.publish(many) == 2
        assert publication.publish(many) == 0

    def test_a_node_made_again_owns_the_slices_made_again(self, bench: Any) -> None:
        bench.start(make.inventory())
        bench.server.delete_all("nodes")
        bench.server.put(
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": "b"}}
        )
        bench.server.delete_all("resourceslices")
        bench.wait(lambda: bench.devices() == ["gpu-0", "gpu-1"])
        assert bench.slices()[0]["metadata"]["ownerReferences"][0]["uid"] == "b"


class TestDroppedFields:
    def test_a_device_whose_taint_was_dropped_is_withdrawn(self, bench: Any) -> None:
        bench.server.store.rules.insert(0, without_device_fields("taints"))
        with capture_logs() as logs:
            publisher = bench.start(make.inventory(), project=with_taints)
        assert bench.devices() == ["gpu-1"]
        assert bench.count.dropped == 1
        (told,) = [log for log in logs if log["event"] == "devices published without a field"]
        assert told["consequence"] == "GPUs that are not well are left out"
        assert "DRADeviceTaints" in told["advice"]
        bench.look_again(publisher, make.inventory())
        assert bench.writes() == 2

    def test_a_device_whose_effect_the_server_does_not_know_is_not_published(
        self, bench: Any
    ) -> None:
        def of_old(new: Any, _old: Any) -> None:
            for device in new.get("spec", {}).get("devices") or ():
                if any(taint["effect"] == "NoSchedule" for taint in device.get("taints", ())):
                    raise Refusal(
                        422, "Invalid", "spec.devices[0].taints[0].effect: Unsupported value"
                    )

        bench.server.store.rules.insert(0, of_old)
        publisher = bench.start(make.inventory(), project=with_taints)
        assert bench.devices() == ["gpu-1"]
        bench.look_again(publisher, make.inventory())
        assert (len(bench.count.writes), bench.count.failures) == (1, 0)

    def test_a_field_that_the_server_changes_is_not_written_again_and_again(
        self, bench: Any
    ) -> None:
        bench.server.store.rules.insert(0, rename)
        publisher = bench.start(make.inventory())
        bench.look_again(publisher, make.inventory())
        assert bench.writes() == 1
        assert bench.count.dropped == 2

    def test_a_field_that_a_newer_server_adds_is_kept(self, bench: Any) -> None:
        def default(new: Any, _old: Any) -> None:
            if new["kind"] == "ResourceSlice":
                new["spec"]["fieldOfTheFuture"] = "default"

        bench.server.store.rules.append(default)
        publisher = bench.start(make.inventory())
        bench.look_again(publisher, make.inventory())
        assert bench.writes() == 1
        assert bench.count.dropped == 0

    def test_quantities_in_another_form_are_the_same(self, bench: Any) -> None:
        def plain(new: Any, _old: Any) -> None:
            for device in new.get("spec", {}).get("devices") or ():
                device["capacity"]["memory"]["value"] = str(80 * 1024**3)

        bench.server.store.rules.append(plain)
        publisher = bench.start(make.inventory())
        bench.look_again(publisher, make.inventory())
        assert bench.writes() == 1
        assert bench.count.dropped == 0


def shareable(inventory: Inventory, **changes: Any) -> Projection:
    share = ShareOffer(consumable=Consumable.of("memory"))
    return projection(inventory, share=share, **changes)


class TestConsumableCapacity:
    def test_devices_that_several_claims_can_have_are_stored_as_asked(self, bench: Any) -> None:
        publisher = bench.start(h100s(count=2), project=shareable)
        bench.look_again(publisher, h100s(count=2))
        wholes = [one for one in published(bench) if "mig" not in one["name"]]
        assert [whole["allowMultipleAllocations"] for whole in wholes] == [True, True]
        assert bench.count.dropped == 0

    def test_a_server_without_them_gets_each_device_for_one_claim(self, bench: Any) -> None:
        def drop(new: Any, _old: Any) -> None:
            for device in new.get("spec", {}).get("devices") or ():
                device.pop("allowMultipleAllocations", None)
                for capacity in device.get("capacity", {}).values():
                    capacity.pop("requestPolicy", None)

        bench.server.store.rules.insert(0, drop)
        with capture_logs() as logs:
            publisher = bench.start(make.inventory(), project=shareable)
            bench.look_again(publisher, make.inventory())
        assert bench.devices() == ["gpu-0", "gpu-1"]
        plain = projection(make.inventory()).devices
        assert [one["capacity"] for one in published(bench)] == [one["capacity"] for one in plain]
        told = [log for log in logs if log["event"] == "devices published without a field"]
        assert [log["field"] for log in told] == ["allowMultipleAllocations", "requestPolicy"]
        assert all("DRAConsumableCapacity" in log["advice"] for log in told)


def published(bench: Any) -> list[Any]:
    return [one for each in bench.slices() for one in each["spec"].get("devices", [])]


def h100s(*instances: Any, count: int = 1) -> Inventory:
    return make.inventory(
        *(make.gpu(minor, mig=make.mig(*instances if minor == 0 else ())) for minor in range(count))
    )


class TestCounters:
    def test_counters_stand_in_a_slice_of_their_own_before_the_devices(self, bench: Any) -> None:
        bench.start(h100s(count=2))
        counters, devices = bench.slices()
        assert [one["name"] for one in counters["spec"]["sharedCounters"]] == [
            "gpu-0-counter-set",
            "gpu-1-counter-set",
        ]
        assert "devices" not in counters["spec"]
        assert len(devices["spec"]["devices"]) == 52
        assert bench.devices()[:2] == ["gpu-1", "gpu-0"]

    def test_nothing_is_written_while_claims_make_and_unmake_instances(self, bench: Any) -> None:
        publisher = bench.start(h100s(count=8))
        writes = bench.writes()
        for start in range(7):
            made = make.mig_device(0, "1g.10gb", start, made_here=True)
            bench.look_again(publisher, h100s(made, count=8))
        assert bench.writes() == writes

    def test_a_server_without_counters_never_gets_partitions(self, bench: Any) -> None:
        seen: list[str] = []

        def drop(new: Any, _old: Any) -> None:
            spec = new.get("spec", {})
            spec.pop("sharedCounters", None)
            for device in spec.get("devices") or ():
                device.pop("consumesCounters", None)
                seen.append(device["name"])

        bench.server.store.rules.insert(0, drop)
        publisher = bench.start(h100s(count=2))
        bench.look_again(publisher, h100s(count=2))
        assert bench.devices() == ["gpu-0", "gpu-1"]
        assert set(seen) == {"gpu-0", "gpu-1"}
        assert bench.count.dropped == 1

    def test_a_server_that_refuses_counters_gets_whole_gpus(self, bench: Any) -> None:
        def refuse(new: Any, _old: Any) -> None:
            if any("consumesCounters" in one for one in new["spec"].get("devices") or ()):
                raise Refusal(422, "Invalid", "spec.devices[0].consumesCounters[0]: Invalid value")

        bench.server.store.rules.insert(0, refuse)
        bench.start(h100s(count=2))
        assert bench.devices() == ["gpu-0", "gpu-1"]

    def test_counters_that_are_lost_later_take_the_partitions_with_them(self, bench: Any) -> None:
        publisher = bench.start(h100s())
        bench.server.store.rules.insert(0, without_device_fields("consumesCounters"))
        bench.server.delete_all("resourceslices")
        bench.wait(lambda: bench.devices() == ["gpu-0"])
        bench.look_again(publisher, h100s())
        assert bench.devices() == ["gpu-0"]

    def test_a_server_that_is_away_when_it_is_asked_is_asked_again(self, bench: Any) -> None:
        bench.server.fail("create", "resourceslices", status=503)
        bench.start(h100s())
        assert len(bench.devices()) == 26
