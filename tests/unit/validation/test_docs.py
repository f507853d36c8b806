import re
from pathlib import Path

import pytest
import yaml

from bad_configs import VERSION
from dra_driver.admin.validate.findings import check_manifest
from dra_driver.admin.validate.objects import NO_KIND
from resource_nvidia_com.decode import MODELS, decode
from resource_nvidia_com.model import ConfigModel, part_of

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "claim-configs.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLES = [
    (page.name, number, text)
    for page in sorted(DOCS.glob("*.md"))
    for number, text in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")))
    if "resource.nvidia.com/" in text
]
PART = "claims get parts of devices only if the driver runs with --consumable-shares"


@pytest.mark.parametrize(("page", "number", "text"), EXAMPLES)
def test_every_config_that_the_docs_show_is_right(page: str, number: int, text: str) -> None:
    # A claim for a part of a device cannot tell which settings the driver has. Some show a part.
    told = [finding.text for finding in check_manifest(text).findings]
    findings = [one for one in told if PART not in one and one != NO_KIND.text]
    assert findings == []
    for value in yaml.safe_load_all(text):
        if isinstance(value, dict) and value.get("apiVersion") == VERSION:
            decode(value)


def test_every_field_is_explained() -> None:
    for model in MODELS.values():
        parts: list[type[ConfigModel]] = [model]
        while parts:
            for name, field in parts.pop().fields().items():
                assert name in PAGE
                part = part_of(field)
                parts += [part] if part else []
