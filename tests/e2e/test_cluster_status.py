"""`dra-driver status --cluster` says what pods of a real scheduler have and could get."""

import json
import os

import pytest
from testbed.commands import run
from testbed.machine import DRIVER

from dra_driver.admin.doctor.facts.cluster_facts import Feature
from e2e.kubernetes import needs
from e2e.scene import Scene

pytestmark = [pytest.mark.e2e, needs(Feature.COUNTERS, Feature.EXTENDED_RESOURCE)]


def test_kubectl_finds_the_commands_as_its_plugin(scene: Scene) -> None:
    cluster = scene.node.cluster
    environment = {**os.environ, **cluster.env, "PATH": f"{DRIVER.parent}:{os.environ['PATH']}"}

    def kubectl(*words: str) -> str:
        return run((cluster.env["KUBECTL"], *words), env=environment)

    assert str(DRIVER.with_name("kubectl-gpu")) in kubectl("plugin", "list")
    (node,) = json.loads(kubectl("gpu", "status", "-o", "json"))["nodes"]
    assert node["name"] == cluster.node
    assert "explain\t" in kubectl("__complete", "gpu", "ex")
