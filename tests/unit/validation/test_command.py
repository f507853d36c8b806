import io
import json
from pathlib import Path

import pytest

from dra_driver import cli
from dra_driver.admin.validate.command import REST

GOOD = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: good}
spec:
  devices:
    config:
    - opaque:
        driver: gpu.nvidia.com
        parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig}
"""
BAD = GOOD.replace("kind: GpuConfig", "kind: GpuConfig, shraing: {}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "bad.yml").write_text(BAD)
    (tmp_path / "README.md").write_text("a: [")
    return tmp_path


def test_right_manifests_are_status_0(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["validate", str(folder / "good.yaml")]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"{REST}\n1 object and 1 config in 1 file: no errors\n"


def test_a_wrong_config_is_a_line_with_its_place_and_status_1(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["validate", str(folder)]) == 1
    printed = capsys.readouterr()
    assert printed.out == (
        f"{folder}/deep/bad.yml:9:80: ResourceClaim good: "
        'spec.devices.config[0].opaque.parameters: unknown field "shraing": '
        'did you mean "sharing"? allowed fields: apiVersion, kind, sharing\n'
    )
    assert printed.err == f"{REST}\n2 objects and 2 configs in 2 files: 1 error\n"


def test_a_folder_without_manifests_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["validate", str(tmp_path)]) == 0
    assert capsys.readouterr().err == "0 objects and 0 configs in 0 files: no errors\n"


def test_unchecked_objects_are_named_by_kind_or_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: m}\n"
    service = "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n"
    wrong = "apiVersion: resources.k8s.io/v1\nkind: ResourceClaim\n"
    texts = (machine, service, "spec: {}\n", service, wrong, "just a text\n")
    file = tmp_path / "a.yaml"
    file.write_text("---\n".join(texts))
    told = (
        "4 objects not checked: ResourceClaim.resources.k8s.io, Service (2), "
        "VirtualMachine.kubevirt.io\n"
    )
    no_kind = "kind: missing, so this is not checked, and kubectl refuses it\n"
    assert cli.main(["validate", str(file)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{file}:9:1: warning: {no_kind}{file}:18:1: warning: {no_kind}"
    first = "0 objects and 0 configs in 1 file: no errors, 2 warnings\n"
    assert printed.err == told + first
    assert cli.main(["convert", str(file)]) == 1
    printed = capsys.readouterr()
    assert printed.out.count("kind: Service") == 2
    assert printed.err == f"{file}:9:1: {no_kind}{file}:18:1: {no_kind}{told}"


def test_stdin_is_a_dash(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(BAD))
    assert cli.main(["validate", "-"]) == 1
    assert capsys.readouterr().out.startswith("<stdin>:9:80: ")


def test_a_file_that_cannot_be_read_is_status_2(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "latin.yaml").write_bytes(b"a: \xe9\n")
    assert cli.main(["validate", str(folder / "none.yaml")]) == 2
    assert "none.yaml cannot be read: No such file or directory" in capsys.readouterr().err
    assert cli.main(["validate", str(folder / "latin.yaml")]) == 2
    assert "latin.yaml cannot be read: 'utf-8' codec" in capsys.readouterr().err


def test_a_warning_is_marked_and_leaves_status_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.yaml").write_text(
        GOOD.replace("gpu.nvidia.com", "gpu.nvidia.org", 1).replace(
            "resource.nvidia.com/v1beta1", "v1"
        )
    )
    assert cli.main(["validate", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert printed.out == (
        f"{tmp_path}/a.yaml:8:9: warning: ResourceClaim good: spec.devices.config[0].opaque.driver:"
        ' "gpu.nvidia.org" is not this driver: did you mean "gpu.nvidia.com"?\n'
    )
    assert printed.err == f"{REST}\n1 object and 0 configs in 1 file: no errors, 1 warning\n"
    assert cli.main(["validate", "--output", "json", str(tmp_path)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["errors"], report["warnings"][0]["line"]) == ([], 8)


def test_json_is_for_programs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["validate", "--output", "json", str(folder)]) == 1
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert report["configs"] == 2
    (error,) = report["errors"]
    assert (error["file"], error["line"]) == (f"{folder}/deep/bad.yml", 9)
    assert printed.err == ""
