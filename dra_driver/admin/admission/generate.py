"""Writes what is generated from the config models: JSON schemas and the admission policies.

`hack/generate` runs it, and compares its output with the repository's files to see whether they
have drifted.
"""

import json
import sys
from pathlib import Path

from dra_driver.admin.admission.near_miss_policy import near_miss_policy_yaml
from dra_driver.admin.admission.policy import policy_yaml
from resource_nvidia_com.schema import json_schemas

SCHEMAS = Path("api/resource_nvidia_com/v1beta1/schema")
POLICY = Path("manifests/chart/files/claim-configs-policy.yaml")
NEAR_MISSES = Path("manifests/chart/files/near-misses-policy.yaml")


def generated() -> dict[Path, str]:
    """Return the text of each generated file, by its path in the repository."""
    schemas = {
        SCHEMAS / f"{kind}.json": json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
        for kind, schema in json_schemas().items()
    }
    return {**schemas, POLICY: policy_yaml(), NEAR_MISSES: near_miss_policy_yaml()}


def write_generated(root: Path) -> None:
    """Write every generated file below `root`."""
    for path, text in generated().items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_generated(Path(sys.argv[1]))
