"""What `dra-driver inspect` prints of an inventory."""

import json

import yaml

import make
from dra_driver.admin.inspect.slices import Offered
from dra_driver.admin.inspect.view import report, spec_text, table
from dra_driver.cdi.model import DeviceNode, Edits
from dra_driver.devices.exclusion import without_excluded
from dra_driver.devices.model import MigMode, SickGpu
from dra_driver.slices.consumable import Consumable
from dra_driver.slices.offer.mig import MigSettings
from dra_driver.slices.offer.shares import ShareOffer

EDITS = {
    "": Edits(env=("NVIDIA_VISIBLE_DEVICES=void",)),
    "gpu-0": Edits(device_nodes=(DeviceNode(path="/dev/nvidia0"),)),
}


def test_the_mig_offer_is_shown_once_and_only_for_cards_with_mig() -> None:
    offered = Offered(mig=MigSettings.of("existing", "").offer({}, None))
    divided = make.inventory(make.gpu(0, mig=make.mig()), make.gpu(1, mig=make.mig()))
    line = "MIG devices for claims: existing (--mig is existing)"
    assert table(divided, {}, offered).count("--mig is existing") == 1
    assert line in table(divided, {}, offered).splitlines()
    assert line not in table(make.inventory(make.gpu(0)), {}, offered)
    assert report(divided, {}, offered)["mig"] == {"source": "existing", "why": "--mig is existing"}


def test_shared_values_are_shown_once() -> None:
    text = table(make.inventory(), {})

    assert text.count("driverVersion=535.261.3") == 1
    assert "  all: type=gpu, productName=NVIDIA H100 80GB HBM3, brand=Nvidia" in text
    assert f"  gpu-1: uuid={make.gpu(1).uuid}" in text
    assert "memory=80Gi" in text


def test_gpus_that_are_not_published_are_listed_with_the_reason() -> None:
    inventory = make.inventory(
        make.gpu(0), make.gpu(1, mig_mode=MigMode.ENABLED), sick=(SickGpu(index=7, reason="lost"),)
    )
    text = table(inventory, {"gpu-0": "its device node is missing"})

    assert "not published: GPU 7: lost" in text
    assert "not published: GPU 1: MIG mode is on" in text
    assert "cannot be prepared: gpu-0: its device node is missing" in text


def test_gpus_that_are_left_out_are_listed_with_the_word_that_does_it() -> None:
    found = without_excluded(make.inventory(), ("1", "7"))

    text = table(found, {})
    assert f"left out: GPU 1 (NVIDIA H100 80GB HBM3, {make.gpu(1).uuid}, 0000:11:00.0): " in text
    assert '"7" of --exclude-gpus excludes nothing: this node has 2 GPUs' in text
    assert "would publish 1 device\n" in text
    facts = report(found, {})
    assert [one["index"] for one in facts["excluded"]] == [1]  # type: ignore[attr-defined]
    assert len(facts["excludedWithoutEffect"]) == 1  # type: ignore[arg-type]


def test_passthrough_gpus_are_listed_with_obstacles_of_others() -> None:
    inventory = make.inventory(
        make.gpu(0),
        make.gpu(1),
        passthrough=(
            make.passthrough(0, driver="nvidia", problem="it is bound to nvidia"),
            make.passthrough(1, driver="nvidia", problem="it has virtual functions"),
            make.passthrough(2),
            make.passthrough(3),
        ),
    )

    text = table(inventory, {})
    assert "  all: type=gpu, productName=NVIDIA H100 80GB HBM3, " in text
    assert "  all for virtual machines: type=vfio, " in text
    assert "  gpu-vfio-2: uuid=GPU-pci-0000-12-00-0, " in text
    assert "  gpu-vfio-3: uuid=GPU-pci-0000-13-00-0, " in text
    assert "not offered to virtual machines: 0000:10:00.0: it is bound to nvidia" in text
    assert "not offered to virtual machines: 0000:11:00.0: it has virtual functions" in text
    notes = report(inventory, {})["notes"]
    assert [note["index"] for note in notes] == [None, None]  # type: ignore[attr-defined]


def test_devices_are_listed_in_the_order_of_allocation() -> None:
    found = report(make.inventory(make.gpu(0), make.gpu(1, cuda_compute_capability=(7, 5))), {})
    assert [device["name"] for device in found["devices"]] == ["gpu-1", "gpu-0"]  # type: ignore[attr-defined]


def test_a_report_has_facts_problems_and_the_devices_as_published() -> None:
    found = report(
        make.inventory(make.gpu(0), sick=(SickGpu(index=7, reason="lost"),)),
        {"gpu-0": "its device node is missing"},
    )

    assert json.loads(json.dumps(found)) == found
    assert found["driver"] == {"version": "535.261.03", "cudaVersion": "12.2"}
    assert found["sick"] == found["withheld"] == [{"index": 7, "reason": "lost"}]
    [gpu] = found["gpus"]  # type: ignore[misc]
    assert gpu["uuid"] == make.gpu(0).uuid  # type: ignore[has-type]
    assert gpu["problem"] == "its device node is missing"  # type: ignore[has-type]
    [device] = found["devices"]  # type: ignore[misc]
    assert device["name"] == "gpu-0"  # type: ignore[has-type]


def test_a_spec_is_yaml_with_what_is_left_out_as_comments() -> None:
    text = spec_text(EDITS, {"gpu-1": "its device node is missing"}, "table")

    assert text.startswith("# gpu-1 is left out: its device node is missing\n")
    spec = yaml.safe_load(text)
    assert [device["name"] for device in spec["devices"]] == ["gpu-0"]
    assert spec["containerEdits"] == {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}


HAND_MADE = make.mig_device(0, "3g.40gb", 4)


def test_mig_devices_that_exist_have_a_table_of_their_own() -> None:
    text = table(make.inventory(make.gpu(0, mig=make.mig(HAND_MADE))), {})

    (row,) = (line for line in text.splitlines() if line.startswith("gpu-0-mig-3g40gb-9-4  "))
    assert row.split() == ["gpu-0-mig-3g40gb-9-4", "3g.40gb", "4-7", HAND_MADE.uuid, "5", "0"]
    assert "GPU 0: it is not published as a whole" in text


def test_possible_mig_devices_take_one_line_for_each_gpu() -> None:
    text = table(make.inventory(make.gpu(0, mig=make.mig()), make.gpu(1)), {})

    assert "would publish 27 devices" in text
    assert (
        "  on demand on gpu-0, places: 1g.10gb in 7, 1g.10gb+me in 7, 1g.20gb in 4, 2g.20gb in 3,"
        " 3g.40gb in 2, 4g.40gb in 1, 7g.80gb in 1\n"
    ) in text
    assert "mig-1g10gb" not in text


def test_a_report_has_mig_devices_counters_and_notes() -> None:
    found = report(make.inventory(make.gpu(0, mig=make.mig(HAND_MADE))), {})

    assert json.loads(json.dumps(found)) == found
    [gpu] = found["gpus"]  # type: ignore[misc]
    [device] = gpu["migDevices"]  # type: ignore[has-type]
    assert (device["profile"], device["start"], device["size"]) == ("3g.40gb", 4, 4)
    assert len(found["counterSets"]) == len(found["notes"]) == 1  # type: ignore[arg-type]


IN_SHARES = ShareOffer(consumable=Consumable.of("4"))


def test_consumption_of_shared_devices_is_a_table() -> None:
    gpu = make.gpu(0, mig=make.mig())
    text = table(make.inventory(gpu), {}, Offered(share=IN_SHARES))

    title = "for several claims at once, with --consumable-shares 4:"
    lines = text.splitlines()
    assert lines[lines.index(title) + 1 :] == [
        "DEVICE  CAPACITY  TOTAL    DEFAULT  MINIMUM  STEP",
        "gpu-0   memory    81152Mi  0        0        1Mi",
        "gpu-0   shares    4        1        1        1",
        "gpu-0   cores     100      0        0        1",
    ]
    assert "several claims" not in table(make.inventory(gpu), {})


def test_in_mode_memory_the_default_is_all_memory() -> None:
    gpu = make.gpu(0, memory_bytes=15 * 1024**3)
    text = table(
        make.inventory(gpu), {}, Offered(share=ShareOffer(consumable=Consumable.of("memory")))
    )

    assert "gpu-0   memory    15Gi   15Gi     1Mi      1Mi\n" in text


def test_a_report_says_the_setting_and_the_policies() -> None:
    found = report(make.inventory(make.gpu(0)), {}, Offered(share=IN_SHARES))

    assert found["consumableShares"] == "4"
    [device] = found["devices"]  # type: ignore[misc]
    assert device["allowMultipleAllocations"] is True  # type: ignore[has-type]
    assert device["capacity"]["shares"]["requestPolicy"]["default"] == "1"  # type: ignore[has-type]
    assert report(make.inventory(), {})["consumableShares"] == "disabled"


def test_memory_counters_follow_the_drivers_setting() -> None:
    inventory = make.inventory(make.gpu(0, memory_bytes=15 * 1024**3))
    found = report(inventory, {}, Offered(memory_counters=True))

    counters = {"memory": {"value": "15Gi"}}
    assert found["counterSets"] == [{"name": "gpu-0-counter-set", "counters": counters}]
    assert report(inventory, {})["counterSets"] == []
