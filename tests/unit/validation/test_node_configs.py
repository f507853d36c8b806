"""Share configs by themselves and in ConfigMaps: found, and wrong at the right line."""

import json

import pytest

from dra_driver.admin.validate.findings import Finding, check_manifest

ALONE = """\
version: v1
sharing:
  timeSlicing:
    resources:
    - name: nvidia.com/gpu
      replicas: "4"
"""
CONFIG_MAP = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: device-plugin
data:
  a100: |
    version: v1
    sharing:
      mps:
        resources:
        - name: nvidia.com/gpus
          replicas: 10
  t4: |
    version: v1
  notes: |
    not: a config
    version: 3
"""


def only(text: str) -> Finding:
    (finding,) = check_manifest(text).findings
    return finding


def test_a_share_config_by_itself_is_checked() -> None:
    finding = only(ALONE)
    assert (finding.line, finding.column, finding.subject) == (6, 7, "share config")
    assert finding.text == (
        'sharing.timeSlicing.resources[0].replicas: must be a whole number, not "4"'
    )
    assert check_manifest(ALONE.replace('"', "")).configs == 1


def test_share_configs_in_a_config_map_are_checked_at_their_lines_in_the_manifest() -> None:
    report = check_manifest(CONFIG_MAP)
    (finding,) = report.findings
    assert (finding.line, finding.column) == (11, 11)
    assert finding.subject == "ConfigMap device-plugin"
    assert finding.text.startswith(
        "data.a100: sharing.mps.resources[0].name: nvidia.com/gpus cannot be divided: did you mean"
    )
    assert report.configs == 2


def test_a_text_that_is_quoted_stands_at_its_key() -> None:
    manifest = {
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": ALONE, "b": "version: v1"}}
        ],
    }
    finding = only(json.dumps(manifest, indent=1))
    assert (finding.line, finding.column) == (9, 5)
    assert finding.subject == "ConfigMap"
    assert finding.text.startswith(
        "items[0].data.a: line 6, column 7: sharing.timeSlicing.resources[0].replicas: "
    )


@pytest.mark.parametrize(
    ("text", "line", "error"),
    [
        ("    version: v1\n    sharing: {\n", 9, "not valid YAML"),
        ("    version: v1\n    ---\n    version: v1\n", 9, "a second document"),
        ("    sharing: {mps: {}}\n", 7, "sharing.mps.resources: no resources specified"),
        ("    version: v2\n    sharing: {mps: {}}\n", 7, "version: must be v1"),
    ],
)
def test_intended_share_configs_are_not_skipped(text: str, line: int, error: str) -> None:
    manifest = CONFIG_MAP.partition("    version")[0] + text
    findings = check_manifest(manifest).findings
    assert findings[0].line == line
    assert findings[0].text.startswith(f"data.a100: {error}")


@pytest.mark.parametrize(
    "text",
    [
        "version: v1\nmig-configs: {all-disabled: []}\n",
        'version: "3"\nservices: {}\n',
        "version: 1\n",
        "version: v1\nkind: Values\n",
        "sharing: on\n",
        "- version: v1\n",
    ],
)
def test_other_files_with_a_version_are_left_alone(text: str) -> None:
    inner = "".join(f"    {line}\n" for line in text.splitlines())
    wrapped = CONFIG_MAP.partition("    version")[0] + inner
    for manifest in (text, wrapped, wrapped.replace("apiVersion: v1", "apiVersion: x/v1")):
        assert check_manifest(manifest).configs == 0


def test_a_config_map_of_anything_else_is_passed_over() -> None:
    begin = "apiVersion: v1\nkind: ConfigMap\n"
    values = "{a: 'version: [', b: 1, c: '}{'}"
    report = check_manifest(f"{begin}data: {values}\n---\n{begin}data: [{values}]\n")
    assert (report.configs, report.findings) == (0, ())
