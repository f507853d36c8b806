"""`dra-driver classes`: which DeviceClasses stand behind which resource names."""

import io
import re
from pathlib import Path

import pytest
import yaml

from dra_driver import cli
from dra_driver.admin.classes import class_name, manifest, served_names
from dra_driver.admin.wrong_names import meant
from dra_driver.errors import ConfigError
from dra_driver.simulator.profile import CARDS

REPOSITORY = Path(__file__).parents[2]

CONFIG = """\
version: v1
sharing:
  mps:
    resources:
    - {name: nvidia.com/gpu, replicas: 10}
    - {name: nvidia.com/mig-1g.5gb, replicas: 2}
"""
CONFIG_MAP = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: device-plugin}
data:
  a100: |
    version: v1
    sharing:
      timeSlicing:
        renameByDefault: true
        resources: [{name: nvidia.com/gpu, replicas: 4}]
  none: |
    version: v1
  t4: |
    version: v1
    sharing: {timeSlicing: {resources: [{name: gpu, rename: gpu.small, replicas: 2}]}}
"""


def expression(name: str) -> str:
    (found,) = yaml.safe_load_all(manifest({name: None}))
    (selector,) = found["spec"]["selectors"]
    return str(selector["cel"]["expression"])


def test_the_installed_classes_are_what_the_command_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["classes", "nvidia.com/gpu", "nvidia.com/gpu.shared"]) == 0
    shipped = REPOSITORY / "deviceclasses/extended-resources.yaml"
    assert capsys.readouterr().out == shipped.read_text(), "run make generate"


@pytest.mark.parametrize("path", sorted(REPOSITORY.glob("manifests/demos/*/demo.yaml")))
def test_the_classes_of_demos_are_those_that_the_command_prints(path: Path) -> None:
    for found in yaml.safe_load_all(path.read_text()):
        if found["kind"] == "DeviceClass" and "extendedResourceName" in found["spec"]:
            (printed,) = yaml.safe_load_all(manifest({found["spec"]["extendedResourceName"]: None}))
            assert found == printed


def test_a_class_is_named_after_its_resource() -> None:
    (found,) = yaml.safe_load_all(manifest({"nvidia.com/mig-1g.5gb": None}))
    assert found["metadata"]["name"] == class_name("nvidia.com/mig-1g.5gb")
    assert found["metadata"]["name"] == "mig-1g.5gb.resource.nvidia.com"
    assert found["spec"]["extendedResourceName"] == "nvidia.com/mig-1g.5gb"


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("mig-1g.5gb", "1g.5gb"),
        ("mig-1g.10gb.me", "1g.10gb+me"),
        ("mig-1g.24gb.me.all", "1g.24gb+me.all"),
        ("mig-2g.48gb-me", "2g.48gb-me"),
        ("mig-1c.3g.40gb", "1c.3g.40gb"),
    ],
)
def test_a_mig_name_is_served_by_undivided_devices_of_its_profile_too(
    name: str, profile: str
) -> None:
    text = expression(f"nvidia.com/{name}")
    assert f".?profile.orValue('') == '{profile}' ? 'nvidia.com/{name}' : '')" in text
    assert text.endswith(f" == 'nvidia.com/{name}'")
    assert "'sharedAs' in device.attributes['gpu.nvidia.com'] ? ''" in text


@pytest.mark.parametrize("name", ["gpu", "mig-1g.10gb", "own"])
def test_a_selector_reads_nothing_that_a_device_may_lack(name: str) -> None:
    text = expression(f"nvidia.com/{name}")
    read = re.findall(r"attributes\['gpu\.nvidia\.com'\](\S{0,3})", text)
    assert set(read) <= {".?r", ".?t", ".?p", ""}  # optional fields, or the map itself


def test_a_name_that_may_be_unserved_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["mig-9g.9gb", "mig-3g.9gb", "gpus", "foo", "mig-1g.10gb.me", "gpu.shared", "gpu.small"]
    file = tmp_path / "map.yaml"
    file.write_text(CONFIG_MAP)
    assert cli.main(["classes", *names, "--share-config", str(file)]) == 0
    slices, memory, typo, renamed = capsys.readouterr().err.splitlines()
    there = "no known card has such a MIG profile; there are profiles such as"
    assert slices == (
        f"warning: nvidia.com/mig-9g.9gb: {there} 1g.5gb, 2g.10gb, 3g.20gb, 4g.20gb, 7g.40gb"
    )
    assert memory.startswith(f"warning: nvidia.com/mig-3g.9gb: {there} 3g.20gb, 3g.40gb, ")
    assert typo == "warning: nvidia.com/gpus: the name is nvidia.com/gpu"
    assert renamed.startswith("warning: nvidia.com/foo: only shares that a share config gives ")


@pytest.mark.parametrize("card", sorted(CARDS.glob("*.yaml")), ids=lambda card: str(card.stem))
def test_the_profiles_of_all_known_cards_are_known(card: Path) -> None:
    for profile in (yaml.safe_load(card.read_text()).get("mig") or {}).get("profiles", ()):
        assert meant(f"nvidia.com/mig-{profile['name'].replace('+', '.')}") == ""


def test_names_come_from_a_share_config(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG)
    assert served_names(str(file)) == ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb"]


@pytest.mark.parametrize("wrapped", [False, True], ids=["alone", "in a list"])
def test_names_come_from_all_configs_of_a_config_map(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, wrapped: bool
) -> None:
    value: object = yaml.safe_load(CONFIG_MAP)
    text = yaml.safe_dump({"kind": "List", "items": [value]} if wrapped else value)
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert cli.main(["classes", "mig-1g.5gb", "--share-config", "-"]) == 0
    found = yaml.safe_load_all(capsys.readouterr().out)
    assert [one["spec"]["extendedResourceName"] for one in found] == [
        "nvidia.com/mig-1g.5gb",
        "nvidia.com/gpu.shared",
        "nvidia.com/gpu.small",
    ]


def test_a_wrong_config_is_reported_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "map.yaml"
    file.write_text(CONFIG_MAP.replace("replicas: 4", "replicas: many"))
    with pytest.raises(ConfigError, match=r"map\.yaml: data\.a100:5:.*replicas: must be a whole"):
        served_names(str(file))
    file.write_text("a: [")
    with pytest.raises(ConfigError, match=r"map\.yaml:1:5: not valid YAML"):
        served_names(str(file))


def test_a_file_without_a_share_config_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text("apiVersion: v1\nkind: Pod\n")
    with pytest.raises(ConfigError, match=r"pod\.yaml has no share config"):
        served_names(str(file))
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        served_names(str(tmp_path / "none"))
