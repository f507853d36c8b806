"""What `make hardware` tries on a card: each step is a test, and each answer a printed sentence."""

import pytest

from hardware.command import PLUGIN
from hardware.every_step import STEPS
from hardware.questions import QUESTIONS
from hardware.run import Run
from hardware.steps import Step, Verdict

pytestmark = pytest.mark.gpu

NOT_HERE = "a real GPU is asked by `make hardware` alone"


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Run:
    """The run that `make hardware` has begun."""
    plugin = request.config.pluginmanager.get_plugin(PLUGIN)
    if plugin is None:
        pytest.skip(NOT_HERE)
    found: Run = plugin.run
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Without a run one test is skipped in place of all."""
    steps = STEPS if metafunc.config.pluginmanager.has_plugin(PLUGIN) else STEPS[:1]
    metafunc.parametrize("step", steps, ids=[step.name for step in steps])


def test_on_the_card(step: Step, run: Run) -> None:
    outcome = run.take(step)
    run.say(outcome.sentence())
    for one in QUESTIONS:
        if one.id in outcome.answers:
            run.say(f"  {one.text} {outcome.answers[one.id]}")
    if outcome.verdict is Verdict.LEFT_OUT:
        pytest.skip(outcome.reason)
    assert outcome.verdict is Verdict.PASSED, outcome.reason
