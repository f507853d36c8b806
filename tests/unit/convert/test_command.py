"""`dra-driver convert`: what goes where, and with which exit status."""

import io
from pathlib import Path

import pytest

from dra_driver import cli

CLAIM = """\
apiVersion: resource.k8s.io/v1beta1
kind: ResourceClaim
metadata: {name: c}
spec: {controller: mine}
"""
OLD_CONFIG = """\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: c}
spec:
  config:
  - opaque:
      driver: gpu.nvidia.com
      parameters: {apiVersion: gpu.nvidia.com/v1alpha1, kind: GpuConfig}
"""
OTHER = "kind: Mine\ndata:   {a: [1,\n  2]}   # as it is"

POD = (
    "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n"
    "spec: {containers: [{name: c, image: i, resources: {limits: {%s}}}]}\n"
)


def test_other_documents_stay_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"# first\n---\n{OTHER}\n---\n{OTHER}"))
    assert cli.main(["convert", "-"]) == 0
    assert capsys.readouterr() == (
        f"{OTHER}\n---\n{OTHER}\n",
        "2 objects not checked: Mine (2)\n",
    )


def test_claims_for_parts_come_with_a_note_of_the_setting_that_they_need(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(POD % "nvidia.com/gpumem: 3000"))
    assert cli.main(["convert", "-"]) == 0
    note = "note: the output has claims for parts of GPUs: run the driver with --consumable-shares "
    assert capsys.readouterr().err.startswith(note)
    monkeypatch.setattr("sys.stdin", io.StringIO(POD % "nvidia.com/gpu: 1"))
    assert cli.main(["convert", "-"]) == 0
    assert capsys.readouterr().err == ""


def test_a_loss_names_file_and_place_and_is_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.yaml").write_text(CLAIM)
    assert cli.main(["convert", str(tmp_path / "a.yaml")]) == 1
    printed = capsys.readouterr()
    assert printed.out.endswith("spec: {}\n")
    assert printed.err == (
        f"{tmp_path}/a.yaml:4:8: ResourceClaim c: spec.controller: the scheduler, not a driver's "
        "controller, allocates all claims now: check that the requests ask for the right devices\n"
    )


def test_invalid_yaml_is_status_1_and_other_files_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.yaml").write_text("a: [\n")
    (tmp_path / "good.yaml").write_text(OTHER)
    assert cli.main(["convert", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert printed.out == f"{OTHER}\n"
    assert printed.err.startswith(f"{tmp_path}/bad.yaml:2:1: not valid YAML: ")


@pytest.mark.parametrize(
    "text",
    [
        CLAIM,
        OLD_CONFIG,
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n"
            "  containers: [{name: a, image: i, resources: {claims: [{name: g}]}}]\n"
            "  resourceClaims: [{name: g, source: {resourceClaimName: g}}]\n"
        ),
    ],
)
def test_validate_refuses_older_apis_and_points_here(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.yaml").write_text(text)
    assert cli.main(["validate", str(tmp_path / "a.yaml")]) == 1
    assert "; `dra-driver convert FILE` converts it\n" in capsys.readouterr().out
