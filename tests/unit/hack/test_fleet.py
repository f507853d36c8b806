"""The fleet benchmark: what is published, what is asked for, and what is made of the numbers."""

import pytest
from bench.fleet.variants import (
    VARIANTS,
    Variant,
)
from testbed.apiserver.rules import check_slice

import make
from dra_driver.devices.model import Inventory

NODE = "node-1"


def hoppers(count: int = 2) -> Inventory:
    return make.inventory(*(make.gpu(minor, mig=make.mig()) for minor in range(count)))


class TestVariants:
    @pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
    def test_every_variant_publishes_slices_that_an_api_server_takes(
        self, variant: Variant
    ) -> None:
        pool = variant(hoppers(), NODE)
        for index in range(len(pool.contents)):
            spec = pool.spec(index, generation=1)
            check_slice({"kind": "ResourceSlice", "metadata": {"name": "one"}, "spec": spec}, None)
