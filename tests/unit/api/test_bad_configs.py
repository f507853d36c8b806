import pytest

from bad_configs import BAD_CONFIGS, BadConfig
from resource_nvidia_com.decode import decode
from resource_nvidia_com.problems import InvalidConfigError


@pytest.mark.parametrize("bad", BAD_CONFIGS, ids=lambda bad: str(bad.name))
def test_the_models_refuse_it_with_this_error(bad: BadConfig) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        decode(bad.parameters)
    assert str(caught.value) == bad.error
    assert "; ".join(problem.text for problem in caught.value.problems) == bad.error
