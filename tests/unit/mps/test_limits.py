"""A domain's limits, as a daemon is told and asked."""

from collections.abc import Sequence

import pytest

from dra_driver.errors import DeviceError
from dra_driver.mps.daemon.limits import read_limits, restore_limits, set_limits
from dra_driver.mps.domain import Domain, DomainDevice, DomainId

ONE, TWO, THREE = "GPU-1", "GPU-2", "GPU-3"
DOMAIN = Domain(
    id=DomainId("claim"),
    devices=(
        DomainDevice(uuid=TWO, pinned_memory_mib=10240),
        DomainDevice(uuid=ONE),
        DomainDevice(uuid=THREE, pinned_memory_mib=953),
    ),
    active_thread_percentage=30,
)


def saying(*lines: str) -> tuple[list[str], "Saying"]:
    said = Saying(list(lines))
    return said.asked, said


class Saying:
    def __init__(self, lines: list[str]) -> None:
        self.asked: list[str] = []
        self.lines = lines

    def __call__(self, commands: Sequence[str]) -> list[str]:
        self.asked += commands
        return self.lines


def test_devices_are_named_by_their_place_in_cuda_visible_devices() -> None:
    asked, ask = saying()
    set_limits(ask, DOMAIN)
    assert DOMAIN.visible_devices == "GPU-2,GPU-1,GPU-3"
    assert asked == [
        "set_default_active_thread_percentage 30",
        "set_default_device_pinned_mem_limit 0 10240M",
        "set_default_device_pinned_mem_limit 2 953M",
    ]


def test_a_domain_without_limits_sets_nvidias_own() -> None:
    asked, ask = saying()
    set_limits(ask, Domain(id=DomainId("claim"), devices=(DomainDevice(uuid=ONE),)))
    assert asked == ["set_default_active_thread_percentage 100"]


class Servers:
    """A daemon with servers; answers as that of R580 on an H100 does."""

    def __init__(self) -> None:
        self.limits = {
            "active_thread_percentage 41": "30.0",
            "device_pinned_mem_limit 41 0": "10G",
            "device_pinned_mem_limit 41 2": "953M",
        }
        self.told: list[str] = []

    def __call__(self, commands: Sequence[str]) -> list[str]:
        answers = []
        for command in commands:
            if command.startswith("set_"):
                self.told.append(command)
                continue
            name = command.removeprefix("get_")
            answer = self.limits.get(name, "Server 7 not found")
            answers += [answer] if answer else []
        return answers


def test_limits_of_a_server_that_are_right_are_left_alone() -> None:
    servers = Servers()
    assert restore_limits(servers, DOMAIN, [41]) == []
    assert servers.told == []


def test_limits_changed_by_a_client_are_restored() -> None:
    servers = Servers()
    servers.limits |= {
        "active_thread_percentage 41": "100.0",
        "device_pinned_mem_limit 41 2": "70G",
    }
    assert restore_limits(servers, DOMAIN, [41]) == [
        "server 41 had active_thread_percentage 100.0 instead of 30",
        "server 41 had device_pinned_mem_limit 2 70G instead of 953M",
    ]
    assert servers.told == [
        "set_active_thread_percentage 41 30",
        "set_device_pinned_mem_limit 41 2 953M",
    ]


@pytest.mark.parametrize("answer", ["", "Server 7 not found", "thirty"])
def test_limits_that_a_server_does_not_report_are_kept(answer: str) -> None:
    servers = Servers()
    servers.limits["active_thread_percentage 41"] = answer
    assert restore_limits(servers, DOMAIN, [41, 7]) == []
    assert servers.told == []


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (("40.0", "10G", "953M"), r"percentage of 40\.0 where 30 was set"),
        (("30.0", "10G", "10G"), "limit for GPU-3 of 10G where 953M was set"),
        (("30.0", "10G"), "3 queries have the answers"),
        ((), "3 queries have the answers"),
        (("thirty", "10G", "953M"), "'thirty' for a percentage"),
        (("30.0", "10T", "953M"), "'10T' for a memory limit"),
    ],
)
def test_limits_that_are_not_in_force_are_an_error(lines: tuple[str, ...], words: str) -> None:
    _, ask = saying(*lines)
    with pytest.raises(DeviceError, match=words):
        read_limits(ask, DOMAIN)


@pytest.mark.parametrize(
    ("limit", "said"), [(1500, "1G"), (8155, "7G"), (2047, "1G"), (1024, "1G"), (953, "953M")]
)
def test_the_daemon_writes_a_gibibyte_or_more_in_whole_ones(limit: int, said: str) -> None:
    device = DomainDevice(uuid=ONE, pinned_memory_mib=limit)
    _, ask = saying("100.0", said)
    limits = read_limits(ask, Domain(id=DomainId("claim"), devices=(device,)))
    assert limits.pinned_memory_mib == ((ONE, limit),)
