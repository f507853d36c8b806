"""A fault as new code for existing functions, so that nothing has to be imported again.

In: a module's text without the fault and with it. Out: the functions of this process whose code the
fault changes, each with its new code; or nothing if what differs runs at import, as a constant, the
body of a class or an argument's default does.
"""

import gc
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from inspect import CO_OPTIMIZED
from types import CodeType, FunctionType

Live = Mapping[str, Sequence[FunctionType]]
"""The functions of each file, also those in decorators and properties."""


def live(files: Sequence[str]) -> Live:
    """Return the functions that were made from these files, in any holder."""
    functions: dict[str, list[FunctionType]] = {file: [] for file in files}
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType) and thing.__code__.co_filename in functions:
            functions[thing.__code__.co_filename].append(thing)
    return functions


def patches(
    file: str, texts: tuple[str, str], functions: Live
) -> Sequence[tuple[FunctionType, CodeType]] | None:
    """Return what to change for a fault, from one text to another; None if that is not enough."""
    old, new = (compile(text, file, "exec", dont_inherit=True) for text in texts)
    pairs = _changed(old, new)
    if not pairs:
        return None
    twice = Counter((code.co_qualname, code.co_firstlineno) for code in _all(old))
    changes = []
    for was, becomes in pairs:
        key = (was.co_qualname, was.co_firstlineno)
        same = [function for function in functions[file] if _key(function) == key]
        inner = f"{was.co_qualname}.<locals>."
        # What a decorator of the same module made at import keeps its code.
        is_held = any(own.__code__.co_qualname.startswith(inner) for own in functions[file])
        if not same or is_held or twice[key] > 1 or was.co_freevars != becomes.co_freevars:
            return None
        changes += [(function, becomes) for function in same]
    return changes


def _key(function: FunctionType) -> tuple[str, int]:
    return function.__code__.co_qualname, function.__code__.co_firstlineno


def _changed(old: CodeType, new: CodeType) -> Sequence[tuple[CodeType, CodeType]] | None:
    """Return the outermost functions that differ; None if other code differs, too."""
    if _own(old) != _own(new):
        return None
    pairs: list[tuple[CodeType, CodeType]] = []
    for own, other in zip(_nested(old), _nested(new), strict=True):
        if own.co_flags & CO_OPTIMIZED:  # a function, and not the body of a class
            pairs += [] if _whole(own) == _whole(other) else [(own, other)]
            continue
        inner = _changed(own, other)
        if inner is None:
            return None
        pairs += inner
    return pairs


def _nested(code: CodeType) -> list[CodeType]:
    return [const for const in code.co_consts if isinstance(const, CodeType)]


def _all(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in _nested(code):
        yield from _all(inner)


def _whole(code: CodeType) -> object:
    """Everything that determines what code does, with the code in it."""
    return _own(code), [_whole(inner) for inner in _nested(code)]


def _own(code: CodeType) -> object:
    """Everything that determines what code does, except lines and the code in it."""
    return (
        *(code.co_qualname, code.co_flags, code.co_code, code.co_exceptiontable),
        *(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount),
        *(code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars),
        [_constant(const) for const in code.co_consts if not _is_line(code, const)],
    )


def _is_line(code: CodeType, const: object) -> bool:
    """Tell whether a constant is the line of a class, as in Python 3.13 and newer."""
    return "__firstlineno__" in code.co_names and const == code.co_firstlineno


def _constant(value: object) -> object:
    """A value that differs from another if a program could tell: 1 is neither True nor 1.0."""
    if isinstance(value, CodeType):
        return CodeType, value.co_qualname
    if isinstance(value, tuple):
        return tuple, [_constant(member) for member in value]
    if isinstance(value, frozenset):
        return frozenset, sorted(repr(_constant(member)) for member in value)
    return type(value), repr(value)  # repr tells 0.0 from -0.0
