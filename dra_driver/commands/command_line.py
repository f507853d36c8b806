"""Commands as classes of settings, whose fields become options and arguments of `click`.

In: a class, and the arguments of a command line. Out: an object of the class with valid values, or
an error that names each invalid one. A flag overrides its variable, and an empty variable counts as
unset. `click` parses, converts, writes the help and completes.
"""

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from math import inf, isfinite
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import (
    Any,
    ClassVar,
    Final,
    Literal,
    NoReturn,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import click
from click.core import ParameterSource
from msgspec import Struct
from msgspec.structs import replace

Check = Callable[[Any], Any]
"""Returns the value, converted if necessary; raises ValueError with the reason if it is invalid."""

FILE: Final = "FILE"
"""The metavar of texts that are names of files, so that shells complete them."""
PLACES: Final = "Paths, each also an environment variable, such as PROC_ROOT"
"""The group of options that are paths; the last in each help."""
_VARIABLES: Final = "Settings, each also an environment variable, such as LOG_LEVEL"

HELP_SETTINGS: Final[dict[str, Any]] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
}

_REQUIRED: Final = object()
_MISSING: Final = "is missing"
_ONE_LETTER: Final = re.compile(r"^-(\w)=")
"""A flag in the form of programs written in Go: -v=4."""


class Option(Struct, frozen=True, kw_only=True):
    """A setting on the command line.

    Attributes:
        check: the check for a value that was set; for a list, for each item.
        names: further names, for flag and variable, in Python's form.
        variable: whether environment variables with these names set it, too.
        metavar: the placeholder in the help; empty: derived from the type.
        short: a flag of one letter.
        positional: it is an argument and not a flag.
        hidden: it is not in the help.
        group: the section of the help that lists it; empty for the first.
    """

    default: Any = _REQUIRED
    help: str = ""
    check: Check = lambda value: value
    names: tuple[str, ...] = ()
    variable: bool = False
    metavar: str = ""
    short: str = ""
    positional: bool = False
    hidden: bool = False
    group: str = ""

    @property
    def is_required(self) -> bool:
        """Whether there is no default."""
        return self.default is _REQUIRED

    def checked(self, value: Any) -> Any:
        """Check and return a value that was set. Raises ValueError, also if the value is one."""
        if isinstance(value, ValueError):
            raise value
        if isinstance(value, list):
            return [self.check(each) for each in value]
        return None if value is None else self.check(value)


def option(**attributes: Any) -> Any:
    """Declare a field of a settings class as an option; see Option."""
    return Option(**attributes)


def argument(**attributes: Any) -> Any:
    """Declare a field of a settings class as an argument; a list takes all arguments."""
    return Option(positional=True, **attributes)


def changed(shared: Any, **attributes: Any) -> Any:
    """Return an option that several commands share, with some of its attributes changed."""
    return replace(shared, **attributes)


def bounds(*, above: float = -inf, least: float = -inf, most: float = inf) -> Check:
    """Return a check for a finite number within bounds; `least` and `most` are included."""

    def check(value: float) -> float:
        if not isfinite(value):
            raise ValueError(f"must be a finite number, not {value}")
        if value <= above:
            raise ValueError(f"must be greater than {above}, not {value}")
        if value < least:
            raise ValueError(f"must be at least {least}, not {value}")
        if value > most:
            raise ValueError(f"must be at most {most}, not {value}")
        return value

    return check


def shaped(pattern: str, text: str) -> Check:
    """Return a check that a text matches a pattern; `text` describes the allowed values."""
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise ValueError(f"must be {text}, not {value!r}")
        return value

    return check


class WrongSettingsError(ValueError):
    """Invalid settings: one line for each, or for several that do not fit together."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        super().__init__("; ".join(lines))


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(option, argument))
class CommandSettings:
    """The settings of a command, and what it does.

    Fields are options; their types decide how values are parsed: bool, int, float, str, Path, a
    Literal, each of them or None, or a list of them, whose items are separated by commas. With
    `variables`, environment variables set all options, too. The options in `without_effect` are
    accepted and appear in `given`, but not in the help. The help ends with the command line
    `example`. `statuses` describes exit statuses that differ from those of most commands.
    """

    options: ClassVar[Mapping[str, Option]] = MappingProxyType({})
    example: ClassVar[str] = ""
    statuses: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(
        cls, *, variables: bool = False, without_effect: Iterable[str] = ()
    ) -> None:
        own = {name: setting for name, setting in vars(cls).items() if isinstance(setting, Option)}
        own |= {name: option(default="", hidden=True) for name in without_effect}
        if variables:
            own = {
                name: replace(setting, variable=True, group=setting.group or _VARIABLES)
                for name, setting in own.items()
            }
        cls.options = MappingProxyType({**own, **cls.options, **own})

    def __init__(self, **values: Any) -> None:
        wrong = dict.fromkeys(values.keys() - self.options.keys(), "there is no such setting")
        for name, setting in self.options.items():
            try:
                value = setting.checked(values[name]) if name in values else setting.default
            except ValueError as error:
                wrong[name] = str(error)
                continue
            self.__dict__[name] = value
            if value is _REQUIRED:
                wrong[name] = _MISSING
        self.__dict__["given"] = frozenset(values)
        if wrong:
            raise WrongSettingsError([self.line(name, reason) for name, reason in wrong.items()])
        try:
            self.check()
        except ValueError as error:
            raise WrongSettingsError([str(error)]) from error

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"settings are frozen: {name} cannot be set")

    @property
    def given(self) -> frozenset[str]:
        """The fields that were set explicitly."""
        return frozenset(self.__dict__["given"])

    def check(self) -> None:
        """Check settings that depend on each other. Raises ValueError; `line` words it."""

    def cli_cmd(self) -> None:
        """Run the command. Ends the process with SystemExit for a status other than 0."""
        raise NotImplementedError

    @classmethod
    def line(cls, name: str, reason: str) -> str:
        """Return an error's text about a field, named by its flag and environment variable."""
        if field := cls.options.get(name):
            variables = [f" (or {each})" for each in variables_of(name, field)[:1]]
            flag = field.metavar or name.upper() if field.positional else flags_of(name, field)[0]
            name = "".join([flag, *variables])
        return f"{name} {reason}" if reason == _MISSING else f"{name}: {reason}"


def flags_of(name: str, setting: Option) -> list[str]:
    """Return the flags of an option, its field's first, which is --from for `from_`."""
    flags = [f"--{each.removesuffix('_').replace('_', '-')}" for each in (name, *setting.names)]
    if len(name) == 1:
        return [f"-{name}", *flags]
    return [*flags, f"-{setting.short}"] if setting.short else flags


def variables_of(name: str, setting: Option) -> list[str]:
    """Return the environment variables of an option, its field's first."""
    return [each.upper() for each in (name, *setting.names)] if setting.variable else []


class SettingsCommand(click.Command):
    """A command whose settings are a class."""

    def __init__(self, name: str, model: type[CommandSettings]) -> None:
        self.model = model
        types = get_type_hints(model)
        super().__init__(
            name,
            params=[_parameter(field, setting, types) for field, setting in model.options.items()],
            help=inspect.getdoc(model),
            epilog=f"Example: {model.example}" if model.example else None,
            context_settings=HELP_SETTINGS,
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments as click does, but accept flags in Go's form, such as -v=4."""
        return super().parse_args(ctx, [_ONE_LETTER.sub(r"-\1", word) for word in args])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options as click does, but by section, with the paths last."""
        titles = {name: setting.group for name, setting in self.model.options.items()}
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)):
                sections.setdefault(titles.get(param.name) or "Options", []).append(record)
        if places := sections.pop(PLACES, None):
            sections[PLACES] = places
        if statuses := self.model.statuses:
            sections["Exit status"] = [(str(number), text) for number, text in enumerate(statuses)]
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records, col_max=30 if title == "Options" else 40)

    def invoke(self, ctx: click.Context) -> None:
        """Run the command. Raises WrongSettingsError."""
        self.settings(ctx).cli_cmd()

    def settings(self, ctx: click.Context) -> CommandSettings:
        """Return the parsed settings. Raises WrongSettingsError, which names all invalid ones."""
        given = {
            name: value
            for name, value in ctx.params.items()
            if ctx.get_parameter_source(name) in _GIVEN
        }
        return self.model(**given)


_GIVEN: Final = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


def _parameter(name: str, setting: Option, types: Mapping[str, Any]) -> click.Parameter:
    kind, is_list = _kind(types.get(name, str))
    common: dict[str, Any] = {
        "type": click.Path() if setting.metavar == FILE else kind,
        "required": setting.is_required,
        "help": setting.help or None,
        "metavar": setting.metavar or None,
    }
    if setting.positional:
        return _Argument([name], nargs=-1 if is_list else 1, **common)
    flags = flags_of(name, setting)
    if kind is bool and (setting.variable or setting.default):
        flags = [f"{flag}/--no-{flag[2:]}" for flag in flags]
    if setting.default and not setting.is_required:
        common["default"] = setting.default
    return _Option(
        [name, *flags],
        is_flag=kind is bool or None,
        multiple=is_list,
        envvar=variables_of(name, setting) or None,
        show_envvar=setting.variable and not setting.group,
        show_default=bool(setting.default),
        hidden=setting.hidden,
        **common,
    )


def _kind(annotation: Any) -> tuple[Any, bool]:
    """Return how click reads a value of a type, and whether there can be several."""
    parts = [arg for arg in get_args(annotation) if arg is not NoneType]
    if get_origin(annotation) is Literal:
        return _Choice([part for part in parts if part]), False
    if parts:  # a list, or a type or None
        return _kind(parts[0])[0], get_origin(annotation) is list
    return _PATH if annotation is Path else annotation, False


_PATH: Final = click.Path(path_type=Path)  # one for all: click looks up translations for each


class _Choice(click.Choice[str]):
    """A choice of words; the error for an unknown word suggests the most similar one."""

    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:
        near = difflib.get_close_matches(str(value), self.choices, n=1, cutoff=0.7)
        meant = f": did you mean {near[0]!r}?" if near else ""
        return super().get_invalid_choice_message(value, ctx).rstrip(".") + meant


class _Lenient(click.Parameter):
    """A parameter that returns an error as its value, so that the others are still parsed."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the value, or a ValueError."""
        if self.multiple and isinstance(value, tuple | list):
            value = [item for words in value for item in str(words).split(",")]
        try:
            processed = super().process_value(ctx, value)
        except click.BadParameter as error:
            return ValueError(error.message.rstrip("."))
        return list(processed) if isinstance(processed, tuple) else processed


class _Option(_Lenient, click.Option):
    def get_help_spec(self, ctx: click.Context) -> str:
        """Return its flag, without the names that other drivers use for it."""
        if self.secondary_opts:
            return f"--[no-]{self.opts[0].removeprefix('--')}"
        spec = super().get_help_spec(ctx)
        for flag in [flag for flag in self.opts if flag.startswith("--")][1:]:
            spec = spec.replace(f", {flag}", "")
        return spec


class _Argument(_Lenient, click.Argument):
    pass
