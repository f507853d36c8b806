"""Writes docs/settings.md: the flags of all sub-commands, with environment variables and defaults.

In: the sub-commands' settings models, as their command lines are made of them. Out: the page, and
the names of feature gates for the chart, below a folder that stands for the repository's root.
`hack/generate` runs it, and compares its output with the repository's. Sub-commands of the
simulator have a page of their own.
"""

import argparse
import importlib
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic_settings import CliSettingsSource

from dra_driver import cli, feature_gates, settings
from dra_driver.common_settings import CommandSettings
from dra_driver.feature_gates import FeatureGate, Meaning

PAGE = Path("docs/settings.md")
GATES = Path("manifests/chart/files/feature-gates.txt")
_HELP = re.compile(
    r"^(?P<what>.*?)"
    r"(?: \((?:(?P<required>required)|default: (?P<default>.*?)|default factory: [^)]*)\))?"
    r"(?: \[env: (?P<variables>[^]]*)\])?$",
    re.DOTALL,
)
_UNSET = {None, "", "unset", "[]"}
_HEAD = """\
# Settings

<!-- Written by hack/generate from the settings below dra_driver/: change those, not this page. -->

Every flag of every sub-command, as `dra-driver COMMAND --help` has it. A flag wins over its
environment variable, and an empty variable counts as unset. In an
[installation](install.md#values) the chart's values set most of them; the others are set by their
variables, in `kubeletPlugin.containers.gpus.env` and `mpsSupervisor.env`. A flag of one letter may
have one dash or two.
"""
_WITHOUT_EFFECT = """
### Accepted without effect

Settings of NVIDIA's driver that have no meaning here, so that a DaemonSet written for it works. The
log names once those that are set.

| flag | why it has no effect |
|---|---|
"""
_GATES = """
### Feature gates

Of NVIDIA's driver, by `--feature-gates A=true,B=false`. One that is not in this table, as a newer
driver may have it, is named in the log with those that are, and the driver starts without it. A
value other than true or false is an error.

| gate | from | here |
|---|---|---|
"""
_PROPOSALS = "https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu/issues/"


def parser_of(model: type[CommandSettings]) -> argparse.ArgumentParser:
    """The parser that pydantic-settings makes of a sub-command's settings."""
    source: CliSettingsSource[argparse.ArgumentParser] = CliSettingsSource(model)
    return source.root_parser


def rows(parser: argparse.ArgumentParser) -> Iterator[str]:
    """A row for each flag and argument."""
    for action in parser._actions:  # noqa: SLF001 (argparse has no other way to list them)
        if "--help" in action.option_strings or action.help == argparse.SUPPRESS:
            continue
        words = _HELP.fullmatch(" ".join((action.help or "").split()))
        if words is None:
            raise SystemExit(f"error: the help of {action.dest} cannot be read: {action.help}")
        names = [f"`{name}`" for name in action.option_strings] or [f"`{action.metavar}`"]
        variables = [f"`{one.strip()}`" for one in (words["variables"] or "").split("|") if one]
        what = words["what"]
        if isinstance(action.metavar, str) and action.metavar.startswith("{"):
            values = filter(None, action.metavar[1:-1].split(","))
            what += f" One of {', '.join(f'`{one}`' for one in values)}."
        default = words["default"]
        shown = "required" if words["required"] else "" if default in _UNSET else f"`{default}`"
        cells = (", ".join(names), ", ".join(variables), shown, escaped(what))
        yield "| " + " | ".join(cells) + " |"


def escaped(text: str) -> str:
    """A text as a cell of a table: with its bars escaped, and what looks like HTML as code."""
    return re.sub(r"(<[\w -]+>)", r"`\1`", text).replace("|", "\\|")


def section(name: str, command: cli.Command) -> str:
    """What the page says of a sub-command."""
    model = getattr(importlib.import_module(command.module), command.model)
    lines = [
        f"## {name}",
        "",
        f"`dra-driver {name}`: {command.summary}.",
        "",
        "| flag | variable | default | what |",
        "|---|---|---|---|",
        *rows(parser_of(model)),
    ]
    return "\n".join(lines) + "\n"


def without_effect() -> str:
    """The settings of NVIDIA's driver that are taken in vain."""
    return _WITHOUT_EFFECT + table(
        (f"--{name.replace('_', '-')}", reason) for name, reason in settings.IGNORED.items()
    )


def gates() -> str:
    """What each feature gate of NVIDIA's driver does here."""
    said = {Meaning.NOT_HERE: "no effect: "}
    lines = (
        f"| `{gate.name}` | {source(gate)} | {said.get(gate.meaning, '')}{escaped(gate.here)} |\n"
        for gate in feature_gates.FEATURE_GATES
    )
    return _GATES + "".join(lines)


def source(gate: FeatureGate) -> str:
    """The release that has a gate first, or a link to where it is proposed."""
    number = gate.source.removeprefix("#")
    return number if number == gate.source else f"proposed: [{gate.source}]({_PROPOSALS}{number})"


def known_gates() -> str:
    """The names of the gates, for the chart: a line for each."""
    return "".join(f"{name}\n" for name in sorted(feature_gates.KNOWN_FEATURE_GATES))


def table(pairs: Iterable[tuple[str, str]]) -> str:
    """Rows of a name and what is said of it."""
    return "".join(f"| `{name}` | {escaped(text)} |\n" for name, text in pairs)


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for name, command in cli.COMMANDS.items():
        if command.needs or not command.missing:
            parts.append(section(name, command))
        if name == "kubelet-plugin":
            parts[-1] += without_effect() + gates()
    return "\n".join(parts)


if __name__ == "__main__":
    for path, text in ((PAGE, page()), (GATES, known_gates())):
        target = Path(sys.argv[1]) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
