"""Writes docs/settings.md, with the flags of the services, and all commands' help for the tests.

In: the commands' classes of settings. Out: the page and the text of each `--help`, below a folder
that stands for the repository's root. `hack/generate` runs it, and compares its output with the
repository's.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from dra_driver import cli
from dra_driver.admin import program as commands
from dra_driver.commands.command_line import (
    PLACES,
    CommandSettings,
    Option,
    flags_of,
)
from dra_driver.commands.for_people import click_command
from dra_driver.node import settings
from dra_driver.node.feature_gates import FEATURE_GATES

PAGE = Path("docs/settings.md")
HELPS = Path("tests/data/help")
SERVICES = ("kubelet-plugin", "mps-supervisor")
"""Commands whose flags are on the page, because people write them into manifests."""

_HEAD = """\
# Settings

<!-- Written by hack/generate from the settings below dra_driver/: change those, not this page. -->

These are the settings of the driver and of the MPS supervisor. Each is a flag and an environment
variable: `--node-name` and `NODE_NAME`. A flag overrides its variable, and an empty variable counts
as unset. In an installation, set them by [the chart's values](install.md#values).

For the flags of other commands, see `dra-driver COMMAND --help`. They read these variables, too,
for the flags that they share with the driver.
"""
_WITHOUT_EFFECT = """
### Accepted without effect

Flags of NVIDIA's DRA driver that have no meaning here are accepted. The log names those that are
set.

| flag | why it has no effect |
|---|---|
"""
_GATES = """
### Feature gates

`--feature-gates A=true,B=false` sets feature gates of NVIDIA's DRA driver. All but these are
accepted without effect, and the log names them: what they turn on is [always on here, or not
supported](compatibility.md#compared-with-nvidias-dra-driver).

| gate | here |
|---|---|
"""
_EXIT = """\
## Exit statuses

With every command, 2 can also mean a wrong command line or environment, and 130 is for Ctrl-C.
"""
_STATUSES = ("done; a service: it was told to end", "failed: the reason is on stderr")


def rows(model: type[CommandSettings]) -> Iterator[str]:
    """A row for each flag."""
    params = click_command("", model).params
    for param in sorted(params, key=lambda param: model.options[str(param.name)].group == PLACES):
        name = str(param.name)
        option = model.options[name]
        if option.hidden:
            continue
        what = option.help
        if isinstance(param.type, click.Choice) and not explains(what, param.type.choices):
            what += f" One of {code(value for value in param.type.choices if value)}."
        shown = "required" if option.is_required else code(filter(None, [shown_default(option)]))
        yield f"| {code(flags_of(name, option))} | {shown} | {escaped(what)} |"


def shown_default(option: Option) -> str:
    """A default as people write it; empty if there is none."""
    if isinstance(option.default, list):
        return ",".join(map(str, option.default))
    return "true" if option.default is True else str(option.default or "")


def explains(text: str, choices: Iterable[str]) -> bool:
    """Whether a text explains each choice already, such as `off: none`."""
    return all(f"{choice}:" in text for choice in choices if choice)


def code(names: Iterable[str]) -> str:
    """Names as code, with commas."""
    return ", ".join(f"`{name}`" for name in names)


def escaped(text: str) -> str:
    """A text as a cell of a table: its bars escaped, flags and what looks like HTML as code."""
    return re.sub(r"(?<![`\w-])(<[\w -]+>|--[a-z][\w-]*)", r"`\1`", text).replace("|", "\\|")


def section(name: str, command: cli.Command, told: dict[str, str]) -> str:
    """The page's section on a sub-command; its rows are added to `told`, each with its command."""
    model = command.load()
    if not issubclass(model, CommandSettings):
        raise TypeError(f"{name} has sub-commands, which need rows of their own")
    lines = [f"## {name}", "", f"`dra-driver {name}`: {commands.summary(name)}.", ""]
    every = list(rows(model))
    if own := [row for row in every if row not in told]:
        lines += ["| flag | default | what |", "|---|---|---|", *own]
    again = [row for row in every if row in told]
    for first in dict.fromkeys(told[row] for row in again):
        flags = code(row.split("`")[1] for row in again if told[row] == first)
        lines += ["", f"As for [{first}](#{first}): {flags}."]
    told |= dict.fromkeys(own, name)
    return "\n".join(lines) + "\n"


def without_effect() -> str:
    """The settings of NVIDIA's driver that have no effect."""
    return _WITHOUT_EFFECT + table(
        (f"`--{name.replace('_', '-')}`", reason) for name, reason in settings.IGNORED.items()
    )


def gates() -> str:
    """The effect of each of NVIDIA's feature gates here."""
    return _GATES + table((f"`{gate}`", here) for gate, here in FEATURE_GATES.items())


def table(pairs: Iterable[tuple[str, str]]) -> str:
    """Rows of names with the same text, in the order of their first names."""
    together: dict[str, list[str]] = {}
    for name, text in pairs:
        together.setdefault(text, []).append(name)
    return "".join(
        f"| {', '.join(names)} | {escaped(text)} |\n" for text, names in together.items()
    )


def exit_statuses() -> str:
    """The meaning of exit statuses: for commands with their own, then for all others."""
    models = {name: command.load() for name, command in commands.COMMANDS.items()}
    own = {name: model.statuses for name, model in models.items()}
    numbers = range(max(map(len, own.values())))
    lines = [f"| command | {' | '.join(map(str, numbers))} |", "|---" * (len(numbers) + 1) + "|"]
    for name, texts in {**own, "all others": _STATUSES}.items():
        cells = [texts[number] if number < len(texts) else "" for number in numbers]
        lines += [f"| {name} | {' | '.join(cells)} |"] if texts else []
    return "\n".join([_EXIT, *lines]) + "\n"


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    told: dict[str, str] = {}
    for name in SERVICES:
        parts.append(section(name, commands.COMMANDS[name], told))
        if name == "kubelet-plugin":
            parts[-1] += without_effect() + gates()
    return "\n".join([*parts, exit_statuses()])


def helps() -> Iterator[tuple[Path, str]]:
    """A file for each command, with what `--help` prints in a terminal of 100 columns."""
    for program in (cli.PROGRAM, commands.KUBECTL):
        root = commands.RootCommand(program)
        with click.Context(root, info_name=program, terminal_width=100) as context:
            yield HELPS / f"{program.replace(' ', '-')}.txt", root.get_help(context) + "\n"
            for name in root.list_commands(context) if program == cli.PROGRAM else ():
                command = click_command(name, commands.COMMANDS[name].load())
                yield HELPS / f"{name}.txt", "\n".join(texts(command, context))


def texts(command: click.Command, parent: click.Context) -> Iterator[str]:
    """The help of a command, and those of its own commands."""
    with click.Context(command, parent=parent, info_name=command.name) as context:
        yield command.get_help(context) + "\n"
        for sub_command in command.commands.values() if isinstance(command, click.Group) else ():
            yield from texts(sub_command, context)


if __name__ == "__main__":
    for path, text in ((PAGE, page()), *helps()):
        target = Path(sys.argv[1]) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
