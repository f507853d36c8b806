"""Selectors of devices: what they are worth, and what makes them false."""

import time

import pytest

from cel_cases import DEVICE, DO_NOT, FAIL, SELECT
from dra_driver.admin.api.slices import read_slice
from dra_driver.admin.cel.parser import parsed
from dra_driver.admin.cel.selector import Fault, Selector, Subject
from dra_driver.admin.cel.values import EvaluationError, NotUnderstoodError

SUBJECT = (
    read_slice({"spec": {"driver": "gpu.nvidia.com", "pool": {"name": "p"}, "devices": [DEVICE]}})
    .devices[0]
    .subject
)


def doubled(first: str, following: str, last: str, times: int = 60) -> str:
    """An expression in which each of many values is made of two of the one before."""
    opening = f"cel.bind(v0, {first.format()}, "
    for number in range(1, times):
        opening += f"cel.bind(v{number}, {following.format(f'v{number - 1}')}, "
    return opening + last.format(f"v{times - 1}") + ")" * times


OWN = "device.attributes['gpu.nvidia.com']"


def selects(text: str) -> bool | None:
    """Whether it selects the device; None if it fails."""
    try:
        return Selector.of(text).selects(SUBJECT)
    except EvaluationError:
        return None


def test_selectors_work_and_fail_as_in_the_scheduler() -> None:
    assert [text for text in SELECT if selects(text) is not True] == []
    assert [text for text in DO_NOT if selects(text) is not False] == []
    assert [text for text in FAIL if selects(text) is not None] == []


@pytest.mark.parametrize(
    "text",
    [
        f"{OWN}.type.frobnicated()",
        "ip('10.0.0.1').family() == 4",
        "duration('1s') > duration('2s')",
        "'abc'.find('b') == 'b'",
        "sets.contains(['gpu'], ['gpu'])",
        "b'abc' == b'abc'",
        "quantity('1').add(1).isInteger()",
        "nobody == 1",
        "a b",
        "(((",
        "",
        "'open",
        "Message{a: 1}",
        "has(device)",
        "[?optional.of(1)].size() == 1",
        "1.0 / 0.0 > 1.0",
    ],
)
def test_unknown_functions_are_reported_and_not_guessed(text: str) -> None:
    with pytest.raises(NotUnderstoodError):
        Selector.of(text).selects(SUBJECT)


@pytest.mark.parametrize(
    "text",
    [
        "!" * 9000 + "true",
        "(" * 4000 + "true" + ")" * 4000,
        "true" + ".a" * 4000,
        "[1,2,3,4,5,6,7,8,9].all(a, " * 8 + "true" + ")" * 8,
        f"matches('{'a' * 9000}', 'b')",
        f"'{'a' * 9000}'.matches('b')",
        doubled("'aaaaaaaa'", "{0} + {0}", "'x' == {0}"),
        doubled("[1]", "[{0}, {0}]", "{0} == [[{0}]]"),
        doubled("[1]", "{0} + {0}", "{0} == [2]"),
        doubled("'a'", "{0}.replace('', {0})", "{0} == ''"),
        doubled("{{'a': 1}}", "{{'a': {0}, 'b': {0}}}", "{0} == {{}}"),
    ],
)
def test_nothing_that_a_tenant_writes_takes_long_or_ends_the_program(text: str) -> None:
    began = time.monotonic()
    with pytest.raises((NotUnderstoodError, EvaluationError)):
        Selector.of(text).selects(SUBJECT)
    assert time.monotonic() - began < 20


def test_a_regular_expression_that_is_slow_elsewhere_is_not() -> None:
    subject = Subject(driver="d", attributes={"name": "a" * 64})
    assert not Selector.of("device.attributes['d'].name.matches('^(a|aa|a*)*b$')").selects(subject)


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        (
            f"{OWN}.type == 'mig' && {OWN}.index == 3",
            [Fault(text=f"{OWN}.type == 'mig'", reads=(("gpu.nvidia.com/type", '"gpu"'),))],
        ),
        (
            f"{OWN}.type == 'mig' || {OWN}.index > 3",
            [
                Fault(text=f"{OWN}.type == 'mig'", reads=(("gpu.nvidia.com/type", '"gpu"'),)),
                Fault(text=f"{OWN}.index > 3", reads=(("gpu.nvidia.com/index", "3"),)),
            ],
        ),
        (
            f"!({OWN}.ok || {OWN}.index == 4)",
            [Fault(text=f"!({OWN}.ok)", reads=(("gpu.nvidia.com/ok", "true"),))],
        ),
        (
            f"cel.bind(gpu, {OWN}, gpu.type == 'gpu' && gpu.?profile.orValue('') == '1g.10gb')",
            [
                Fault(
                    text="gpu.?profile.orValue('') == '1g.10gb'",
                    reads=(("gpu.nvidia.com/profile", None),),
                )
            ],
        ),
        (
            "device.capacity['gpu.nvidia.com'].memory\n  .isGreaterThan(quantity('100Gi'))",
            [
                Fault(
                    text="device.capacity['gpu.nvidia.com'].memory "
                    ".isGreaterThan(quantity('100Gi'))",
                    reads=(("gpu.nvidia.com/memory", "80Gi"),),
                )
            ],
        ),
        (
            f"'rare' in {OWN}",
            [Fault(text=f"'rare' in {OWN}", reads=(("gpu.nvidia.com/rare", None),))],
        ),
        (
            f"{OWN}.ok ? device.driver == 'x' : true",
            [Fault(text="device.driver == 'x'", reads=(("driver", '"gpu.nvidia.com"'),))],
        ),
        (
            f"{OWN}.index == 4 ? true : false",
            [Fault(text=f"{OWN}.index == 4", reads=(("gpu.nvidia.com/index", "3"),))],
        ),
        (
            f"{OWN}.rare == 1",
            [Fault(text=f"{OWN}.rare == 1", reads=(("gpu.nvidia.com/rare", None),))],
        ),
        (
            f"['A100', 'H200'].exists(one, {OWN}.productName.contains(one))",
            [
                Fault(
                    text=f"['A100', 'H200'].exists(one, {OWN}.productName.contains(one))",
                    reads=(("gpu.nvidia.com/productName", '"NVIDIA H100 80GB"'),),
                )
            ],
        ),
    ],
)
def test_the_false_part_of_a_selector_is_named(text: str, faults: list[Fault]) -> None:
    assert list(Selector.of(text).faults(SUBJECT)) == faults


def test_a_part_of_an_expression_knows_its_place() -> None:
    text = " 1 +  2*3 == 7 "
    tree = parsed(text)
    assert text[tree.start : tree.end] == "1 +  2*3 == 7"


def test_long_values_are_cut() -> None:
    subject = Subject(driver="d", attributes={"name": "x" * 64})
    (fault,) = Selector.of("device.attributes['d'].name == ''").faults(subject)
    assert fault.reads == (("d/name", '"' + "x" * 58 + "…"),)
