"""Manifests of each older API become those of tests/data/convert, with the losses told there."""

import re
from pathlib import Path

import pytest
import yaml

from dra_driver import cli
from dra_driver.admin.convert.claims import INSTALLED
from dra_driver.admin.convert.manifests import convert
from dra_driver.admin.validate.findings import check_manifest

REPOSITORY = Path(__file__).parents[3]
DATA = REPOSITORY / "tests" / "data" / "convert"
VERSIONS = sorted(path.name for path in DATA.iterdir())


@pytest.mark.parametrize("version", VERSIONS)
def test_a_version_becomes_what_runs_here(
    version: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(DATA / version)
    lost = Path("lost.txt").read_text()
    assert cli.main(["convert", "in.yaml"]) == (1 if lost else 0)
    printed = capsys.readouterr()
    assert printed.out == Path("out.yaml").read_text()
    assert printed.err == lost


@pytest.mark.parametrize("version", VERSIONS)
def test_converted_output_passes_validate(version: str) -> None:
    findings = check_manifest((DATA / version / "out.yaml").read_text()).findings
    assert all("--consumable-shares" in finding.text for finding in findings)


@pytest.mark.parametrize("version", VERSIONS)
def test_converted_output_does_not_change_again(version: str) -> None:
    text = (DATA / version / "out.yaml").read_text()
    assert convert({"out.yaml": text}).text == text


def test_the_installed_classes_are_those_that_are_left_out() -> None:
    shipped = {
        yaml.safe_load((REPOSITORY / "deviceclasses" / f).read_text())["metadata"]["name"]
        for f in ("gpu.yaml", "mig.yaml", "vfio.yaml")
    }
    assert set(INSTALLED) == shipped


def test_claims_in_place_of_limits_are_of_classes_that_the_install_has() -> None:
    shipped = {
        found["metadata"]["name"]
        for file in (REPOSITORY / "deviceclasses").glob("*.yaml")
        for found in yaml.safe_load_all(file.read_text())
        if found["kind"] == "DeviceClass"
    }
    text = (DATA / "device-plugin" / "out.yaml").read_text()
    used = set(re.findall(r"deviceClassName: (\S+)", text))
    assert len(used) == 3
    assert used <= shipped
