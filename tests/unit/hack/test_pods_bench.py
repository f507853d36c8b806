"""The benchmark of pods: what they ask for, what is seen of them, and what is made of it."""

import json

import pytest
from bench.pods.variants import CLAIMS, EXTENDED, PLUGIN, pod, template

from dra_driver.admin.validate.findings import check_manifest


class TestVariants:
    @pytest.mark.parametrize("variant", CLAIMS)
    def test_the_driver_takes_the_configs(self, variant: str) -> None:
        found = check_manifest(json.dumps(template(variant)))
        assert all(finding.severity == "warning" for finding in found.findings)
        assert found.configs == (variant in {"time-slicing", "mps"})

    def test_pods_of_the_device_plugin_are_those_of_the_resource_name(self) -> None:
        by_plugin, by_driver = (pod(variant, "one", "true") for variant in (PLUGIN, EXTENDED))
        assert by_plugin == by_driver
        (ctr,) = by_plugin["spec"]["containers"]
        assert ctr["resources"]["limits"] == {"nvidia.com/gpu": "1"}
        assert ctr["command"][-1] == "true"
