"""Checks of arguments that many functions share, read from annotations, and suggestions for unknown names."""

from __future__ import annotations

import difflib
import inspect
import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

F = TypeVar("F", bound=Callable[..., Any])


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """The sentence ``Did you mean "..."?`` for the end of an error message, or nothing if no known name is close."""
    if not isinstance(given, str) or not (plain := _plain(given)):
        return ""
    names = {_plain(name): name for name in known}
    found = difflib.get_close_matches(plain, names, n=1, cutoff=0.6)
    found = found or [name for name in sorted(names, key=len) if len(plain) > 3 and plain in name]
    return f' Did you mean "{names[found[0]]}"?' if found else ""


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).lower()


def check_known(name: str, value: object, known: Any) -> None:
    """Check that an argument is one of the known names, which may be a ``Literal``; the message lists them."""
    names: Collection[str] = get_args(known) or known
    if value not in names:
        meant = did_you_mean(value, names)
        raise ValueError(f"{name} is {value!r}; choose one of {', '.join(map(repr, names))}.{meant}")


@dataclass(frozen=True)
class Within:
    """The bounds of a number, in its annotation: ``window: Annotated[int, Within(least=16)]``."""

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf

    def __str__(self) -> str:
        words = {"above": self.above, "at least": self.least, "at most": self.most}
        return " and ".join(f"{word} {bound}" for word, bound in words.items() if math.isfinite(bound))

    def check(self, name: str, value: Any, *, whole: bool = False) -> None:
        """Check that an argument is a finite number within the bounds."""
        if not isinstance(value, Integral if whole else Real) or not math.isfinite(value):
            kind = f"a {'whole' if whole else 'finite'} number"
            raise ValueError(f"{name} is {value!r}; it must be {', '.join(filter(None, (kind, str(self))))}")
        number = float(value)
        if not (self.above < number and self.least <= number <= self.most):
            raise ValueError(f"{name} is {value!r}; it must be {self}")


Positive = Annotated[int, Within(least=1)]
NotNegative = Annotated[int, Within(least=0)]
AboveZero = Annotated[float, Within(above=0)]
Share = Annotated[float, Within(least=0, most=1)]


@dataclass(frozen=True)
class _Allowed:
    """What an annotation allows: choices, bounds, and flags, for which texts such as "no" would count as True."""

    names: tuple[Any, ...] = ()
    bounds: Within | None = None
    whole: bool = False
    flag: bool = False
    none: bool = False
    texts: bool = False
    others: bool = False

    @classmethod
    def read(cls, annotation: Any) -> _Allowed:
        """Read an evaluated annotation."""
        parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
        names = tuple(name for part in parts if get_origin(part) is Literal for name in get_args(part))
        bounded = {part: get_args(part) for part in parts if get_origin(part) is Annotated}
        bounds = [each for part in bounded.values() for each in part[1:] if isinstance(each, Within)]
        rest = {part for part in parts if get_origin(part) is not Literal and part not in bounded}
        return cls(
            names,
            bounds[0] if bounds else None,
            whole=any(part[0] is int for part in bounded.values()),
            flag=bool in rest,
            none=NoneType in rest,
            texts=str in rest,
            others=bool(rest - {NoneType, str, bool}),
        )

    def check(self, name: str, value: object) -> None:
        """Check an argument."""
        if (value is None and self.none) or (self.flag and _is_flag(value)):
            return
        free = self.texts if isinstance(value, str) else self.others
        if self.bounds is not None and (isinstance(value, Real) or not (free or self.names)):
            self.bounds.check(name, value, whole=self.whole)
        elif self.names and not free:
            check_known(name, value, self.names)
        elif self.flag and not free:
            raise ValueError(f"{name} is {value!r}; give True or False")


def _is_flag(value: Any) -> bool:
    """Whether it is True or False, of Python or NumPy, which need not be imported for it."""
    return isinstance(value, bool) or (getattr(value, "dtype", None) == "bool" and value.shape == ())


def check_arguments(of: Any, given: Mapping[str, object]) -> None:
    """Check arguments against the annotations of a function or a class: choices of ``Literal``, bounds and flags."""
    for name, allowed in _allowed(of).items():
        if name in given:
            allowed.check(name, given[name])


def bound(
    function: Callable[..., Any], known: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    """The arguments of a call, by name, without defaults; a TypeError names the keyword that may be meant."""
    names, unknown = known.parameters, [name for name in kwargs if name not in known.parameters]
    if unknown and not any(each.kind is each.VAR_KEYWORD for each in names.values()):
        wrong = f"{function.__name__}(): got an unexpected keyword argument {unknown[0]!r}"
        raise TypeError(f"{wrong}.{did_you_mean(unknown[0], names)}".removesuffix("."))
    try:
        return known.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{function.__name__}(): {error}") from None


def checked(function: F) -> F:
    """Decorator for a function whose keywords and arguments are checked as those of an analysis are."""
    known = inspect.signature(function)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        check_arguments(function, bound(function, known, args, kwargs).arguments)
        return function(*args, **kwargs)

    return cast(F, call)


@cache
def _allowed(of: Any) -> dict[str, _Allowed]:
    """What annotations say, without those that allow anything or are imported for type checkers alone."""
    found = {}
    for each in reversed(of.__mro__) if isinstance(of, type) else (inspect.unwrap(of),):
        names = vars(sys.modules[each.__module__]) if isinstance(each, type) else each.__globals__
        for name, annotation in inspect.get_annotations(each).items():
            try:
                found[name] = _Allowed.read(eval(annotation, names) if isinstance(annotation, str) else annotation)
            except (AttributeError, NameError, TypeError):
                continue
    return {name: allowed for name, allowed in found.items() if allowed.names or allowed.bounds or allowed.flag}


def check_at_least(least: float, **numbers: object) -> None:
    """Check that no argument is smaller than this, or no number."""
    for name, number in numbers.items():
        Within(least).check(name, number)
