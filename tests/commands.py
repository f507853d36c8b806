"""Settings of commands, read as their command lines are."""

import os
from collections.abc import Mapping
from typing import TypeVar
from unittest import mock

from dra_driver.commands.command_line import CommandSettings, SettingsCommand, variables_of

Settings = TypeVar("Settings", bound=CommandSettings)


def parsed(model: type[Settings], *words: str) -> Settings:
    """The settings of a command line, and of this process's environment."""
    command = SettingsCommand("command", model)
    with command.make_context("command", list(words)) as context:
        found = command.settings(context)
    assert isinstance(found, model)
    return found


def told(model: type[Settings], environment: Mapping[str, str]) -> Settings:
    """The settings of these variables alone."""
    with mock.patch.dict(os.environ, environment, clear=True):
        return parsed(model)


def variables(model: type[CommandSettings]) -> set[str]:
    """The environment variables that a command reads."""
    return {one for name, option in model.options.items() for one in variables_of(name, option)}
