"""Device node plans, /proc tables, compiled sources and package sources."""

from pathlib import Path

import pytest

from dra_driver.errors import SetupError
from dra_driver.simulator import apt_source, build, device_nodes, procfs
from dra_driver.simulator.device_nodes import NodeKind

HOST = "Character devices:\n  1 mem\n254 ndctl\n253 dimmctl\n\nBlock devices:\n252 virtblk\n"


def test_a_real_driver_on_the_host_forbids_real_nodes(tmp_path: Path) -> None:
    host = f"Character devices:\n195 nvidia\n226 drm\n{HOST}"
    plan = device_nodes.plan(None, tmp_path, host)
    assert plan.kind is NodeKind.PLACEHOLDER
    assert "real GPU driver" in plan.note
    assert not plan.drm
    with pytest.raises(SetupError, match="real GPU driver"):
        device_nodes.plan(NodeKind.DEVICE, tmp_path, host)


def test_mig_minors_are_numbered_as_on_a_real_node() -> None:
    lines = dict(line.split() for line in procfs.mig_minors().splitlines())
    assert (lines["config"], lines["monitor"]) == ("1", "2")
    assert lines["gpu0/gi9/access"] == "84"  # as on a real node
    assert lines["gpu0/gi9/ci0/access"] == "85"
    assert len(set(lines.values())) == len(lines)


def test_without_a_compiler_the_error_says_what_to_install(tmp_path: Path) -> None:
    for environment in ({"PATH": str(tmp_path)}, {"PATH": str(tmp_path), "CC": "my-cc"}):
        with pytest.raises(SetupError, match="apt-get install gcc"):
            build.compile_library(tmp_path, environment)


def test_apt_uses_nothing_of_the_machines_state(tmp_path: Path) -> None:
    apt, work = tmp_path / "apt", tmp_path / "work"
    apt.mkdir()
    work.mkdir()
    (apt / "sources.list").write_text("deb http://one.example/debian bookworm main\n")
    options = apt_source.options(work, apt)
    assert f"Dir::State::Lists={work}/lists" in options
    assert "Dir::Etc::SourceParts=/dev/null" in options
    written = (work / "debian.sources").read_text()
    assert "Components: contrib non-free\n" in written
    assert "Suites: bookworm\n" in written
