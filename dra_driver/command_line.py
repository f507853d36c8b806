"""Commands as classes of settings: flags, environment variables, checks, help and completion.

In: a class whose fields are options, and words of a command line. Out: an object of the class, all
of whose values are right, or an error that names each that is not. A flag wins over its variable,
an empty variable counts as unset. `click` parses, writes the help and completes.
"""

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, EnumType
from math import isfinite
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import (
    Any,
    ClassVar,
    Final,
    Literal,
    NoReturn,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
)

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem
from msgspec import Struct
from msgspec.structs import replace

Check = Callable[[Any], Any]
"""Returns the value, converted where it has to be; raises ValueError with what is wrong with it."""

_REQUIRED: Final = object()
FILE: Final = "FILE"
"""The metavar of texts that are names of files, so that shells complete them."""

_MISSING: Final = "is missing"
_ONE_LETTER: Final = re.compile(r"^-(\w)=")
"""A flag as programs written in Go take it: -v=4."""


class Option(Struct, frozen=True, kw_only=True):
    """A setting on the command line.

    Attributes:
        names: further names, for flag and variable, as they are for Python.
        variable: whether environment variables of these names set it, too.
        metavar: what stands for its value in the help; empty: by its type.
        short: a flag of one letter.
        positional: it is an argument and no flag.
        hidden: it is no part of the help.
    """

    default: object
    help: str
    names: tuple[str, ...]
    check: Check
    variable: bool
    metavar: str
    short: str
    positional: bool
    hidden: bool

    @property
    def is_required(self) -> bool:
        """Whether there is no default."""
        return self.default is _REQUIRED


def option(  # noqa: PLR0913 (the attributes of an Option)
    *,
    default: object = _REQUIRED,
    help: str = "",  # noqa: A002 (as in click)
    names: tuple[str, ...] = (),
    check: Check = lambda value: value,
    variable: bool = False,
    metavar: str = "",
    short: str = "",
    hidden: bool = False,
) -> Any:
    """Return what makes a field of a class of settings an option; see Option."""
    return Option(
        default=default,
        help=help,
        names=names,
        check=check,
        variable=variable,
        metavar=metavar,
        short=short,
        positional=False,
        hidden=hidden,
    )


def argument(
    *,
    default: object = _REQUIRED,
    help: str = "",  # noqa: A002 (as in click)
    check: Check = lambda value: value,
    metavar: str = "",
) -> Any:
    """Return what makes a field of a class of settings an argument; a list takes all there are."""
    made: Option = option(default=default, help=help, check=check, metavar=metavar)
    return replace(made, positional=True)


def changed(shared: Any, **attributes: Any) -> Any:
    """Return an option that several commands have, with some of its attributes changed."""
    return replace(shared, **attributes)


def bounds(
    *, above: float | None = None, least: float | None = None, most: float | None = None
) -> Check:
    """Return the check of a finite number within bounds; `least` and `most` are included."""

    def check(value: float) -> float:
        if not isfinite(value):
            raise ValueError(f"must be a finite number, not {value}")
        if above is not None and value <= above:
            raise ValueError(f"must be greater than {above}, not {value}")
        if least is not None and value < least:
            raise ValueError(f"must be at least {least}, not {value}")
        if most is not None and value > most:
            raise ValueError(f"must be at most {most}, not {value}")
        return value

    return check


def shaped(pattern: str, text: str) -> Check:
    """Return the check of a text that has to match a pattern; `text` says what it must be."""
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise ValueError(f"must be {text}, not {value!r}")
        return value

    return check


def items(check: Check) -> Check:
    """Return the check of a list, each of whose items has to pass a check."""
    return lambda values: [check(value) for value in values]


class WrongSettingsError(ValueError):
    """Settings that cannot be: by a field's name what is wrong with it, "" for several together."""

    def __init__(self, model: "type[CommandSettings]", reasons: Mapping[str, str]) -> None:
        self.lines = [_line(model.naming(name), reason) for name, reason in reasons.items()]
        super().__init__("; ".join(self.lines))


def _line(name: str, reason: str) -> str:
    joint = " " if reason == _MISSING else ": " if name else ""
    return f"{name}{joint}{reason}"


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(option, argument))
class CommandSettings:
    """The settings of a command, and what it does.

    Fields are options; their types say how words are read: bool, int, float, str, Path, a Literal,
    each of them or None, or a list of them, whose items are separated by commas. `variables` has
    all options set by environment variables, too; the options `without_effect` are taken, are
    fields of `given`, and are no part of the help. The help ends with the command line `example`,
    and has the options in `groups` under these titles, after all others.
    """

    options: ClassVar[Mapping[str, Option]] = MappingProxyType({})
    example: ClassVar[str] = ""
    groups: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})

    def __init_subclass__(
        cls, *, variables: bool = False, without_effect: Iterable[str] = ()
    ) -> None:
        own = {name: cls.__dict__.get(name) for name in inspect.get_annotations(cls)}
        found = {name: one for name, one in own.items() if isinstance(one, Option)}
        found |= {name: option(default="", hidden=True) for name in without_effect}
        if variables:
            found = {name: replace(one, variable=True) for name, one in found.items()}
        cls.options = MappingProxyType({**cls.options, **found})

    def __init__(self, **values: Any) -> None:
        checked, wrong = self.checked(values)
        if wrong:
            raise WrongSettingsError(type(self), wrong)
        self.__dict__.update(checked)
        self.__dict__["given"] = frozenset(values)
        try:
            self.check()
        except WrongSettingsError:
            raise
        except ValueError as error:
            raise WrongSettingsError(type(self), {"": str(error)}) from error

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"settings are frozen: {name} cannot be set")

    @property
    def given(self) -> frozenset[str]:
        """The fields that somebody set."""
        return frozenset(self.__dict__["given"])

    def check(self) -> None:
        """Check what the settings are together. Raises ValueError, or calls `refuse`."""

    def refuse(self, name: str, reason: str) -> NoReturn:
        """Raise WrongSettingsError for one setting."""
        raise WrongSettingsError(type(self), {name: reason})

    def cli_cmd(self) -> None:
        """Run the command. Ends the process with SystemExit for a status other than 0."""
        raise NotImplementedError

    @classmethod
    def checked(cls, values: Mapping[str, object]) -> tuple[dict[str, object], dict[str, str]]:
        """Return all fields with their values, and by field what is wrong with it."""
        found: dict[str, object] = {}
        wrong = dict.fromkeys(values.keys() - cls.options.keys(), "there is no such setting")
        for name, one in cls.options.items():
            if name not in values:
                found[name] = one.default
                if one.is_required:
                    wrong[name] = _MISSING
                continue
            value = values[name]
            try:
                found[name] = None if value is None else one.check(value)
            except ValueError as error:
                wrong[name] = str(error)
        return found, wrong

    @classmethod
    def naming(cls, name: str) -> str:
        """Return what an error's line calls a field."""
        one = cls.options.get(name)
        if one is None:
            return name
        if one.positional:
            return one.metavar or name.upper()
        variable = f" (or {variables_of(name, one)[0]})" if one.variable else ""
        return f"{flags_of(name, one)[0]}{variable}"


class CommandGroup:
    """A command with sub-commands."""

    commands: ClassVar[Mapping[str, type[CommandSettings]]] = MappingProxyType({})


def flags_of(name: str, one: Option) -> list[str]:
    """Return the flags of an option: that of its field first, which for `from_` is --from."""
    found = [f"--{each.removesuffix('_').replace('_', '-')}" for each in (name, *one.names)]
    short = one.short or (name if len(name) == 1 else "")
    return [f"-{short}", *found] if short == name else [*found, *([f"-{short}"] if short else [])]


def variables_of(name: str, one: Option) -> list[str]:
    """Return the environment variables of an option: that of its field first."""
    return [each.upper() for each in (name, *one.names)] if one.variable else []


def click_command(
    name: str, model: type[CommandSettings] | type[CommandGroup]
) -> "SettingsCommand | click.Group":
    """Return the command that click runs."""
    if issubclass(model, CommandGroup):
        return click.Group(
            name,
            commands={name: click_command(name, one) for name, one in model.commands.items()},
            help=inspect.getdoc(model),
            context_settings=HELP_SETTINGS,
            no_args_is_help=True,
        )
    return SettingsCommand(name, model)


HELP_SETTINGS: Final[dict[str, Any]] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
}


class SettingsCommand(click.Command):
    """A command whose settings are a class."""

    def __init__(self, name: str, model: type[CommandSettings]) -> None:
        self.model = model
        annotations = _annotations(model)
        params = [
            _parameter(field, one, annotations.get(field, str))
            for field, one in model.options.items()
        ]
        super().__init__(
            name,
            params=params,
            help=inspect.getdoc(model),
            epilog=f"Example: {model.example}" if model.example else None,
            short_help=(model.__doc__ or "").partition("\n")[0].rstrip("."),
            context_settings=HELP_SETTINGS,
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse words, as click does, but for flags of one letter as Go has them."""
        return super().parse_args(ctx, [_ONE_LETTER.sub(r"-\1", word) for word in args])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments, which click leaves out, and the options under their titles."""
        titles = {name: title for title, names in self.model.groups.items() for name in names}
        found: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            if isinstance(param, click.Argument):
                text = _help(self.model.options[str(param.name)], param.type)
                found["Arguments"].append((param.make_metavar(ctx), text))
            elif record := param.get_help_record(ctx):
                found.setdefault(titles.get(str(param.name), "Options"), []).append(record)
        for title, records in found.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def invoke(self, ctx: click.Context) -> None:
        """Run the command. Raises WrongSettingsError."""
        self.settings(ctx).cli_cmd()

    def settings(self, ctx: click.Context) -> CommandSettings:
        """Return the settings of parsed words. Raises WrongSettingsError, naming all wrong ones."""
        unreadable: dict[str, str] = ctx.meta.get(_UNREADABLE, {})
        given = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in ctx.params.items()
            if ctx.get_parameter_source(name) in _GIVEN and name not in unreadable
        }
        _, wrong = self.model.checked(given)
        if wrong or unreadable:
            wrong |= unreadable
            ordered = {name: wrong[name] for name in self.model.options if name in wrong}
            raise WrongSettingsError(self.model, ordered)
        return self.model(**given)


_UNREADABLE: Final = "dra_driver.command_line.unreadable"
_GIVEN: Final = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


def _annotations(model: type[CommandSettings]) -> dict[str, object]:
    found: dict[str, object] = {}
    for one in reversed(model.__mro__):
        found |= inspect.get_annotations(one)
    return found


def _parameter(name: str, one: Option, annotation: object) -> click.Parameter:
    kind, is_list = _kind(annotation)
    if one.metavar == FILE:
        kind = click.Path()
    metavar = one.metavar or None
    if one.positional:
        return _Argument(
            [name],
            type=kind,
            nargs=-1 if is_list else 1,
            required=one.is_required,
            metavar=metavar or name.upper(),
        )
    flags = flags_of(name, one)
    if kind is click.BOOL and (one.variable or one.default):
        flags = [f"{flag}/--no-{flag[2:]}" for flag in flags]
    return _Option(
        [name, *flags],
        type=_Items(kind) if is_list else kind,
        is_flag=kind is click.BOOL or None,
        multiple=is_list,
        envvar=variables_of(name, one) or None,
        show_envvar=one.variable,
        help=_help(one),
        hidden=one.hidden,
        metavar=metavar,
    )


def _help(one: Option, of: click.ParamType[Any] | None = None) -> str:
    text = one.help and f"{one.help[0].upper()}{one.help[1:].removesuffix('.')}."
    if isinstance(of, click.Choice):
        text = f"{text} One of: {', '.join(map(str, of.choices))}.".strip()
    if one.is_required:
        return text if one.positional else f"{text}  [required]"
    return f"{text}  [default: {shown}]" if (shown := shown_default(one)) else text


def shown_default(one: Option) -> str:
    """Return a default as people write it; empty if there is none."""
    if one.is_required or one.default in (None, "", False) or one.default == []:
        return ""
    if isinstance(one.default, list):
        return ",".join(map(str, one.default))
    return "true" if one.default is True else str(one.default)


class _Choice(click.Choice[str]):
    """One of some words; a wrong one is answered with the nearest of them, too."""

    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:
        near = difflib.get_close_matches(str(value), self.choices, n=1, cutoff=0.7)
        meant = f": did you mean {near[0]!r}?" if near else ""
        return super().get_invalid_choice_message(value, ctx).rstrip(".") + meant


def _kind(annotation: object) -> tuple[click.ParamType[Any], bool]:
    """Return how click reads a value of a type, and whether there can be several."""
    options = [one for one in get_args(annotation) if one is not NoneType]
    if get_origin(annotation) is Literal:
        return _Choice([str(one) for one in options if one != ""]), False
    if get_origin(annotation) is list:
        return _kind(options[0])[0], True
    if isinstance(annotation, EnumType):
        return _Choice([str(one.value) for one in cast("type[Enum]", annotation)]), False
    if options:  # a type or None
        return _kind(options[0])
    return _KINDS[annotation], False


_KINDS: Final[Mapping[object, click.ParamType[Any]]] = MappingProxyType(
    {
        bool: click.BOOL,
        int: click.INT,
        float: click.FLOAT,
        str: click.STRING,
        Path: click.Path(path_type=Path),
    }
)


class _Items(click.ParamType[list[object]]):
    """Items that are separated by commas."""

    def __init__(self, kind: click.ParamType[Any]) -> None:
        self._kind = kind
        self.name = kind.name

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return what stands for the items in the help."""
        return f"{self._kind.get_metavar(param, ctx) or self.name.upper()},…"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return what the first item can be."""
        return self._kind.shell_complete(ctx, param, incomplete)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[object]:
        """Return the items."""
        return [self._kind.convert(one, param, ctx) for one in str(value).split(",")]

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        """Return the one value of a variable."""
        return [rv]


class _Option(click.Option):
    """An option which does not keep others from being read if it cannot be."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the value, or note why it cannot be read."""
        return _noted(self, ctx, lambda: super(_Option, self).process_value(ctx, value))


class _Argument(click.Argument):
    """An argument which does not keep options from being read if it cannot be."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the value, or note why it cannot be read."""
        return _noted(self, ctx, lambda: super(_Argument, self).process_value(ctx, value))


def _noted(param: click.Parameter, ctx: click.Context, read: Callable[[], Any]) -> Any:
    try:
        found = read()
    except click.MissingParameter:
        reason = _MISSING
    except click.BadParameter as error:
        reason = error.message.rstrip(".")
    else:
        is_list = isinstance(param.type, _Items) and found
        return [each for items in found for each in items] if is_list else found
    if ctx.resilient_parsing:
        return None
    ctx.meta.setdefault(_UNREADABLE, {})[param.name] = reason
    return None
