"""docs/settings.md is what the settings models say, and other pages agree with it."""

import inspect
import re
import sys
from pathlib import Path

import settings_page

from dra_driver import cli
from dra_driver.command_line import variables_of
from dra_driver.feature_gates import KNOWN_FEATURE_GATES
from dra_driver.settings import IGNORED, Settings

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "settings.md").read_text()


def flags(text: str) -> set[str]:
    """The flags in the tables of a text."""
    rows = re.findall(r"^\| (`-.*?) \| .*? \| .* \|$", text, re.MULTILINE)
    return {flag for names in rows for flag in re.findall(r"`(-[\w-]+)`", names)}


def part(title: str) -> str:
    """What the page says of a sub-command."""
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_page_is_up_to_date() -> None:
    assert settings_page.page() == PAGE, "run make generate"


def test_every_setting_of_the_driver_has_one_row() -> None:
    driver = part("kubelet-plugin")
    named = flags(driver)
    for name in Settings.options:
        flag = "-v" if name == "v" else f"--{name.replace('_', '-')}"
        if name in IGNORED:
            assert re.search(
                rf"^\| .*`{flag}`.* \| {re.escape(settings_page.escaped(IGNORED[name]))} \|$",
                driver,
                re.MULTILINE,
            )
            assert flag not in named
        else:
            assert flag in named
    rows = re.findall(r"^\| (`[A-Z]\w+`.*?) \| .*? \|$", driver, re.MULTILINE)
    gates = [gate for row in rows for gate in re.findall(r"`(\w+)`", row)]
    assert sorted(gates) == sorted(KNOWN_FEATURE_GATES)


def test_commands_that_end_with_statuses_of_their_own_say_what_these_mean() -> None:
    services = {"kubelet-plugin", "mps-supervisor"}  # theirs are as those of all others
    models = {name: command.load() for name, command in cli.COMMANDS.items()}
    ending = {
        name
        for name, model in models.items()
        if "raise SystemExit(" in inspect.getsource(sys.modules[model.__module__])
    }
    assert {name for name, model in models.items() if getattr(model, "statuses", ())} == (
        ending - services
    )
    named = part("Exit statuses")
    assert all(f"\n| {name} | " in named for name in ending - services)


def test_what_a_row_says_is_what_the_model_says() -> None:
    assert "| `auto` | MIG devices for claims; on-demand: made on every GPU, " in part(
        "kubelet-plugin"
    )
    assert " One of `off`, `None`, `NoSchedule`, `NoExecute`. |\n" in part("kubelet-plugin")
    assert "| `--node-name` | required | " in part("kubelet-plugin")


def test_pages_name_flags_with_their_variables() -> None:
    pages = " ".join(page.read_text() for page in DOCS.glob("*.md"))
    named = re.findall(r"`(--[\w-]+)(?: [a-z-]+)?`\s\(`([A-Z_]{4,})`", pages)
    assert len(named) >= 5
    for flag, variable in named:
        name = flag.removeprefix("--").replace("-", "_")
        assert variable in variables_of(name, Settings.options[name]), flag
