"""Classes of settings: how words and variables become values, and what is wrong with them."""

from pathlib import Path
from typing import Literal

import pytest
import settings_page

from commands import parsed, told
from dra_driver.commands.command_line import (
    CommandSettings,
    WrongSettingsError,
    argument,
    bounds,
    option,
    shaped,
)


class Every(CommandSettings, variables=True, without_effect=("obsolete",)):
    kind: Literal["one", "other"] = option(default="one")
    numbers: list[int] = option(default=[1], check=bounds(least=1, most=9))
    rate: float = option(default=1.0, check=bounds(above=0))
    folder: Path | None = option(default=None, names=("directory",))
    form: Literal["", "a", "b"] = option(default="", short="f")
    name: str = option(default="x", check=shaped("[a-z]+", "small letters"))
    on: bool = option(default=True)

    def check(self) -> None:
        if self.form == "a" and not self.on:
            raise ValueError("form a is for what is on")


class Files(CommandSettings):
    files: list[str] = argument(metavar="FILE")


def test_words_become_values_of_the_fields_types() -> None:
    words = ("--kind=other", "--numbers=2,3", "--numbers", "4", "--rate=.5", "--directory=/a")
    found = parsed(Every, *words, "-f", "b", "--no-on")
    assert (found.kind, found.numbers, found.rate) == ("other", [2, 3, 4], 0.5)
    assert (found.folder, found.form, found.name, found.on) == (Path("/a"), "b", "x", False)
    assert found.given == {"kind", "numbers", "rate", "folder", "form", "on"}


def test_variables_become_values_and_an_empty_one_is_none() -> None:
    found = told(
        Every, {"NUMBERS": "2,3", "DIRECTORY": "/b", "ON": "false", "NAME": "", "OBSOLETE": "1"}
    )
    assert (found.numbers, found.folder, found.on, found.name) == ([2, 3], Path("/b"), False, "x")
    assert found.given == {"numbers", "folder", "on", "obsolete"}


def test_all_mistakes_are_listed_in_field_order() -> None:
    words = ("--name=A", "--rate=nan", "--kind=third", "--numbers=1,x", "--form=c")
    with pytest.raises(WrongSettingsError) as wrong:
        parsed(Every, *words)
    assert wrong.value.lines == [
        "--kind (or KIND): 'third' is not one of 'one', 'other'",
        "--numbers (or NUMBERS): 'x' is not a valid integer",
        "--rate (or RATE): must be a finite number, not nan",
        "--form (or FORM): 'c' is not one of 'a', 'b'",
        "--name (or NAME): must be small letters, not 'A'",
    ]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--rate=0",), "--rate (or RATE): must be greater than 0, not 0.0"),
        (("--numbers=0",), "--numbers (or NUMBERS): must be at least 1, not 0"),
        (("--numbers=3,10",), "--numbers (or NUMBERS): must be at most 9, not 10"),
        (("--form=a", "--no-on"), "form a is for what is on"),
        (
            ("--kind=othr",),
            "--kind (or KIND): 'othr' is not one of 'one', 'other': did you mean 'other'?",
        ),
    ],
)
def test_a_value_out_of_bounds_is_reported(words: tuple[str, ...], line: str) -> None:
    with pytest.raises(WrongSettingsError) as wrong:
        parsed(Every, *words)
    assert wrong.value.lines == [line]


def test_settings_made_by_code_are_checked_too() -> None:
    with pytest.raises(WrongSettingsError, match="small letters"):
        Every(name="A")
    with pytest.raises(WrongSettingsError, match="there is no such setting"):
        Every(nothing=1)  # type: ignore[call-arg]


def test_an_argument_takes_all_there_are_and_is_missed() -> None:
    assert parsed(Files, "a,b", "c").files == ["a,b", "c"]
    with pytest.raises(WrongSettingsError, match="FILE is missing"):
        parsed(Files)


@pytest.mark.parametrize("path", [path for path, _ in settings_page.helps()], ids=str)
def test_the_help_of_each_command_matches_its_sample(path: Path) -> None:
    """Read the difference as its users will, then run `make generate`."""
    assert (Path(__file__).parents[2] / path).read_text() == dict(settings_page.helps())[path]
