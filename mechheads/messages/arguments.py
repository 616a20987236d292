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
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Protocol, TypeVar, Union, cast, get_args, get_origin

F = TypeVar("F", bound=Callable[..., Any])


def did_you_mean(unknown: object, known: Iterable[str]) -> str:
    """The sentence ``Did you mean "..."?`` for the end of an error message, or nothing if no known name is close."""
    if not isinstance(unknown, str) or not (plain := _plain(unknown)):
        return ""
    names = {_plain(name): name for name in known}
    close = difflib.get_close_matches(plain, names, n=1, cutoff=0.6)
    close = close or [name for name in sorted(names, key=len) if len(plain) > 3 and plain in name]
    return f' Did you mean "{names[close[0]]}"?' if close else ""


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).lower()


def check_known(name: str, value: object, known: Any) -> None:
    """Check that an argument is one of the known names, which may be a ``Literal``; the message lists them."""
    names: Collection[str] = [*(get_args(known) or known)]
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


_WORDS = {
    "Atlas": "an atlas, such as mh.studies.Atlas.load(folder)",
    "Gates": "the result of mh.fit_gates",
    "Iterable": "a list",
    "Job": "a job from mh.prepare",
    "Mapping": "a dict",
    "Model": "a model from mh.load or mh.wrap",
    "NoneType": "None",
    "PathLike": "a path",
    "PromptPairs": "mh.PromptPairs(clean=[...], corrupted=[...])",
    "Prompts": "mh.Prompts([...])",
    "Roles": "the result of mh.head_roles",
    "Sequence": "a list",
    "Task": "mh.Task(prompts=[...], targets=[...])",
    "bool": "True or False",
    "str": "a text",
}
"""How messages describe classes; a class that is not here has the name by which users import it."""


@dataclass(frozen=True)
class _Allowed:
    """What an annotation allows: choices, a number within bounds, classes, lists; or anything."""

    names: tuple[Any, ...] = ()
    bounds: Within | None = None
    whole: bool = False
    kinds: tuple[type, ...] = ()  # a text such as "no" would count as True, so a flag takes none
    lists: tuple[type, ...] = ()  # without choices, the function itself checks lists
    anything: bool = False  # only texts and choices are checked

    @classmethod
    def read(cls, annotation: Any) -> _Allowed:
        """Read an evaluated annotation."""
        names, kinds, lists, bounds, whole, anything = [], [], [], list[Within](), False, False
        for part in get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,):
            origin, args = get_origin(part), get_args(part)
            if origin is Literal:
                names += args
            elif origin is Annotated or part in (int, float):
                bounds += [each for each in args[1:] if isinstance(each, Within)] or [Within()]
                whole |= (args or (part,))[0] is int
            elif part in (None, NoneType, str, bool, Path):
                kinds.append(PathLike if part is Path else part or NoneType)
            elif isinstance(part, type) and part.__module__.startswith("mechheads.") and Protocol not in part.__bases__:
                kinds.append(part)
            elif origin in (Sequence, Iterable, Mapping, list, tuple):
                lists.append(origin)
            else:
                anything = True
        return cls(tuple(names), bounds[0] if bounds else None, whole, tuple(kinds), tuple(lists), anything)

    def check(self, name: str, value: object) -> None:
        """Check an argument."""
        if isinstance(value, self.kinds) or (bool in self.kinds and _is_flag(value)):
            return
        plain = value is None or isinstance(value, (str, Real))
        free = self.anything or isinstance(value, self.lists) or (bool(self.lists) and not self.names)
        others = {*self.names, *self.kinds, *self.lists} - {NoneType}
        if self.bounds is not None and (isinstance(value, Real) or not (free or others)):
            self.bounds.check(name, value, whole=self.whole)
        elif self.names and not self.lists and (isinstance(value, str) or not free):
            check_known(name, value, self.names)
        elif not free and not (plain and value in self.names):
            shown = repr(value) if plain else f"a {type(value).__name__}"
            words = [*map(repr, self.names), *["a whole number" if self.whole else "a number"] * bool(self.bounds)]
            words += [_WORDS.get(kind.__name__) or _imported_as(kind) for kind in (*self.kinds, *self.lists)]
            raise ValueError(f"{name} is {shown}; give {' or '.join(dict.fromkeys(words))}")


def _imported_as(kind: type) -> str:
    """The name by which users import a class."""
    top = kind.__name__ in sys.modules["mechheads"].__all__
    return f"mh.{kind.__name__}" if top else f"mh.{kind.__module__.split('.')[1]}.{kind.__name__}"


def _is_flag(value: Any) -> bool:
    """Whether it is True or False, of Python or NumPy, which need not be imported for it."""
    return isinstance(value, bool) or (getattr(value, "dtype", None) == "bool" and value.shape == ())


def check_arguments(of: Any, arguments: Mapping[str, object]) -> None:
    """Check arguments against the annotations of a function or a class: choices of ``Literal``, bounds and classes.
    A text may be one of the choices, or any text if the annotation has ``str`` too. The items of lists are not checked.
    """
    for name, allowed in _allowed(of).items():
        if name in arguments:
            allowed.check(name, arguments[name])


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
    """Decorator for a function whose keywords and arguments are checked as an analysis' are."""
    known = inspect.signature(function)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        check_arguments(function, bound(function, known, args, kwargs).arguments)
        return function(*args, **kwargs)

    return cast(F, call)


@cache
def _allowed(of: Any) -> dict[str, _Allowed]:
    """What the annotations of a function or a class allow; those that only type checkers can read are left out."""
    allowed = {}
    for each in reversed(of.__mro__) if isinstance(of, type) else (inspect.unwrap(of),):
        names = vars(sys.modules[each.__module__]) if isinstance(each, type) else each.__globals__
        for name, annotation in inspect.get_annotations(each).items():
            try:
                allowed[name] = _Allowed.read(eval(annotation, names) if isinstance(annotation, str) else annotation)
            except (AttributeError, NameError, TypeError):
                continue
    return allowed


def check_at_least(least: float, **numbers: object) -> None:
    """Check that each argument is a number and at least this large."""
    for name, number in numbers.items():
        Within(least).check(name, number)
