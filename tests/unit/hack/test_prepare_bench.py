from pathlib import Path

import pytest
from bench.prepare.beside import NvidiaDriver
from bench.prepare.course import _options
from testbed.driver import Place
from testbed.machine import DRIVER


def test_a_binary_of_nvidias_driver_takes_turns_as_the_first() -> None:
    options = _options(["--beside", "/opt/plugin"])
    assert options.driver == [Path("/opt/plugin"), DRIVER]


def test_what_nvidias_driver_cannot_share_by_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _options(["--beside", "/opt/plugin", "--config", "exclusive,share-mps"])
    assert "--beside has exclusive and time-slicing, not share-mps" in capsys.readouterr().err


def test_nvidias_driver_gets_its_own_settings_and_finds_nvml(tmp_path: Path) -> None:
    libraries = tmp_path / "root/usr/lib/x86_64-linux-gnu"
    (libraries / "nvidia/current").mkdir(parents=True)
    (libraries / "nvidia/current/libnvidia-ml.so.1").write_text("nvml")
    place = Place.below(tmp_path, tmp_path / "kubeconfig", tmp_path / "root", node="node-1")
    for _ in range(2):
        driver = NvidiaDriver(place, tmp_path / "log", program=Path("/opt/plugin"))
    assert driver.env["KUBE_API_QPS"] == "1000"
    assert driver.env["NODE_NAME"] == "node-1"
    assert (libraries / "libnvidia-ml.so.1").read_text() == "nvml"
