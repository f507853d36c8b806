"""All commands of `dra-driver` and `kubectl gpu`, and how help and shells list them.

A sub-command that is not installed is not listed; calling it prints how to install it.
"""

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from types import MappingProxyType

import click
from click.shell_completion import CompletionItem

from dra_driver.cli import NODE_COMMANDS, PROGRAM, Command, main, unknown
from dra_driver.commands.command_line import HELP_SETTINGS, CommandSettings
from dra_driver.commands.for_people import click_command, not_installed
from dra_driver.errors import SetupError

KUBECTL = "kubectl gpu"


class SeparateCommand(Command, frozen=True, kw_only=True):
    """A sub-command in a distribution of its own; `missing` says how to install that.

    `needs` are its dependencies: a checkout has all distributions' code, but perhaps not these.
    """

    missing: str
    needs: tuple[str, ...] = ()

    def load(self) -> type[CommandSettings]:
        """Return the class of its settings. Raises SetupError if it is not installed."""
        if not self.is_installed():
            raise SetupError(self.missing)
        return super().load()

    def is_installed(self) -> bool:
        """Whether it and all that it needs are installed; they are not imported for that."""
        packages = (self.target.rpartition(".")[0], *self.needs)
        return all(importlib.util.find_spec(package) is not None for package in packages)


COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        **NODE_COMMANDS,
        "status": Command(target="dra_driver.admin.status.command:ShowStatus"),
        "usage": Command(target="dra_driver.admin.status.usage_command:ShowUsage"),
        "inspect": Command(target="dra_driver.admin.inspect.command:Inspect"),
        "health": Command(target="dra_driver.admin.health:Health"),
        "gather": Command(target="dra_driver.admin.gather.command:Gather"),
        "take-over": Command(target="dra_driver.admin.takeover.command:TakeOverCommand"),
        "cleanup": Command(target="dra_driver.admin.cleanup:Cleanup"),
        "doctor": Command(target="dra_driver.admin.doctor.command:Doctor"),
        "explain": Command(target="dra_driver.admin.explain.command:Explain"),
        "bench": SeparateCommand(
            target="dra_driver.bench.command:Bench",
            missing=not_installed("benchmark", "bench"),
            needs=("cuda", "matplotlib"),
        ),
        "validate": Command(target="dra_driver.admin.validate.command:Validate"),
        "convert": Command(target="dra_driver.admin.convert.command:Convert"),
        "classes": Command(target="dra_driver.admin.classes:Classes"),
        "simulate": SeparateCommand(
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
            "status": "show which pods have which GPUs, and what limits them",
            "usage": "show what uses the GPUs now, and how much of them",
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


def kubectl() -> int:
    """Run `kubectl gpu`, which kubectl finds by the name kubectl-gpu on the PATH."""
    return main(kubectl_words(sys.argv[1:]), program=KUBECTL)


def kubectl_words(words: Sequence[str]) -> list[str]:
    """Return the words of `dra-driver` for those of `kubectl gpu`."""
    return [*words[:1], *KUBECTL_COMMANDS.get(words[0], ()), *words[1:]] if words else []


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
        commands = {name: COMMANDS[name] for name in names}
        return [
            name
            for name, command in commands.items()
            if not isinstance(command, SeparateCommand) or command.is_installed()
        ]

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
        """Write a line for each use of the commands, without importing any."""
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
