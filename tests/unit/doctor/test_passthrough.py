"""What keeps GPUs from virtual machines, as doctor tells it."""

from pathlib import Path
from typing import Any

import pytest

import make
from doctored import ERROR, INFO, OK, WARNING, severities
from dra_driver.admin.doctor.checks import node_checks
from dra_driver.admin.doctor.checks.finding import Severity
from dra_driver.admin.doctor.every_check import OF_NODES
from dra_driver.admin.doctor.facts.installed import sorted_out
from dra_driver.admin.doctor.facts.places import Places
from dra_driver.admin.doctor.sources import Sources
from dra_driver.cdi.roots import Roots
from worlds.pci import PciTree

BOUND_TO_NVIDIA = "it is bound to nvidia: bind it to vfio-pci at boot"


def test_available_gpus_are_counted() -> None:
    (one,) = node_checks.for_machines([make.passthrough(0), make.passthrough(1)])
    assert one.severity is OK
    assert one.text == "2 GPUs can be given to virtual machines"
    assert severities(node_checks.for_machines([])) == [INFO]


def test_a_common_obstacle_is_reported_once_with_advice() -> None:
    problem = "the kernel has no IOMMU in use: turn it on in the firmware"
    (one,) = node_checks.for_machines([make.passthrough(n, problem=problem) for n in range(2)])
    assert one.severity is WARNING
    assert one.text == (
        "0000:10:00.0, 0000:11:00.0 are not offered to virtual machines: the kernel has no "
        "IOMMU in use"
    )
    assert one.advice == "turn it on in the firmware"


@pytest.mark.parametrize(("with_another", "severity"), [(True, INFO), (False, WARNING)])
def test_gpus_of_the_gpu_driver_are_a_warning_where_machines_have_none(
    *, with_another: bool, severity: Severity
) -> None:
    cards = [make.passthrough(0, driver="nvidia", problem=BOUND_TO_NVIDIA)]
    cards += [make.passthrough(1)] if with_another else []
    first, *_ = node_checks.for_machines(cards)
    assert first.severity is severity
    assert first.advice == "bind it to vfio-pci at boot"


@pytest.mark.parametrize(
    ("words", "env", "expected"),
    [
        ([], {}, False),
        ([], {"VFIO": "true"}, True),
        (["--vfio"], {}, True),
        ([], {"FEATURE_GATES": "DynamicMIG=true,PassthroughSupport=true"}, True),
        ([], {"FEATURE_GATES": "PassthroughSupport=false"}, False),
    ],
)
def test_a_daemonset_says_whether_it_offers_them(
    words: list[str], env: dict[str, str], expected: bool
) -> None:
    container: dict[str, Any] = {
        "command": ["dra-driver", "kubelet-plugin", *words],
        "env": [{"name": name, "value": value} for name, value in env.items()],
    }
    daemon_set = {
        "metadata": {"name": "driver", "namespace": "gpus"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    (ours,) = sorted_out([daemon_set]).ours
    assert ours.offers_passthrough is expected


def places_of(folder: Path) -> Places:
    """A node below a folder, of which there is /sys alone."""
    return Places(
        roots=Roots(
            driver_on_host=str(folder),
            driver=folder,
            dev_on_host=str(folder / "dev"),
            dev=folder / "dev",
            sys=folder / "sys",
            proc=folder / "proc",
        ),
        host=None,
        plugins=folder,
        registrar=folder,
        cdi_root=folder,
    )


def test_another_function_in_the_group_is_reported(tmp_path: Path) -> None:
    tree = PciTree(tmp_path / "sys")
    tree.add("0000:10:00.0", group=7)
    tree.add("0000:11:00.0", group=8)
    tree.add("0000:12:00.0", group=8, class_id="0x010802", vendor="0x144d", driver="nvme")
    sources = Sources(places=places_of(tmp_path), cluster=None, vfio=True)
    problem, fine = sources.passthrough()
    assert "0000:11:00.0 is not offered" in problem.text
    assert "0000:12:00.0 (nvme)" in problem.text
    assert problem.advice.startswith("move one of the cards to another slot")
    assert fine.severity is OK


OF_DRIVER = {"kernel-driver", "driver-library", "gpus", "mig-mode", "passthrough", "device-nodes"}


@pytest.mark.parametrize(("other", "needs"), [("nvgrace-gpu-vfio-pci", False), (None, True)])
def test_where_vfio_drivers_have_all_gpus_no_gpu_driver_is_wanted(
    tmp_path: Path, other: str | None, *, needs: bool
) -> None:
    tree = PciTree(tmp_path / "sys")
    tree.add("0000:10:00.0", group=7, driver="vfio-pci")
    tree.add("0000:11:00.0", group=8, driver=other)
    sources = Sources(places=places_of(tmp_path), cluster=None, vfio=True)
    looks = {check.id: check.look for check in OF_NODES if check.id in OF_DRIVER}
    if needs:
        assert severities(looks["kernel-driver"](sources)) == [ERROR]
    else:
        assert {one.severity for look in looks.values() for one in look(sources)} == {OK}
