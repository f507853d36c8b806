"""The generated protocols: the grpcio that they need; the end-to-end tests have a real kubelet."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_grpc_is_never_older_than_the_generator_of_our_stubs() -> None:
    # The generated code refuses to load under an older grpcio.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (pin,) = project["dependency-groups"]["generate"]
    (floor,) = (d for d in project["project"]["dependencies"] if re.match(r"grpcio>", d))
    generator = [int(part) for part in pin.rpartition("==")[2].split(".")]
    oldest = [int(part) for part in re.findall(r">=([\d.]+)", floor)[0].split(".")]
    assert oldest >= generator[: len(oldest)]
