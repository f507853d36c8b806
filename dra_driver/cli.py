"""The command `dra-driver`: finds the sub-command, parses its settings, reports errors on one line.

In: the command line. Out: an exit status: 0 done, 1 it failed (an error of our own tree), 2 the
command line or the environment is wrong. Each sub-command is a settings model with a `cli_cmd`;
its module is imported only when it is asked for, because start-up time is the sum of imports. A
sub-command that is not installed is not listed, and says how to get it when it is asked for.
"""

import difflib
import gc
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from types import MappingProxyType
from typing import TYPE_CHECKING, TextIO

from dra_driver.dataclass import dataclass
from dra_driver.errors import DriverError, SetupError

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_settings import BaseSettings


_SHORT = re.compile(r"^--(\w)(=|$)")
"""A flag of one letter with two dashes, as programs written in Go take it: --v=4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Where a sub-command lives, and what it does in one line.

    `missing` is for one that a distribution of its own brings, or that needs an extra: what to say
    where it is not there. `needs` are the packages of that extra.
    """

    module: str
    model: str
    summary: str
    missing: str = ""
    needs: tuple[str, ...] = ()

    def is_installed(self) -> bool:
        """Whether there is all that it needs; imports no more than its package."""
        if not self.missing:
            return True
        packages = (self.module.rpartition(".")[0], *self.needs)
        return all(importlib.util.find_spec(package) is not None for package in packages)


_NO_SIMULATOR = (
    "the simulator is not installed: production installs are without it; in a checkout of this "
    "project `make setup` brings it, and `pip install ./dra_driver/simulator` adds it to this "
    "install"
)

_NO_BENCH = (
    "what benchmarks need is not installed: NVIDIA's Python bindings and matplotlib come with the "
    "extra `bench`: pip install 'dra-driver[bench]'; the driver's image is without it"
)

COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "kubelet-plugin": Command(
            module="dra_driver.node.command",
            model="KubeletPluginCommand",
            summary="run the driver on a node",
        ),
        "mps-supervisor": Command(
            module="dra_driver.mps.supervisor.command",
            model="MpsSupervisor",
            summary="run the MPS control daemons that claims of this node ask for",
        ),
        "inspect": Command(
            module="dra_driver.admin.inspect",
            model="Inspect",
            summary="show this node's GPUs and what the driver would publish",
        ),
        "validate": Command(
            module="dra_driver.admin.validate.command",
            model="Validate",
            summary="check the claim configs and share configs in manifests",
        ),
        "convert": Command(
            module="dra_driver.admin.convert.command",
            model="Convert",
            summary="turn manifests of older APIs into what this driver takes",
        ),
        "classes": Command(
            module="dra_driver.admin.classes",
            model="Classes",
            summary="print the DeviceClasses behind resource names, for kubectl to apply",
        ),
        "status": Command(
            module="dra_driver.admin.status.command",
            model="ShowStatus",
            summary="show who has this node's GPUs and how, or what the cluster has left",
        ),
        "explain": Command(
            module="dra_driver.admin.explain.command",
            model="Explain",
            summary="say why a pod or claim does not fit, and what to change",
        ),
        "bench": Command(
            module="dra_driver.admin.bench.command",
            model="Bench",
            summary="measure which sharing strategy serves which work best",
            missing=_NO_BENCH,
            needs=("cuda", "matplotlib"),
        ),
        "cleanup": Command(
            module="dra_driver.admin.cleanup",
            model="Cleanup",
            summary="take everything of the driver from a node, after it was uninstalled",
        ),
        "doctor": Command(
            module="dra_driver.admin.doctor.command",
            model="Doctor",
            summary="look for what keeps pods from their GPUs, and say what to do",
        ),
        "simulate": Command(
            module="dra_driver.simulator.cli",
            model="Simulate",
            summary="simulate GPUs on a machine without any",
            missing=_NO_SIMULATOR,
        ),
        "slices": Command(
            module="dra_driver.simulator.slices_cli",
            model="Slices",
            summary="print what nodes with the GPUs of a profile would publish",
            missing=_NO_SIMULATOR,
        ),
    }
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command and return the exit status."""
    _open_standard_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words[0] if words else "", words[1:])
    except DriverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has had enough. Nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _open_standard_streams() -> None:
    """Give a process that was started without them its standard streams, on /dev/null.

    Else the next files and sockets get their numbers, and C libraries write complaints into them.
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


def _dispatch(name: str, rest: list[str]) -> int:
    if name in ("", "-h", "--help", "help"):
        print(usage(), file=sys.stdout if name else sys.stderr)
        return 0 if name else 2
    if name in ("-V", "--version", "version"):
        print(f"dra-driver {metadata.version('dra-driver')}")
        return 0
    if name not in COMMANDS:
        print(f"error: {_unknown(name)}", file=sys.stderr)
        return 2
    return run(COMMANDS[name], rest)


def run(command: Command, words: list[str]) -> int:
    """Parse a sub-command's settings and run it. Raises DriverError if that fails."""
    if not command.is_installed():
        raise SetupError(command.missing)
    # structlog would load rich, for coloured tracebacks, wherever some other package brought it
    # along: 5 MiB and 30 ms that a node agent has no use for. None makes the import fail.
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # Python allows None here
    # What imports make lasts. Collecting between them is a tenth of a start, and finds nothing.
    gc.disable()
    from pydantic import ValidationError
    from pydantic_settings import CliApp, SettingsError

    model: type[BaseSettings] = getattr(importlib.import_module(command.module), command.model)
    gc.freeze()
    gc.enable()
    try:
        CliApp.run(model, cli_args=[_SHORT.sub(r"-\1\2", word) for word in words])
    except ValidationError as error:
        if error.title != model.__name__:
            raise  # not about the command line
        for line in settings_errors(error, model):
            print(f"error: {line}", file=sys.stderr)
        return 2
    except SettingsError as error:
        print(f"error: {_wrong_words(str(error), model)}", file=sys.stderr)
        return 2
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    return 0


def usage() -> str:
    """Return the text of `dra-driver --help`."""
    installed = _installed()
    width = max(map(len, installed))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in installed.items()]
    return "\n".join(
        (
            "usage: dra-driver COMMAND [options]",
            "",
            "Kubernetes DRA driver for NVIDIA GPUs.",
            "",
            "commands:",
            *lines,
            "",
            "`dra-driver COMMAND --help` lists its options and their environment variables.",
            "`dra-driver --version` prints the version.",
        )
    )


def settings_errors(error: "ValidationError", model: "type[BaseSettings]") -> list[str]:
    """Return one line for each setting that is wrong: which, why, and what was given."""
    return [_setting_error(fault, model) for fault in error.errors(include_url=False)]


def _setting_error(fault: Mapping[str, object], model: "type[BaseSettings]") -> str:
    location = fault["loc"]
    name = str(location[0]) if isinstance(location, tuple) and location else ""
    where = f"{_flag(name)} (or {_variable(name, model)})" if name else "settings"
    if fault["type"] == "missing":
        return f"{where} is missing"
    reason = str(fault["msg"]).removeprefix("Value error, ")
    given = "" if fault["type"] == "value_error" else f", not {fault['input']!r}"
    return f"{where}: {reason[:1].lower()}{reason[1:]}{given}"


def _flag(name: str) -> str:
    return f"{'-' if len(name) == 1 else '--'}{name.replace('_', '-')}"


def _variable(name: str, model: "type[BaseSettings]") -> str:
    """Return a setting's environment variable; a prefix is for those without an alias."""
    field = model.model_fields.get(name)
    prefixed = field is not None and field.validation_alias is None
    return f"{model.model_config.get('env_prefix', '') if prefixed else ''}{name}".upper()


def _installed() -> Mapping[str, Command]:
    return {name: command for name, command in COMMANDS.items() if command.is_installed()}


def _unknown(name: str) -> str:
    installed = _installed()
    near = difflib.get_close_matches(name, installed, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(installed)}"
    return f"unknown command {name!r}: {hint}"


def _wrong_words(text: str, model: "type[BaseSettings]") -> str:
    text = text.removeprefix("error parsing CLI: ")
    flags = ["--" + field.replace("_", "-") for field in model.model_fields]
    unknown = next((word for word in text.split() if word.startswith("--")), "")
    near = difflib.get_close_matches(unknown.partition("=")[0], flags, n=1)
    return f"{text}: did you mean {near[0]}?" if near and near[0] not in text else text
