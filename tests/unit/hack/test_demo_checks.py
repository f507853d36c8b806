"""What the demo runner makes of what they saw."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from demo import demos, show
from demo.screen import Screen
from testbed.commands import TestbedError
from testbed.machine import GpuSettings

A, B = "GPU-00000000-0000-4000-8000-00000000000a", "GPU-00000000-0000-4000-8000-00000000000b"

USUAL = GpuSettings(compute_mode="Default", time_slice="Default")

DEMO = demos.Demo(name="example", text="", namespace="example", gpus={"pod1/ctr": 1, "pod2/ctr": 1})


def test_a_demo_that_saw_what_it_should_has_no_complaints() -> None:
    assert demos.complaints(DEMO, demos.Found(gpus={"pod1/ctr": (A,), "pod2/ctr": (B,)})) == []
    (complaint,) = demos.complaints(DEMO, demos.Found(gpus={"pod1/ctr": (A,), "pod2/ctr": ()}))
    assert complaint == "pod2/ctr sees 0 GPUs instead of 1"


def test_equal_groups_must_see_the_same_and_disjoint_ones_must_not_overlap() -> None:
    pods = ("pod1/ctr", "pod2/ctr")
    same, apart = (
        demos.Found(gpus=dict.fromkeys(pods, (A,))),
        demos.Found(gpus=dict(zip(pods, [(A,), (B,)], strict=True))),
    )
    equal, disjoint = replace(DEMO, equal=(pods,)), replace(DEMO, disjoint=(pods,))
    assert demos.complaints(equal, same) == demos.complaints(disjoint, apart) == []
    assert demos.complaints(equal, apart)
    (complaint,) = demos.complaints(disjoint, same)
    assert A in complaint


def sharing(**expected: Any) -> demos.Demo:
    return demos.Demo(name="sharing", text="", namespace="sharing", gpus={"pod/ctr": 1}, **expected)


def found(**facts: Any) -> demos.Found:
    return demos.Found(gpus={"pod/ctr": (A,)}, **facts)


def test_a_gpu_for_a_machine_must_be_there_by_its_group() -> None:
    demo = demos.Demo(name="vm", text="", namespace="vm", gpus={}, passthrough={"pod/ctr": 1})
    assert demos.complaints(demo, demos.Found(gpus={}, groups={"pod/ctr": ("7",)})) == []
    (wrong,) = demos.complaints(demo, demos.Found(gpus={}, groups={"pod/ctr": ()}))
    assert wrong == "pod/ctr has 0 IOMMU groups instead of 1"


def test_mig_devices_are_one_containers_own_unless_they_are_shared() -> None:
    same = {"pod1/ctr": {"MIG-a": "1g.10gb"}, "pod2/ctr": {"MIG-a": "1g.10gb"}}
    other = same | {"pod2/ctr": {"MIG-b": "1g.10gb"}}
    mig = dict.fromkeys(same, ("1g.10gb",))
    demo = demos.Demo(name="mig", text="", namespace="mig", gpus={}, mig=mig)
    assert demos.complaints(demo, demos.Found(gpus={}, mig=other)) == []
    (both,) = demos.complaints(demo, demos.Found(gpus={}, mig=same))
    assert both == "pod1/ctr and pod2/ctr both see MIG-a"
    shared = replace(demo, same_mig=(tuple(same),))
    assert demos.complaints(shared, demos.Found(gpus={}, mig=same)) == []
    (apart,) = demos.complaints(shared, demos.Found(gpus={}, mig=other))
    assert apart == "pod1/ctr and pod2/ctr should see the same MIG device, and do not"


def test_gpus_must_be_set_as_expected() -> None:
    demo = sharing(node={"pod/ctr": USUAL})
    assert demos.complaints(demo, found(node={A: USUAL})) == []
    other = GpuSettings(compute_mode="Default", time_slice="Long")
    (complaint,) = demos.complaints(demo, found(node={A: other}))
    assert "time_slice='Long'" in complaint


def test_a_second_demo_is_told_to_take_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(show, "LOCKS", tmp_path)
    one, other = (show.options_of(["--name", name]) for name in ("one", "other"))
    told = pytest.raises(TestbedError, match=r"demo-one is running .* make demo NAME=two")
    with show.alone(Screen(), one), show.alone(Screen(), other), told, show.alone(Screen(), one):
        pass
