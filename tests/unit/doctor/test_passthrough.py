"""What keeps GPUs from virtual machines, as doctor tells it."""

from pathlib import Path
from typing import Any

import pytest

import make
from doctored import ERROR, INFO, OK, WARNING, severities
from dra_driver.admin.doctor.checks import passthrough
from dra_driver.admin.doctor.checks.finding import Seen, Severity
from dra_driver.admin.doctor.every_check import OF_NODES
from dra_driver.admin.doctor.facts.installed import sorted_out
from dra_driver.admin.doctor.facts.node_facts import (
    HolderFacts,
    PassthroughFacts,
    passthrough_facts,
)
from dra_driver.admin.doctor.facts.places import Places
from dra_driver.admin.doctor.sources import Sources
from dra_driver.cdi.roots import Roots
from dra_driver.devices.holders import Holder
from dra_driver.devices.model import PassthroughGpu
from worlds.pci import PciTree

NOBODY = HolderFacts(sees_node=True)


def seen(
    *cards: PassthroughGpu, holders: HolderFacts = NOBODY, modules: tuple[str, ...] = ()
) -> list[Seen]:
    return list(passthrough.judged(PassthroughFacts(cards=cards, missing_modules=modules), holders))


def test_gpus_that_can_be_had_are_counted() -> None:
    (one,) = seen(
        make.passthrough(make.gpu(0)), make.passthrough(make.gpu(1), 1, driver="vfio-pci")
    )
    assert one.severity is OK
    assert one.text.startswith("2 GPUs can be given to virtual machines, 1 of them bound")
    assert severities(seen()) == [INFO]


def test_what_keeps_several_gpus_away_is_said_once_with_what_to_do() -> None:
    problem = "the kernel has no IOMMU in use: turn it on in the firmware"
    (one,) = seen(*(make.passthrough(make.gpu(n), n, problem=problem) for n in range(2)))
    assert one.severity is WARNING
    assert one.text == (
        "0000:10:00.0, 0000:11:00.0 are not offered to virtual machines: the kernel has no "
        "IOMMU in use"
    )
    assert one.advice == "turn it on in the firmware"


@pytest.mark.parametrize(("problem", "severity"), [(None, ERROR), ("no IOMMU", WARNING)])
def test_a_module_that_lacks_is_an_error_where_a_gpu_is_offered(
    problem: str | None, severity: Severity
) -> None:
    found = seen(make.passthrough(make.gpu(0), problem=problem), modules=("vfio-pci",))
    (one,) = (one for one in found if "vfio-pci" in one.text)
    assert one.severity is severity
    assert "modprobe vfio-pci" in one.advice


def test_a_switch_that_hangs_is_an_error() -> None:
    assert severities(seen(make.passthrough(make.gpu(0), hangs=True))) == [ERROR, OK]


@pytest.mark.parametrize(
    ("name", "severity"), [("Xorg", WARNING), ("nv-hostengine", INFO), ("python3", None)]
)
def test_who_keeps_gpus_open_for_good_is_named(name: str, severity: Severity | None) -> None:
    holders = HolderFacts(sees_node=True, holders={0: (Holder(pid=7, name=name),)})
    first, *rest = seen(make.passthrough(make.gpu(0)), holders=holders)
    if severity is None:
        assert not rest
        return
    assert (first.severity, severities(rest)) == (severity, [OK])
    assert f"{name} (PID 7) has /dev/nvidia0 open" in first.text


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


def test_a_node_without_the_module_and_with_a_stranger_in_the_group(tmp_path: Path) -> None:
    tree = PciTree(tmp_path / "sys", "nvme")
    tree.add("0000:10:00.0", group=7)
    tree.add("0000:11:00.0", group=8)
    tree.add("0000:12:00.0", group=8, class_id="0x010802", vendor="0x144d", driver="nvme")
    (tree.root / "bus/pci/drivers/vfio-pci").rmdir()
    places = places_of(tmp_path)
    facts = passthrough_facts(places, make.inventory(make.gpu(0), make.gpu(1)))
    assert facts.missing_modules == ("vfio-pci",)
    assert [card.problem is None for card in facts.cards] == [True, False]
    problem, module, fine = passthrough.judged(facts, NOBODY)
    assert "0000:12:00.0 (driver nvme)" in problem.text
    assert problem.advice.startswith("move one of the cards to another slot")
    assert (module.severity, fine.severity) == (ERROR, OK)


OF_DRIVER = {"kernel-driver", "driver-library", "gpus", "mig-mode", "passthrough", "device-nodes"}


@pytest.mark.parametrize(("other", "needs"), [("nvgrace-gpu-vfio-pci", False), (None, True)])
def test_where_vfio_drivers_have_all_gpus_no_gpu_driver_is_wanted(
    tmp_path: Path, other: str | None, *, needs: bool
) -> None:
    tree = PciTree(tmp_path / "sys", "nvgrace-gpu-vfio-pci")
    tree.add("0000:10:00.0", group=7, driver="vfio-pci")
    tree.add("0000:11:00.0", group=8, driver=other)
    sources = Sources(places=places_of(tmp_path), cluster=None, vfio=True)
    looks = {check.id: check.look for check in OF_NODES if check.id in OF_DRIVER}
    if needs:
        assert severities(looks["kernel-driver"](sources)) == [ERROR]
    else:
        assert {one.severity for look in looks.values() for one in look(sources)} == {OK}
