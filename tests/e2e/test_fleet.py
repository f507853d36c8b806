"""The fleet benchmark on two made-up nodes, on a cluster of its own: every pod gets its place."""

import json
import os
import sys
from pathlib import Path

import pytest
from testbed.commands import REPOSITORY, run

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e.conftest import missing
from e2e.kubernetes import KUBERNETES, needs

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.stream("two"),
    pytest.mark.long("tests/unit/hack/test_fleet.py"),
    needs(Feature.COUNTERS),
]

PODS = 8


def test_made_up_nodes_publish_and_pods_are_placed_on_them(tmp_path: Path) -> None:
    if reason := missing():
        if os.environ.get("E2E_REQUIRED") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    name = f"{os.environ.get('E2E_CLUSTER', 'e2e')[:8]}-fleet"
    version = ("--kubernetes", KUBERNETES) if KUBERNETES else ()
    output = tmp_path / "fleet.json"
    said = run(
        (
            *(sys.executable, REPOSITORY / "hack" / "bench" / "fleet", "--name", name, *version),
            *("--nodes", "2", "--pods", str(PODS)),
            *("--variants", "whole-only,auto-mig,shares,on-demand", "--output", output),
        ),
        timeout=400,
    )
    assert said.startswith("2 nodes of h100x8")
    (found,) = json.loads(output.read_text())["runs"]
    variants = found["variants"]
    assert {name: one["devices_of_a_node"] for name, one in variants.items()} == {
        "whole-only": 8,
        "auto-mig": 6 + 2 * 25,
        "shares": 8 + 80,
        "on-demand": 208,
    }
    assert {name: set(one["loads"]) for name, one in variants.items()} == {
        "whole-only": {"whole", "whole-extended"},
        "auto-mig": {"whole", "whole-extended", "1g"},
        "shares": {"whole", "whole-extended"},
        "on-demand": {"whole", "whole-extended", "1g"},
    }
    for one in variants.values():
        assert {load["placed"] for load in one["loads"].values()} == {PODS}
        assert one["stored"]["protobuf_bytes"] > 0
        assert one["writes_of_a_second_look"] == 0
    assert found["ratios"]["on-demand"]["devices of a node"] == 26
    assert set(variants["on-demand"]["allocator_us"]) == {
        "whole GPU, all free",
        "whole GPU, one free",
        "nvidia.com/gpu, all free",
        "1g.10gb, all free",
    }
    assert min(variants["on-demand"]["allocator_us"].values()) > 0
