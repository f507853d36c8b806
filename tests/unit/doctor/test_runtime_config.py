"""How containerd and CRI-O are configured, as their files say it."""

from pathlib import Path

import pytest

from dra_driver.admin.doctor.facts.runtime_config import RuntimeConfig, read_runtime_configs

VERSION_2 = """
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "nvidia"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
      BinaryName = "/usr/bin/nvidia-container-runtime"
"""
VERSION_3 = """
version = 3
imports = ["/etc/containerd/conf.d/*.toml"]
[plugins."io.containerd.cri.v1.runtime"]
  enable_cdi = true
"""
DROP_IN = """
version = 3
[plugins."io.containerd.cri.v1.runtime".containerd]
  default_runtime_name = "nvidia"
"""


def write(host: Path, path: str, text: str) -> Path:
    file = host / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def only(host: Path) -> RuntimeConfig:
    (found,) = read_runtime_configs(host)
    return found


def test_imports_of_version_3_apply_too(tmp_path: Path) -> None:
    write(tmp_path, "etc/containerd/config.toml", VERSION_3)
    assert not only(tmp_path).gives_gpus_by_default
    write(tmp_path, "etc/containerd/conf.d/99-nvidia.toml", DROP_IN)
    found = only(tmp_path)
    assert found.files[1] == "/etc/containerd/conf.d/99-nvidia.toml"
    assert found.cdi is True
    assert found.gives_gpus_by_default


def test_links_lead_to_the_nodes_own_files(tmp_path: Path) -> None:
    write(tmp_path, "real/config.toml", VERSION_2)
    (tmp_path / "etc/containerd").mkdir(parents=True)
    (tmp_path / "etc/containerd/config.toml").symlink_to("/real/config.toml")
    assert only(tmp_path).files == ("/real/config.toml",)


def test_the_settings_of_nvidias_runtime_are_read(tmp_path: Path) -> None:
    write(tmp_path, "etc/containerd/config.toml", VERSION_2)
    assert only(tmp_path).sees_environment is None
    setting = "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
    write(tmp_path, "etc/nvidia-container-runtime/config.toml", setting)
    assert only(tmp_path).sees_environment is False


@pytest.mark.parametrize(
    "text",
    [
        "not = [toml",
        "a = " + "[" * 5000,
        'version = "\udcff"'.encode("utf-8", "surrogateescape").decode("latin-1") * 2,
        "x" * (2 * 1024**2),
    ],
)
def test_a_file_that_cannot_be_read_is_a_problem_and_nothing_more(
    tmp_path: Path, text: str
) -> None:
    write(tmp_path, "etc/containerd/config.toml", text)
    found = only(tmp_path)
    assert found.files == ()
    assert found.problems[0].startswith("/etc/containerd/config.toml: ")


def test_a_file_that_imports_itself_is_read_once(tmp_path: Path) -> None:
    again = 'imports = ["*.toml", "/etc/containerd/config.toml"]\nplugins = 7\n'
    write(tmp_path, "etc/containerd/config.toml", again)
    found = only(tmp_path)
    assert found.files == ("/etc/containerd/config.toml",)
    assert found.cdi is None


MAIN_1_7 = """
version = 2
imports = ["/etc/containerd/conf.d/*.toml"]
[plugins."io.containerd.grpc.v1.cri"]
  enable_cdi = true
  cdi_spec_dirs = ["/var/run/cdi"]
"""
DROP_IN_1_7 = """
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "nvidia"
"""


def of_version(host: Path, *version: int) -> RuntimeConfig:
    (found,) = read_runtime_configs(host, version or None)
    return found


def test_a_drop_in_takes_the_whole_table_from_the_file_before_it_in_1_7(tmp_path: Path) -> None:
    write(tmp_path, "etc/containerd/config.toml", MAIN_1_7)
    write(tmp_path, "etc/containerd/conf.d/99-nvidia.toml", DROP_IN_1_7)
    old, unknown, new = of_version(tmp_path, 1, 7), of_version(tmp_path), of_version(tmp_path, 2, 0)
    assert (old.cdi, old.spec_dirs, old.default_runtime) == (None, None, "nvidia")
    assert old.lost == ("/etc/containerd/config.toml",)
    assert old.cri_file == "/etc/containerd/conf.d/99-nvidia.toml"
    assert unknown == old
    assert (new.cdi, new.spec_dirs, new.default_runtime) == (True, ("/var/run/cdi",), "nvidia")
    assert (new.lost, new.cri_file) == ((), None)


def test_containerd_1_7_does_not_read_version_3(tmp_path: Path) -> None:
    write(tmp_path, "etc/containerd/config.toml", "version = 3\n")
    assert not of_version(tmp_path).may_be_old
    write(tmp_path, "etc/containerd/config.toml", "version = 2\n")
    assert of_version(tmp_path).may_be_old
    assert not of_version(tmp_path, 2, 0).may_be_old


def test_nested_imports_come_after_their_siblings(tmp_path: Path) -> None:
    imports = 'version = 2\nimports = ["{}"]\n'
    cri = '[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = {}\n'
    write(tmp_path, "etc/containerd/config.toml", imports.format("d/*.toml"))
    write(tmp_path, "etc/containerd/d/1.toml", imports.format("/etc/more.toml"))
    write(tmp_path, "etc/containerd/d/2.toml", cri.format("false"))
    write(tmp_path, "etc/more.toml", cri.format("true"))
    assert of_version(tmp_path, 1, 7).cdi is True
