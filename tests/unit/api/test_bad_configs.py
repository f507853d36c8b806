import pytest

from bad_configs import BAD_CONFIGS
from resource_nvidia_com.decode import decode
from resource_nvidia_com.problems import InvalidConfigError


def test_the_models_refuse_each_with_its_error() -> None:
    for bad in BAD_CONFIGS:
        with pytest.raises(InvalidConfigError) as caught:
            decode(bad.parameters)
        assert str(caught.value) == bad.error
        assert "; ".join(problem.text for problem in caught.value.problems) == bad.error
