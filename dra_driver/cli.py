"""The command `dra-driver`: finds the sub-command, parses its settings, reports errors on one line.

In: the command line. Out: an exit status: 0 done, 1 failed (one of our own errors), 2 the command
line or the environment is wrong. Each sub-command is a class of settings with a `cli_cmd`; its
module is imported only when it is needed, because start-up time is the sum of imports.
"""

import difflib
import gc
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TextIO

import click
from click.exceptions import NoSuchCommand
from click.shell_completion import shell_complete as complete
from msgspec import Struct

from dra_driver.commands.command_line import (
    HELP_SETTINGS,
    CommandSettings,
    SettingsCommand,
    WrongSettingsError,
)
from dra_driver.errors import DriverError
from dra_driver.host.printing import escaping

PROGRAM = "dra-driver"
COMPLETE = "_DRA_DRIVER_COMPLETE"
"""The variable by which a shell's script asks for completions."""
_WORDS = MappingProxyType({"help": "--help", "version": "--version"})


class Command(Struct, frozen=True, kw_only=True):
    """Where a sub-command's settings are, as MODULE:CLASS."""

    target: str

    def load(self) -> type[CommandSettings]:
        """Return the class of its settings. Raises SetupError if it is not installed."""
        # structlog would load rich, for coloured tracebacks, wherever some other package brought it
        # along: 5 MiB and 30 ms that a node agent has no use for. None makes the import fail.
        sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # Python allows None here
        # What imports make lasts. Collecting between them is a tenth of a start, and finds nothing.
        gc.disable()
        module, _, name = self.target.partition(":")
        model: type[CommandSettings] = getattr(importlib.import_module(module), name)
        gc.freeze()
        gc.enable()
        return model


NODE_COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "kubelet-plugin": Command(target="dra_driver.node.command:KubeletPluginCommand"),
        "mps-supervisor": Command(target="dra_driver.mps.supervisor.command:MpsSupervisor"),
    }
)
"""What a node runs; what people run is in admin/program.py, which a node does not load."""


def main(argv: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Run one command, or complete a command line, and return the exit status."""
    _open_standard_streams()
    if COMPLETE in os.environ:
        return complete(_root(program), {}, program, COMPLETE, os.environ[COMPLETE])
    with escaping():
        return _main(argv, program)


def _main(argv: Sequence[str] | None, program: str) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    words[:1] = [_WORDS.get(word, word) for word in words[:1]]
    try:
        return run(words, program)
    except DriverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (WrongSettingsError, click.ClickException) as error:
        for line in error.lines if isinstance(error, WrongSettingsError) else [_said(error)]:
            print(f"error: {line}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has had enough. Nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _open_standard_streams() -> None:
    """Open missing standard streams on /dev/null.

    Otherwise the next files and sockets get their numbers, and C libraries write messages into
    them.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 (for the process's life)


def run(words: list[str], program: str = PROGRAM) -> int:
    """Run a command line and return the exit status.

    Raises DriverError if the command fails, WrongSettingsError or click's ClickException if the
    line is wrong.
    """
    try:
        if program == PROGRAM and words and words[0] in NODE_COMMANDS:
            command: click.Command = SettingsCommand(words[0], NODE_COMMANDS[words[0]].load())
            parent = click.Context(click.Command(program), info_name=program, **HELP_SETTINGS)
            made = command.make_context(words[0], words[1:], parent=parent)
        else:
            command = _root(program)
            made = command.make_context(program, words)
        with made:
            command.invoke(made)
    except click.exceptions.NoArgsIsHelpError as shown:
        print(shown.format_message(), file=sys.stderr)
        return 2
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    return 0


def _root(program: str) -> click.Command:
    """Return all commands of a program, with those that people run."""
    commands: click.Command = importlib.import_module("dra_driver.admin.program").RootCommand(
        program
    )
    return commands


def _said(error: click.ClickException) -> str:
    """Return click's message in the form of our errors: which word is wrong, and which is meant."""
    if isinstance(error, click.NoSuchOption):
        return unknown("option", error.option_name, error.possibilities or ())
    if isinstance(error, NoSuchCommand) and error.ctx:
        there = list(getattr(error.ctx.command, "commands", ()))
        return unknown("command", error.command_name, there, f"{error.ctx.command_path} --help")
    text = error.format_message().rstrip(".")
    return f"{text[:1].lower()}{text[1:]}"


def unknown(what: str, word: str, known: Sequence[str], help_line: str = "--help") -> str:
    """Return the message for an unknown word, with a similar one or where all are listed."""
    near = difflib.get_close_matches(word, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"`{help_line}` lists what there is"
    return f"unknown {what} {word!r}: {hint}"
