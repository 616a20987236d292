"""Puts together what ``mh.explore`` is given: one atlas for each model, and the results that have no place in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from mechheads.behaviour import HeadExamples, HeadProfile
from mechheads.explorer.payload import shown_names
from mechheads.gating import Roles
from mechheads.heads import HeadLike, check_head
from mechheads.labels import HeadLabels
from mechheads.model.model import Model
from mechheads.results.scores import HeadScores
from mechheads.results.tables import Curves, TableResult
from mechheads.runs.head_cache import HeadCache
from mechheads.runs.head_tensor import Attention
from mechheads.safety.heads.safety_heads import SafetyHeads
from mechheads.studies.answers import one_line
from mechheads.studies.atlas import Atlas
from mechheads.studies.build import build_atlas
from mechheads.studies.head_patterns import HeadPatterns, joined

MAX_TOKENS = 2000
"""The longest prompt whose patterns are shown."""
KEPT = 8
"""Keys of each query that a view of a run shows, besides the first token."""
_KNOWN = (Atlas, HeadScores, TableResult, HeadCache, Attention, Model)
_PLACES: dict[type, str] = {
    HeadLabels: "labels",
    HeadProfile: "profile",
    Roles: "roles",
    HeadExamples: "examples",
}
"""The field of an atlas for each kind of result that has one."""
_WANTED = (
    "give scores (mh.HeadScores.from_scores makes them of an array), labels or another result, an atlas, a run, a "
    "model, or a list or dict of these"
)
_A_MODEL = "a model"

Sizes = tuple[int, int]


@dataclass
class Collected:
    """What is shown of one model.

    Attributes:
        atlas: its scores and patterns.
        tables: results that are no scores, by name.
        model: the model, if it was given.
    """

    atlas: Atlas
    tables: dict[str, TableResult] = field(default_factory=dict)
    model: Model | None = None

    @property
    def patterns(self) -> HeadPatterns | None:
        """The patterns, if there is nothing else."""
        alone = not (self.tables or self.atlas.results or set(self.atlas.tables) - {"patterns"})
        return self.atlas.patterns if alone else None


def collect(what: Any, live: Model | None = None, head: HeadLike | None = None) -> list[Collected]:
    """What was given, for each model: the first one first.

    Args:
        what: results, atlases, runs and models, in any mix, in lists and dicts.
        live: the model of the first, if it was given besides; only to check its size.
        head: a head of the first model; only to check that there is one.

    Raises:
        ValueError: if something cannot be shown, or sizes do not fit; before a model is run.
    """
    items = list(_flat("what", None, what))
    groups: list[_Group] = []
    for one in sorted(items, key=lambda one: not one.model):  # what names no model goes to one that is known
        _group_of(one, groups).add(one)
    groups.sort(key=lambda group: min(map(items.index, group.everything)))
    for group in groups:
        group.check()
    if len(groups) == 1 and groups[0].name not in ("", groups[0].shown):
        groups[0].shown += f" ({shown_names([groups[0].name])[0]})"
    if live is not None:
        check_size(live, groups[0].sizes)
    if head is not None and groups[0].sizes is not None:
        check_head(head, *groups[0].sizes)
    return [group.collected() for group in groups]


def check_size(model: Model, sizes: Sizes | None) -> None:
    """Raise a ValueError if something is no model, or has not as many heads as what is shown."""
    if not isinstance(model, Model):
        raise ValueError(f"model is {_short(model)}; give a model, such as mh.load()")
    if sizes is not None and (model.n_layers, model.n_heads) != sizes:
        raise ValueError(
            f"model is {model!r}, but the atlas is of {' x '.join(map(str, sizes))} heads; give the model of the atlas"
        )


@dataclass(frozen=True, eq=False)
class _Item:
    """One thing that was given.

    Attributes:
        where: what it is called in messages, such as ``what['mine']``.
        name: its key in a dict; None if it has none.
        model: the name of its model; "" if it is not known.
        sizes: layers and heads in a layer; None if they are not known.
    """

    where: str
    name: str | None
    thing: Any
    model: str
    sizes: Sizes | None


def _flat(where: str, name: str | None, what: Any) -> Iterator[_Item]:
    """Everything in lists and dicts, with the nearest key."""
    if isinstance(what, _KNOWN):
        yield _Item(where, name, what, *_of_model(where, what))
    elif isinstance(what, Mapping):
        if not what:
            raise ValueError(f"{where} is an empty dict; {_WANTED}")
        for key, value in what.items():
            if not isinstance(key, str):
                raise ValueError(
                    f"{where} has the key {_short(key)}; keys are the names that the page shows: give texts"
                )
            yield from _flat(f"{where}[{_short(key)}]", key, value)
    elif isinstance(what, (list, tuple)):
        if not what:
            raise ValueError(f"{where} is an empty {type(what).__name__}; {_WANTED}")
        for number, value in enumerate(what):
            yield from _flat(f"{where}[{number}]", name, value)
    else:
        raise ValueError(f"{where} is {_short(what)}; {_WANTED}")


def _of_model(where: str, thing: Any) -> tuple[str, Sizes | None]:
    """The name of the model that something is about, and its size."""
    if isinstance(thing, Atlas):
        return thing.model, thing.sizes if thing.results or thing.tables else None
    if isinstance(thing, Model):
        return thing.name, (thing.n_layers, thing.n_heads)
    if isinstance(thing, HeadCache):
        if "pattern" not in thing.stores:
            raise ValueError(f'{where} is a run without patterns; give model.cache(prompts, sites=("pattern",))')
        return "" if thing.model is None else thing.model.name, (thing.n_layers, thing.n_heads)
    if isinstance(thing, Attention):
        return "", thing.sizes
    about = thing.provenance
    named, sizes = about.get("model"), (about.get("n_layers"), about.get("n_heads"))
    name = named if isinstance(named, str) else ""
    scores = next(iter(thing.values())) if isinstance(thing, Roles) else thing
    if isinstance(scores, HeadScores):
        return name, (scores.n_layers, scores.n_heads)
    if isinstance(thing, HeadPatterns):
        return name, (thing.first.shape[0], thing.first.shape[1])
    layers, heads = sizes
    return name, (layers, heads) if isinstance(layers, int) and isinstance(heads, int) else None


def _group_of(one: _Item, groups: list[_Group]) -> _Group:
    """The group of the model that something is about; a new one if there is none."""
    if one.model and not isinstance(one.thing, Atlas):
        fitting = [group for group in groups if group.name == one.model]
        if fitting and None not in (one.sizes, fitting[0].sizes) and one.sizes != fitting[0].sizes:
            raise ValueError(
                f"{one.where} is of {_size(one.sizes)} heads of {one.model!r}, but other results of this model are of "
                f"{_size(fitting[0].sizes)}; give results of one size for each model"
            )
    elif one.model:
        fitting = [group for group in groups if group.name == one.model and group.atlas is None]
    else:
        fitting = [group for group in groups if one.sizes is None or group.sizes in (None, one.sizes)]
        fitting = fitting if len(fitting) == 1 else [group for group in fitting if not group.name]
    if not fitting:
        groups.append(_Group(one.model))
        fitting = groups[-1:]
    return fitting[0]


class _Group:
    """What was given of one model; ``shown``: what the page calls it, by the key under which it was given."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.shown = name
        self.sizes: Sizes | None = None
        self.atlas: Atlas | None = None
        self.model: Model | None = None
        self.given: list[_Item] = []
        self.everything: list[_Item] = []

    def add(self, one: _Item) -> None:
        self.everything.append(one)
        self.sizes = self.sizes or one.sizes
        if isinstance(one.thing, (Atlas, Model)):
            self.shown = one.name or one.model
        if isinstance(one.thing, Atlas):
            self.atlas = one.thing
        elif isinstance(one.thing, Model):
            self.model = one.thing
        else:
            self.given.append(one)

    def check(self) -> None:
        """Raise a ValueError if it cannot be shown."""
        if self.atlas is not None and self.sizes is None:
            _ = self.atlas.sizes  # says that it has no result
        if self.sizes is None:
            first = self.given[0]
            raise ValueError(
                f"{first.where} is {_short(first.thing)}, which does not say how many heads its model has; give it "
                "together with scores of the model"
            )
        for one in self.given:
            if one.sizes not in (None, self.sizes):
                raise ValueError(
                    f"{one.where} is of {_size(one.sizes)} heads, but other results of {self.name or _A_MODEL!r} are "
                    f"of {_size(self.sizes)}; give results of one size for each model"
                )
            if isinstance(one.thing, (HeadCache, Attention)):
                check_length(_attention(one.thing))

    def collected(self) -> Collected:
        """One atlas with everything in its place: a copy of that which was given, or a quick one of the model."""
        made = Collected(Atlas(self.shown or _A_MODEL, shape=self.sizes), {}, self.model)
        if self.atlas is not None:
            made.atlas = replace(
                self.atlas,
                model=self.shown,
                own=dict(self.atlas.own),
                safety=dict(self.atlas.safety),
                notes=list(self.atlas.notes),
            )
        for one in self.given:
            _put(one, made)
        if self.model is not None and self.atlas is None:
            made.atlas = _over(build_atlas(self.model, quick=True), made.atlas)
        return made


def _put(one: _Item, made: Collected) -> None:
    """Put one result in its place in the atlas, or beside it."""
    atlas, thing = made.atlas, one.thing
    place = next((place for kind, place in _PLACES.items() if isinstance(thing, kind)), None)
    if place is not None and getattr(atlas, place) is None:
        setattr(atlas, place, thing)
    elif isinstance(thing, SafetyHeads) and _is_ships(thing) and (of := _ablation(thing)) not in atlas.safety:
        atlas.safety[of] = thing
    elif isinstance(thing, Roles):
        for role, scores in thing.items():
            atlas.own[_unused(f"{one.name or thing.name}, {role}", atlas.own)] = scores
    elif isinstance(thing, HeadScores):
        atlas.own[_unused(one.name or thing.name or thing.kind, atlas.own)] = thing
    elif isinstance(thing, (HeadPatterns, HeadCache, Attention)):
        patterns = _patterns(one)
        atlas.patterns = patterns if atlas.patterns is None else joined(atlas.patterns, patterns)
    else:
        called = f"{thing.kind.replace('_', ' ')}, {thing.name}" if isinstance(thing, Curves) else thing.name
        made.tables[_unused(one.name or called, made.tables)] = thing


def _is_ships(safety: SafetyHeads) -> bool:
    """Whether the heads were found by Ships, not by their contribution to refusals."""
    return safety.provenance.get("score", "ships") == "ships"


def _ablation(safety: SafetyHeads) -> str:
    return str(safety.provenance.get("ablation", "unknown"))


def _patterns(one: _Item) -> HeadPatterns:
    """The patterns of a run, whose prompts have the name of the run and a number."""
    if isinstance(one.thing, HeadPatterns):
        return one.thing
    return patterns_of(_attention(one.thing), "" if one.name is None else f"{one.name}, ")


def _attention(run: HeadCache | Attention) -> Attention:
    return run.attention if isinstance(run, HeadCache) else run


def patterns_of(attention: Attention, name: str = "") -> HeadPatterns:
    """The patterns of a run, as far as a page shows them.

    Args:
        name: what the names of its prompts begin with.

    Raises:
        ValueError: if a prompt is too long.
    """
    check_length(attention)
    return HeadPatterns.of([attention], [f"{name}prompt {i}" for i in range(len(attention.strings))], kept=KEPT)


def check_length(attention: Attention) -> None:
    """Raise a ValueError if a prompt is too long to be shown."""
    longest = max(map(len, attention.strings))
    if longest > MAX_TOKENS:
        raise ValueError(f"the longest prompt has {longest} tokens; a view shows at most {MAX_TOKENS}")


def _over(below: Atlas, above: Atlas) -> Atlas:
    """An atlas in which what was given stands in the place of what was built."""
    given = {each.name: getattr(above, each.name) for each in fields(Atlas) if each.name in {*_PLACES.values(), "own"}}
    made = replace(below, model=above.model, **{name: value for name, value in given.items() if value})
    made.safety = {**below.safety, **above.safety}
    if above.patterns is not None:
        made.patterns = above.patterns if below.patterns is None else joined(below.patterns, above.patterns)
    return made


def _unused(name: str, taken: Mapping[str, Any]) -> str:
    """The name, with a number if it is taken."""
    numbered = (name if number == 1 else f"{name} ({number})" for number in range(1, len(taken) + 2))
    return next(each for each in numbered if each not in taken)


def _size(sizes: Sizes | None) -> str:
    return " x ".join(map(str, sizes or ()))


def _short(thing: Any) -> str:
    return one_line(repr(thing))
