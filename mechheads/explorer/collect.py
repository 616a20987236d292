"""Puts together what ``mh.explore`` is given: an atlas of the model, and the results that have no place in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from mechheads.behaviour import HeadExamples, HeadProfile
from mechheads.explorer.payload import shown_name
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
    """What is shown of a model: an atlas, results that are no scores by name, and the model if it was given."""

    atlas: Atlas
    tables: dict[str, TableResult] = field(default_factory=dict)
    model: Model | None = None

    @property
    def patterns(self) -> HeadPatterns | None:
        """The patterns, if there is nothing else."""
        alone = not (self.tables or self.atlas.results or set(self.atlas.tables) - {"patterns"})
        return self.atlas.patterns if alone else None


def collect(what: Any, live: Model | None = None, head: HeadLike | None = None) -> Collected:
    """What was given, of one model, from results, an atlas, runs and a model in lists and dicts; nothing is run."""
    given = _Given()
    for one in _flat("what", None, what):
        given.add(one)
    given.check()
    if live is not None:
        check_size(live, given.sizes)
    if head is not None and given.sizes is not None:
        check_head(head, *given.sizes)
    return given.collected()


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
    ``where`` is what messages call it, ``name`` its key in a dict, ``model`` and ``sizes`` what is known of its model.
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
    metadata = thing.provenance
    named, sizes = metadata.get("model"), (metadata.get("n_layers"), metadata.get("n_heads"))
    name = named if isinstance(named, str) else ""
    scores = next(iter(thing.values())) if isinstance(thing, Roles) else thing
    if isinstance(scores, HeadScores):
        return name, (scores.n_layers, scores.n_heads)
    if isinstance(thing, HeadPatterns):
        return name, (thing.first.shape[0], thing.first.shape[1])
    layers, heads = sizes
    return name, (layers, heads) if isinstance(layers, int) and isinstance(heads, int) else None


class _Given:
    """What was given; ``key``: the one under which the atlas or the model was given."""

    def __init__(self) -> None:
        self.first: _Item | None = None
        self.sizes: Sizes | None = None
        self.key: str | None = None
        self.atlas: Atlas | None = None
        self.model: Model | None = None
        self.results: list[_Item] = []

    @property
    def name(self) -> str:
        """The name of the model; empty if nothing says it."""
        return self.first.model if self.first is not None else ""

    def add(self, one: _Item) -> None:
        """Take one thing, which must be of the same model as those before."""
        if one.model and self.name not in ("", one.model):
            raise ValueError(
                f"{one.where} is of {one.model!r}, but other results are of {self.name!r}; a page shows one model: "
                "give the results of one, or a difference of scores (b - a)"
            )
        if one.model and self.first is None:
            self.first = one
        if one.sizes is not None and self.sizes not in (None, one.sizes):
            raise ValueError(
                f"{one.where} is of {_size(one.sizes)} heads, but other results of {self.name or _A_MODEL!r} are of "
                f"{_size(self.sizes)}; give results of one size"
            )
        self.sizes = self.sizes or one.sizes
        if isinstance(one.thing, (Atlas, Model)):
            self.key = self.key or one.name
        if isinstance(one.thing, Atlas):
            if self.atlas is not None:
                raise ValueError(f"{one.where} is a second atlas; a page shows one")
            self.atlas = one.thing
        elif isinstance(one.thing, Model):
            self.model = one.thing
        else:
            self.results.append(one)

    def check(self) -> None:
        """Raise a ValueError if it cannot be shown."""
        if self.atlas is not None and self.sizes is None:
            _ = self.atlas.sizes  # says that it has no result
        if self.sizes is None:
            first = self.results[0]
            raise ValueError(
                f"{first.where} is {_short(first.thing)}, which does not say how many heads its model has; give it "
                "together with scores of the model"
            )
        for one in self.results:
            if isinstance(one.thing, (HeadCache, Attention)):
                check_length(_attention(one.thing))

    @property
    def _shown(self) -> str:
        """What the page calls the model: its key, with its own name."""
        if not self.name:
            return self.key or _A_MODEL
        return self.name if self.key in (None, self.name) else f"{self.key} ({shown_name(self.name)})"

    def collected(self) -> Collected:
        """One atlas with everything in its place: a copy of that which was given, or a quick one of the model."""
        made = Collected(Atlas(self._shown, shape=self.sizes), {}, self.model)
        if self.atlas is not None:
            made.atlas = replace(
                self.atlas,
                model=self._shown,
                own=dict(self.atlas.own),
                safety=dict(self.atlas.safety),
                notes=list(self.atlas.notes),
            )
        for one in self.results:
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
    """The patterns of a run, as far as a page shows them; the names of its prompts begin with ``name``."""
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
