"""Dataclasses that are made in half of the time: a node's process makes some 250 at its start.

To type checkers this is `dataclasses.dataclass` itself. At run time that compiles six functions for
each frozen class; here it compiles `__init__` alone, and what compares, hashes and shows values is
shared code that goes by the class's fields. That nobody changes a frozen value is for mypy to hold:
at run time nothing does. `fields`, `field` and `replace` of the standard library work as ever.
"""

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 (makes it public)
else:
    from collections.abc import Callable, Iterable
    from operator import attrgetter
    from reprlib import recursive_repr

    def dataclass(
        *,
        frozen: bool = False,
        slots: bool = False,
        kw_only: bool = False,
        eq: bool = True,
        order: bool = False,
    ) -> Callable[[type], type]:
        """Return what makes a class a dataclass, with these options of the standard library."""
        if order:  # few are
            return dataclasses.dataclass(frozen=frozen, slots=slots, kw_only=kw_only, order=True)

        def made(cls: type) -> type:
            cls = dataclasses.dataclass(cls, slots=slots, kw_only=kw_only, eq=False, repr=False)
            own = cls.__dict__
            if "__repr__" not in own:
                cls.__repr__ = _shown
            if eq and "__eq__" not in own:
                values = _values(one.name for one in dataclasses.fields(cls) if one.compare)
                cls.__eq__ = _equal(values)
                cls.__hash__ = _hashed(values) if frozen else None
            return cls

        return made

    def _values(names: Iterable[str]) -> Callable[[object], object]:
        names = tuple(names)
        return attrgetter(*names) if names else lambda _one: ()

    def _equal(values: Callable[[object], object]) -> Callable[[object, object], object]:
        def equal(self: object, other: object) -> object:
            if other.__class__ is not self.__class__:
                return NotImplemented
            return values(self) == values(other)

        return equal

    def _hashed(values: Callable[[object], object]) -> Callable[[object], int]:
        return lambda self: hash(values(self))

    @recursive_repr()
    def _shown(self: object) -> str:
        shown = (
            f"{one.name}={getattr(self, one.name)!r}"
            for one in dataclasses.fields(self)
            if one.repr
        )
        return f"{type(self).__qualname__}({', '.join(shown)})"
