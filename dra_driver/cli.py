"""The command `dra-driver`: finds the sub-command, parses its settings, reports errors on one line.

In: the command line. Out: an exit status: 0 done, 1 failed (one of our own errors), 2 the command
line or the environment is wrong. Each sub-command is a class of settings with a `cli_cmd`; its
module is imported only when it is needed, because start-up time is the sum of imports. A
sub-command that is not installed is not listed, and tells how to get it when it is called.
"""

import difflib
import gc
import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from types import MappingProxyType
from typing import TextIO

import click
from click.exceptions import NoSuchCommand
from click.shell_completion import CompletionItem
from click.shell_completion import shell_complete as complete
from msgspec import Struct

from dra_driver.commands.command_line import (
    HELP_SETTINGS,
    CommandGroup,
    CommandSettings,
    WrongSettingsError,
    click_command,
    not_installed,
)
from dra_driver.errors import DriverError, SetupError
from dra_driver.host.printing import escaping

PROGRAM = "dra-driver"
KUBECTL = "kubectl gpu"
COMPLETE = "_DRA_DRIVER_COMPLETE"
"""The variable by which a shell's script asks for completions."""
_WORDS = MappingProxyType({"help": "--help", "version": "--version"})


class Command(Struct, frozen=True, kw_only=True):
    """Where a sub-command's settings are, as MODULE:CLASS.

    `missing` is the message if the sub-command is in a separate distribution that is not installed.
    `needs` are packages that it depends on, because a checkout has the code of all distributions.
    """

    target: str
    missing: str = ""
    needs: tuple[str, ...] = ()

    def load(self) -> type[CommandSettings] | type[CommandGroup]:
        """Return the class of its settings. Raises SetupError if it is not installed."""
        if not self.is_installed():
            raise SetupError(self.missing)
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

    def is_installed(self) -> bool:
        """Whether everything that it needs is installed; imports only its package."""
        if not self.missing:
            return True
        packages = (self.target.rpartition(".")[0], *self.needs)
        return all(importlib.util.find_spec(package) is not None for package in packages)


COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "kubelet-plugin": Command(target="dra_driver.node.command:KubeletPluginCommand"),
        "mps-supervisor": Command(target="dra_driver.mps.supervisor.command:MpsSupervisor"),
        "status": Command(target="dra_driver.admin.status.command:ShowStatus"),
        "usage": Command(target="dra_driver.admin.status.usage_command:ShowUsage"),
        "inspect": Command(target="dra_driver.admin.inspect.command:Inspect"),
        "health": Command(target="dra_driver.admin.health:Health"),
        "gather": Command(target="dra_driver.admin.gather.command:Gather"),
        "take-over": Command(target="dra_driver.admin.takeover.command:TakeOverCommand"),
        "cleanup": Command(target="dra_driver.admin.cleanup:Cleanup"),
        "doctor": Command(target="dra_driver.admin.doctor.command:Doctor"),
        "explain": Command(target="dra_driver.admin.explain.command:Explain"),
        "bench": Command(
            target="dra_driver.bench.command:Bench",
            missing=not_installed("benchmark", "bench"),
            needs=("cuda", "matplotlib"),
        ),
        "validate": Command(target="dra_driver.admin.validate.command:Validate"),
        "convert": Command(target="dra_driver.admin.convert.command:Convert"),
        "classes": Command(target="dra_driver.admin.classes:Classes"),
        "simulate": Command(
            target="dra_driver.simulator.cli:Simulate",
            missing=not_installed("simulator", "simulator"),
        ),
        "completion": Command(target="dra_driver.admin.completion:Completion"),
    }
)

GROUPS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "What a node runs": {
            "kubelet-plugin": "run the driver on a node",
            "mps-supervisor": "run the MPS daemons that this node's claims ask for",
        },
        "On a GPU node": {
            "status": "show who has which GPU, and what limits them",
            "usage": "show who uses how much of the GPUs now",
            "inspect": "show the GPUs, and what the driver would publish",
            "bench processes": "measure which sharing strategy suits your work",
            "health": "reset a sick GPU while the driver runs",
            "gather": "describe the node in an archive, for an issue",
            "take-over": "take over the claims of NVIDIA's DRA driver",
            "cleanup": "remove what the driver left, after it was uninstalled",
        },
        "Anywhere, with a kubeconfig": {
            "explain": "say why a pod or claim does not fit, and what to change",
            "status --cluster": "show what the cluster offers, and what is free",
            "bench pods": "measure which sharing strategy suits your work, in pods",
        },
        "On a node, in a pod, or anywhere": {
            "doctor": "find what keeps pods from their GPUs, and say what to do",
        },
        "At your desk, without a cluster": {
            "validate": "check the claim configs and share configs in manifests",
            "convert": "convert manifests of older APIs",
            "classes": "print the DeviceClasses that resource names need",
            "inspect --profile": "show what nodes with given GPUs would publish",
            "simulate": "simulate GPUs on a machine without any",
            "completion": "print a shell's completion script",
        },
    }
)
"""Commands by where people run them, as in docs/pictures/tools.svg, and what each does there."""
_ON_NODES = ("usage", "inspect", "gather", "take-over", "cleanup")


KUBECTL_COMMANDS: Mapping[str, Sequence[str]] = MappingProxyType(
    {"status": ("--cluster",)}
    | dict.fromkeys(("explain", "doctor", "classes", "validate", "convert"), ())
)
"""The sub-commands of `kubectl gpu`, for people without a node, with their options."""


def summary(name: str, *options: str) -> str:
    """Return what a command does, with these options."""
    wanted = " ".join((name, *options))
    lines = (pair for lines in GROUPS.values() for pair in lines.items())
    return next((text for line, text in lines if f"{line} ".startswith(f"{wanted} ")), "")


def main(argv: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Run one command, or complete a command line, and return the exit status."""
    _open_standard_streams()
    if COMPLETE in os.environ:
        return complete(RootCommand(program), {}, program, COMPLETE, os.environ[COMPLETE])
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


def kubectl() -> int:
    """Run `kubectl gpu`, which kubectl finds by the name kubectl-gpu on the PATH."""
    return main(kubectl_words(sys.argv[1:]), program=KUBECTL)


def kubectl_words(words: Sequence[str]) -> list[str]:
    """Return the words of `dra-driver` for those of `kubectl gpu`."""
    return [*words[:1], *KUBECTL_COMMANDS.get(words[0], ()), *words[1:]] if words else []


def run(words: list[str], program: str = PROGRAM) -> int:
    """Run a command line and return the exit status.

    Raises DriverError if the command fails, WrongSettingsError or click's ClickException if the
    line is wrong.
    """
    root = RootCommand(program)
    try:
        with root.make_context(program, words) as context:
            root.invoke(context)
    except click.exceptions.NoArgsIsHelpError as shown:
        print(shown.format_message(), file=sys.stderr)
        return 2
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    return 0


class RootCommand(click.Group):
    """The commands of a program, each imported when it is called."""

    def __init__(self, program: str) -> None:
        version = click.Option(
            ["-V", "--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_version,
            help="Show the version and exit.",
        )
        super().__init__(
            program,
            params=[version],
            help="Kubernetes DRA driver for NVIDIA GPUs.",
            no_args_is_help=True,
            context_settings=HELP_SETTINGS,
            options_metavar="",
            subcommand_metavar="COMMAND [OPTIONS]",
        )

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of what is installed."""
        del ctx
        names = KUBECTL_COMMANDS if self.name == KUBECTL else COMMANDS
        return [name for name in names if COMMANDS[name].is_installed()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command. Raises UsageError if it does not exist, SetupError if not installed."""
        names = self.list_commands(ctx)
        if cmd_name not in (names if self.name == KUBECTL else COMMANDS):
            if ctx.resilient_parsing:  # to complete the line
                return None
            raise click.UsageError(self._unknown(cmd_name, names), ctx)
        return click_command(cmd_name, COMMANDS[cmd_name].load())

    def _unknown(self, name: str, names: Sequence[str]) -> str:
        if self.name != KUBECTL or name not in COMMANDS:
            return unknown("command", name, names, f"{self.name} --help")
        run = f"{PROGRAM} {name}"
        if name in _ON_NODES:
            return f"{name} runs on a node: kubectl exec --namespace dra-driver POD -- {run}"
        return f"{name} is not a command of {KUBECTL}: run {run}"

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line for each thing that commands do, without importing any."""
        names = self.list_commands(ctx)
        groups: Mapping[str, Mapping[str, str]] = GROUPS
        if self.name == KUBECTL:
            groups = {"Commands": {name: self._summary(name) for name in names}}
        width = max(len(line) for lines in groups.values() for line in lines)
        for title, lines in groups.items():
            shown = [each for each in lines.items() if each[0].split()[0] in names]
            with formatter.section(title):
                formatter.write_dl([(line.ljust(width), text) for line, text in shown])

    def _summary(self, name: str) -> str:
        return summary(name, *(KUBECTL_COMMANDS[name] if self.name == KUBECTL else ()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands whose names begin with this, without importing any."""
        return [
            CompletionItem(name, help=self._summary(name))
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]


def _show_version(ctx: click.Context, _param: click.Parameter, value: object) -> None:
    if value and not ctx.resilient_parsing:
        print(f"dra-driver {metadata.version('dra-driver')}")
        ctx.exit()


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
