"""The hook program of the node, if there is one."""

from pathlib import Path

import pytest

from dra_driver.cdi.hooks import HookProgram, find_hook_program
from dra_driver.cdi.roots import Roots, find_roots
from dra_driver.errors import DeviceError

EVERY = b"create-symlinks enable-cuda-compat update-ldcache disable-device-node-modification"


def host_seen_at(root: Path) -> Roots:
    return find_roots(driver_root=Path("/"), container_driver_root=root)


def install(root: Path, path: str, content: bytes = EVERY) -> None:
    program = root / path.lstrip("/")
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_bytes(content)


def test_a_node_without_the_program_is_hookless(tmp_path: Path) -> None:
    assert find_hook_program(host_seen_at(tmp_path), None) is None


def test_the_usual_places_are_searched_on_the_host(tmp_path: Path) -> None:
    install(tmp_path, "/usr/local/nvidia/toolkit/nvidia-cdi-hook")
    program = find_hook_program(host_seen_at(tmp_path), None)

    assert program is not None
    assert program.path == "/usr/local/nvidia/toolkit/nvidia-cdi-hook"


def test_a_driver_container_is_not_searched(tmp_path: Path) -> None:
    install(tmp_path, "/usr/bin/nvidia-cdi-hook")

    assert find_hook_program(find_roots(driver_root=tmp_path), None) is None


def test_a_configured_path_that_cannot_be_seen_is_taken_on_trust(tmp_path: Path) -> None:
    program = find_hook_program(find_roots(driver_root=tmp_path), "/opt/nvidia-cdi-hook")

    assert program is not None
    assert program.path == "/opt/nvidia-cdi-hook"
    assert program.hooks("enable-cuda-compat")
    assert not program.hooks("update-application-profile")


def test_a_configured_path_that_this_process_sees_too_is_looked_into(tmp_path: Path) -> None:
    install(tmp_path, "/toolkit/nvidia-cdi-hook", b"update-ldcache update-application-profile")
    program = find_hook_program(
        find_roots(driver_root=tmp_path / "driver"), str(tmp_path / "toolkit/nvidia-cdi-hook")
    )

    assert program is not None
    assert program.commands == {"update-ldcache", "update-application-profile"}


def test_a_scripts_program_stands_beside_it(tmp_path: Path) -> None:
    folder = "/usr/local/nvidia/toolkit"
    install(tmp_path, f"{folder}/nvidia-cdi-hook", b"#! /bin/sh\n")
    install(
        tmp_path, f"{folder}/nvidia-cdi-hook.real", b"update-ldcache update-application-profile"
    )
    program = find_hook_program(host_seen_at(tmp_path), None)

    assert program is not None
    assert program.commands == {"update-ldcache", "update-application-profile"}


def test_a_configured_path_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="/opt/nvidia-cdi-hook is not on this node"):
        find_hook_program(host_seen_at(tmp_path), "/opt/nvidia-cdi-hook")


def test_only_commands_that_the_program_knows_are_called(tmp_path: Path) -> None:
    install(tmp_path, "/usr/bin/nvidia-cdi-hook", b"...create-symlinks...update-ldcache...")
    program = find_hook_program(host_seen_at(tmp_path), None)

    assert program is not None
    assert program.commands == {"create-symlinks", "update-ldcache"}
    assert program.hooks("enable-cuda-compat") == ()


@pytest.mark.parametrize("content", [b"", b'#!/bin/sh\nexec /opt/nvidia-cdi-hook.real "$@"\n'])
def test_a_program_of_unknown_commands_is_trusted(tmp_path: Path, content: bytes) -> None:
    install(tmp_path, "/usr/bin/nvidia-cdi-hook", content)
    program = find_hook_program(host_seen_at(tmp_path), None)

    assert program is not None
    assert "create-symlinks" in program.commands


def test_a_hook_is_called_by_its_base_name_before_the_container_starts() -> None:
    program = HookProgram(path="/opt/nvidia-cdi-hook", commands=frozenset({"update-ldcache"}))
    [hook] = program.hooks("update-ldcache", "--folder", "/lib")

    assert (hook.hook_name, hook.path) == ("createContainer", "/opt/nvidia-cdi-hook")
    assert hook.args == ("nvidia-cdi-hook", "update-ldcache", "--folder", "/lib")
    assert hook.env == ("NVIDIA_CTK_DEBUG=false",)


def test_the_toolkits_own_program_has_hooks_below_a_command() -> None:
    program = HookProgram(path="/usr/bin/nvidia-ctk", commands=frozenset({"create-symlinks"}))
    [hook] = program.links([("a.so.1", "/lib/a.so")])

    assert hook.args == ("nvidia-ctk", "hook", "create-symlinks", "--link", "a.so.1::/lib/a.so")


def test_without_links_there_is_no_hook() -> None:
    program = HookProgram(path="/usr/bin/nvidia-ctk", commands=frozenset({"create-symlinks"}))

    assert program.links([]) == ()


def test_an_unreadable_host_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="File name too long"):
        find_hook_program(host_seen_at(tmp_path), "/" + "x" * 300)
