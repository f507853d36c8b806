"""What only commands for people need: sub-commands, and lines on standard output.

The processes of a node do not load it.
"""

import inspect
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import click

from dra_driver.commands.command_line import HELP_SETTINGS, CommandSettings, SettingsCommand


class CommandGroup:
    """A command with sub-commands; `statuses` applies to most of them."""

    statuses: ClassVar[tuple[str, ...]] = ()
    commands: ClassVar[Mapping[str, type[CommandSettings]]] = MappingProxyType({})


def click_command(
    name: str, model: type[CommandSettings] | type[CommandGroup]
) -> SettingsCommand | click.Group:
    """Return the command that click runs."""
    if issubclass(model, CommandSettings):
        return SettingsCommand(name, model)
    return click.Group(
        name,
        commands={name: SettingsCommand(name, command) for name, command in model.commands.items()},
        help=inspect.getdoc(model),
        context_settings=HELP_SETTINGS,
        no_args_is_help=True,
    )


def not_installed(name: str, folder: str) -> str:
    """Return how to install a distribution in `folder` of dra_driver/ that is missing."""
    return (
        f"the {name} or a package that it needs is not installed: in a checkout of this project, "
        f"`make setup` installs it, and `pip install ./dra_driver/{folder}` adds it to this install"
    )


def say(line: str) -> None:
    """Print a line on standard output."""
    sys.stdout.write(f"{line}\n")
