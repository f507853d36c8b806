"""What `make hardware` tries on a card: each step is a test, and each answer a printed sentence."""

import pytest

from hardware.command import PLUGIN, Plugin
from hardware.every_step import STEPS
from hardware.questions import QUESTIONS
from hardware.run import Step
from hardware.steps import Verdict

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.leaves("all steps have one driver, which the run ends after the last"),
]

NOT_HERE = "a real GPU is asked by `make hardware` alone"


@pytest.fixture
def plugin(request: pytest.FixtureRequest) -> Plugin:
    """The run that `make hardware` has begun."""
    found: Plugin | None = request.config.pluginmanager.get_plugin(PLUGIN)
    if found is None:
        pytest.skip(NOT_HERE)
    return found


@pytest.fixture(autouse=True)
def logs_restored() -> None:
    """Keep the logging of `make hardware`, where other tests get back that of before."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Without a run one test is skipped in place of all."""
    steps = STEPS if metafunc.config.pluginmanager.has_plugin(PLUGIN) else STEPS[:1]
    metafunc.parametrize("step", steps, ids=[step.name for step in steps])


def test_on_the_card(step: Step, plugin: Plugin) -> None:
    run = plugin.run
    outcome = run.take(step)
    plugin.keep()
    if step.changes <= run.wishes.allow:  # others were named before
        run.say(outcome.sentence())
    mark = "(simulator) " if run.card.is_simulated else ""
    for question in QUESTIONS:
        if question.id in outcome.answers:
            run.say(f"  {question.text} {mark}{outcome.answers[question.id]}")
    if outcome.verdict is Verdict.LEFT_OUT:
        pytest.skip(outcome.reason)
    assert outcome.verdict is Verdict.PASSED, outcome.reason
