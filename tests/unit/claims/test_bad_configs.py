import pytest

import make
from bad_configs import BAD_CONFIGS
from dra_driver.claims.model.claim import parse_claim
from dra_driver.claims.model.config import DeviceKind, group_by_config
from dra_driver.errors import ConfigError


def test_prepare_refuses_each_with_its_error() -> None:
    for bad in BAD_CONFIGS:
        entry = make.config()
        entry["opaque"]["parameters"] = bad.parameters
        claim = parse_claim(make.claim_object("gpu-0", configs=[entry]), "gpu.nvidia.com")
        with pytest.raises(ConfigError) as caught:
            group_by_config(claim, {"gpu-0": DeviceKind.GPU})
        assert str(caught.value) == f"spec.devices.config[0] of the claim: {bad.error}"
