"""The chart's policy of requests for several shares is there if all share configs refuse them."""

from pathlib import Path

import pytest

from charts import objects, of_kind

RESOURCES = "resources: [{name: nvidia.com/gpu, replicas: 4}]"
MPS = f"version: v1\nsharing:\n  mps:\n    {RESOURCES}\n"
SLICES = f"version: v1\nsharing:\n  timeSlicing:\n    {RESOURCES}\n"
FAILS = "    failRequestsGreaterThanOne: true\n"
COMBINES = "    failRequestsGreaterThanOne: false\n"
NOTHING = "version: v1\n"


@pytest.mark.parametrize(
    ("configs", "is_there"),
    [
        ([], False),
        ([NOTHING], False),
        ([MPS], True),
        ([MPS, NOTHING], True),
        ([MPS + FAILS, SLICES + FAILS], True),
        ([MPS + COMBINES], False),
        ([SLICES], False),
        ([SLICES + FAILS], True),
        ([MPS, SLICES], False),
        ([MPS, "sharing: wrong"], False),
        ([MPS, "sharing: {mps: wrong}"], False),
        ([MPS, "a: ["], False),
    ],
)
def test_it_is_there_where_every_share_config_refuses_such_requests(
    helm: str, tmp_path: Path, configs: list[str], is_there: bool
) -> None:
    words: list[object] = []
    for index, text in enumerate(configs):
        file = tmp_path / str(index)
        file.write_text(text)
        words += ["--set-file", f"config.map.c{index}={file}"]
    words += ["--set", "config.default=c0"] if configs else []
    things = objects(helm, *words)
    for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
        names = {one["metadata"]["name"] for one in of_kind(things, kind)}
        assert ("dra-driver-single-shares" in names) == is_there


def test_no_cleanup_leaves_it_behind(helm: str, tmp_path: Path) -> None:
    (tmp_path / "mps").write_text(MPS)
    words = (
        "--set-file",
        f"config.map.default={tmp_path / 'mps'}",
        "--set",
        "cleanup.enabled=true",
    )
    assert of_kind(objects(helm, *words), "ValidatingAdmissionPolicy") == []
