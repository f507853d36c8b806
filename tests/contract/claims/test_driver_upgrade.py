"""The GPU driver's files are replaced under prepared claims: their specs name what there is."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

import driver_tree
from dra_driver.claims.model.claim import ClaimRef
from dra_driver.claims.prepare.specs import SETTLED_LOOKS
from dra_driver.claims.reconcile.reconciler import ReconcileTiming
from worlds.configs import MPS, SHARES
from worlds.node import MakeNode, Node

NEW = "999.1.2"
NVML = "/usr/local/nvidia/lib64/libnvidia-ml.so.1"


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    return make_node(finds_files=True)


def whole(node: Node) -> ClaimRef:
    return node.claim("gpu-0")


def by_mps(node: Node) -> ClaimRef:
    return node.claim("gpu-0", configs=[MPS])


def share(node: Node) -> ClaimRef:
    return node.claim_shares(SHARES["time-slicing"])


def mig(node: Node) -> ClaimRef:
    return node.claim(node.name("1g.10gb", 3))


def by_admin_access(node: Node) -> ClaimRef:
    ref = node.claim("gpu-0")
    node.driver.api.results(ref)[0]["adminAccess"] = True
    return ref


def look(node: Node, times: int = 1) -> None:
    """Let the reconciler look as it does every ten seconds."""
    reconciler = node.driver.reconciler(ReconcileTiming())
    for _ in range(times):
        assert not reconciler.mend_unfinished()


def upgrade(node: Node, stems: str = "") -> str:
    """Replace the driver's files, or those whose names begin so; return the old version."""
    root = node.root / "driver"
    old = node.inventory.driver_version or ""
    driver_tree.upgrade(root, old, NEW, stems)
    return old


def mounted(node: Node, ref: ClaimRef) -> dict[str, str]:
    """Container path to host path of the GPU driver's files in a claim's spec."""
    mounts = node.driver.spec(ref)["containerEdits"]["mounts"]
    return {mount["containerPath"]: mount["hostPath"] for mount in mounts}


def missing(node: Node, ref: ClaimRef) -> list[str]:
    return [path for path in mounted(node, ref).values() if not os.path.lexists(path)]


@pytest.mark.parametrize("kind", [whole, by_mps, share, mig, by_admin_access])
def test_after_an_upgrade_specs_of_all_claims_mount_the_new_files(
    node: Node, kind: Callable[[Node], ClaimRef]
) -> None:
    ref = kind(node)
    node.driver.prepare(ref)
    before = node.driver.spec(ref)
    old = upgrade(node)
    assert missing(node, ref)
    look(node)
    after = node.driver.spec(ref)
    assert missing(node, ref) == []
    assert after["devices"] == before["devices"]
    assert json.dumps(before).replace(old, NEW) == json.dumps(after)


def test_specs_that_fit_are_not_written_again(node: Node) -> None:
    ref = whole(node)
    node.driver.prepare(ref)
    (file,) = (node.driver.root / "cdi").iterdir()
    before = file.stat().st_ino
    look(node, times=10)
    assert file.stat().st_ino == before
    assert node.driver.claims.specs.outdated() == set()


def test_a_spec_stays_while_a_file_is_away_for_a_moment(node: Node) -> None:
    ref = whole(node)
    node.driver.prepare(ref)
    before = node.driver.spec(ref)
    lib = Path(mounted(node, ref)[NVML])
    lib.rename(lib.with_name("away"))
    look(node, times=3)
    assert not node.driver.reconciler(ReconcileTiming()).mend()
    node.driver.prepare(ref)  # the kubelet asks again
    assert node.driver.spec(ref) == before
    gpu, *others = node.inventory.gpus
    found = replace(node.inventory, gpus=(replace(gpu, minor=6), *others))
    node.driver.gpus.inventory, as_before = found, node.inventory
    node.driver.prepare(ref)
    assert "/dev/nvidia6" in node.driver.nodes(ref)
    assert node.driver.spec(ref)["containerEdits"] == before["containerEdits"]
    node.driver.gpus.inventory = as_before
    lib.with_name("away").rename(lib)
    look(node, times=SETTLED_LOOKS + 2)
    node.driver.prepare(ref)
    assert node.driver.spec(ref) == before


def test_half_an_upgrade_is_logged_once_and_waited_out(node: Node) -> None:
    ref = whole(node)
    node.driver.prepare(ref)
    before = node.driver.spec(ref)
    with capture_logs() as said:
        old = upgrade(node, "libnvidia-ml")
        look(node, times=3)
    assert node.driver.spec(ref) == before
    (told,) = [entry for entry in said if entry["log_level"] == "warning"]
    assert told["event"] == "files of the gpu driver are missing"
    assert told["missing"][0].endswith(f"libnvidia-ml.so.{old}")
    upgrade(node)
    with capture_logs() as said:
        look(node)
    assert missing(node, ref) == []
    assert [entry["event"] for entry in said] == ["cdi spec follows the gpu driver's files"]


def test_without_the_running_drivers_libcuda_no_spec_is_touched(node: Node) -> None:
    ref = whole(node)
    node.driver.prepare(ref)
    before = node.driver.spec(ref)
    with capture_logs() as said:
        old = upgrade(node, "lib")  # the kernel's modules stay as they were
        look(node, times=3)
    assert node.driver.spec(ref) == before
    (told,) = said
    assert told["reason"].startswith(f"libcuda.so.{old} of the running GPU driver {old} is not")


@pytest.mark.parametrize(
    "path", ["/etc/vulkan/icd.d/nvidia_icd.json", "/run/nvidia-fabricmanager/socket"]
)
def test_a_file_that_stays_missing_is_no_longer_mounted(node: Node, path: str) -> None:
    file = Path(f"{node.machine.driver_root}{path}")
    file.parent.mkdir(parents=True)
    file.touch()
    ref = whole(node)
    node.driver.prepare(ref)
    assert mounted(node, ref)[path] == str(file)
    file.unlink()
    look(node, times=SETTLED_LOOKS)
    assert mounted(node, ref)[path] == str(file)
    look(node)
    assert path not in mounted(node, ref)
    assert missing(node, ref) == []
