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


def test_the_table_is_long_and_names_each_row_once() -> None:
    assert len({bad.name for bad in BAD_CONFIGS}) == len(BAD_CONFIGS) >= 40
