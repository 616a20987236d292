"""Collects the contents of a page for ``mh.explore``: an atlas of the model, and results that fit nowhere in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mechheads.behaviour import HeadExamples, HeadProfile
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
N_KEYS = 8
"""How many keys of each query a view of a run shows, besides the first token."""
_KNOWN = (Atlas, HeadScores, TableResult, HeadCache, Model)
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
    """The contents of a page: an atlas, further results by name, and the model if it is among the arguments."""

    atlas: Atlas
    tables: dict[str, TableResult] = field(default_factory=dict)
    model: Model | None = None

    @property
    def patterns(self) -> HeadPatterns | None:
        """The patterns, if there is nothing else."""
        alone = not (self.tables or self.atlas.results or set(self.atlas.tables) - {"patterns"})
        return self.atlas.patterns if alone else None


def collect(what: Any, live: Model | None = None, head: HeadLike | None = None) -> Collected:
    """The contents of a page, from results, an atlas, runs and a model in lists and dicts, all of one model.
    Everything is checked before anything is run."""
    items = list(_flat("what", None, what))
    name, sizes = _one_model(items)
    if live is not None and not isinstance(live, Model):
        raise ValueError(f"model is {_short(live)}; give a model, such as mh.load()")
    if live is not None and (live.n_layers, live.n_heads) != sizes:
        raise ValueError(f"model is {live!r}, but the atlas is of {_size(sizes)} heads; give the model of the atlas")
    if head is not None:
        check_head(head, *sizes)
    results = [item for item in items if not isinstance(item.thing, (Atlas, Model))]
    for item in results:
        if isinstance(item.thing, HeadCache):
            check_length(item.thing.attention)
    model = next((item.thing for item in items if isinstance(item.thing, Model)), None)
    atlas = next((item.thing for item in items if isinstance(item.thing, Atlas)), None)
    if atlas is None and model is not None:
        atlas = _without(build_atlas(model, quick=True), results)
    atlas = atlas or Atlas(name or _A_MODEL, shape=sizes)
    copied = {"own": dict(atlas.own), "safety": dict(atlas.safety), "notes": list(atlas.notes)}
    collected = Collected(replace(atlas, model=name or _A_MODEL, **copied), {}, model)
    for item in results:
        _put(item, collected)
    return collected


@dataclass(frozen=True, eq=False)
class _Item:
    """One object to show.
    ``where`` is its name in messages, ``name`` its key in a dict, ``model`` and ``sizes`` its model's name and size.
    """

    where: str
    name: str | None
    thing: Any
    model: str
    sizes: Sizes | None


def _flat(where: str, name: str | None, what: Any) -> Iterator[_Item]:
    """The objects in nested lists and dicts, each with the nearest key."""
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
    """The name and the size of an object's model; empty and None if they are not known."""
    if isinstance(thing, Atlas):
        return thing.model, thing.sizes if thing.results or thing.tables else None
    if isinstance(thing, Model):
        return thing.name, (thing.n_layers, thing.n_heads)
    if isinstance(thing, HeadCache):
        if "pattern" not in thing.stores:
            raise ValueError(f'{where} is a run without patterns; give model.cache(prompts, sites=("pattern",))')
        return "" if thing.model is None else thing.model.name, (thing.n_layers, thing.n_heads)
    provenance = thing.provenance
    model, layers, heads = (provenance.get(name) for name in ("model", "n_layers", "n_heads"))
    name = model if isinstance(model, str) else ""
    scores = next(iter(thing.values())) if isinstance(thing, Roles) else thing
    if isinstance(scores, HeadScores):
        return name, (scores.n_layers, scores.n_heads)
    if isinstance(thing, HeadPatterns):
        return name, (thing.first.shape[0], thing.first.shape[1])
    return name, (layers, heads) if isinstance(layers, int) and isinstance(heads, int) else None


def _one_model(items: Sequence[_Item]) -> tuple[str, Sizes]:
    """The name of the one model of all items, empty if it is not known, and its size."""
    name = next((item.model for item in items if item.model), "")
    sizes = next((item.sizes for item in items if item.sizes is not None), None)
    atlases = [item for item in items if isinstance(item.thing, Atlas)]
    for item in items:
        if item.model not in ("", name):
            raise ValueError(
                f"{item.where} is of {item.model!r}, but other results are of {name!r}; a page shows one model: give "
                "the results of one, or a difference of scores (b - a)"
            )
        if item.sizes not in (None, sizes):
            raise ValueError(
                f"{item.where} is of {_size(item.sizes)} heads, but other results of {name or _A_MODEL!r} are of "
                f"{_size(sizes)}; give results of one size"
            )
        if item in atlases[1:]:
            raise ValueError(f"{item.where} is a second atlas; a page shows one")
    if sizes is None:
        if atlases:
            return name, atlases[0].thing.sizes  # says that it has no result
        raise ValueError(
            f"{items[0].where} is {_short(items[0].thing)}, which does not say how many heads its model has; give it "
            "together with scores of the model"
        )
    return name, sizes


def _put(item: _Item, collected: Collected) -> None:
    """Put one result in its place in the atlas, or among the tables."""
    atlas, thing = collected.atlas, item.thing
    place = next((place for kind, place in _PLACES.items() if isinstance(thing, kind)), None)
    if place is not None and getattr(atlas, place) is None:
        setattr(atlas, place, thing)
    elif isinstance(thing, SafetyHeads) and _is_ships(thing) and (ablation := _ablation(thing)) not in atlas.safety:
        atlas.safety[ablation] = thing
    elif isinstance(thing, Roles):
        for role, scores in thing.items():
            atlas.own[_unused(f"{item.name or thing.name}, {role}", atlas.own)] = scores
    elif isinstance(thing, HeadScores):
        atlas.own[_unused(item.name or thing.name or thing.kind, atlas.own)] = thing
    elif isinstance(thing, (HeadPatterns, HeadCache)):
        before = "" if item.name is None else f"{item.name}, "
        patterns = thing if isinstance(thing, HeadPatterns) else patterns_of(thing.attention, before)
        atlas.patterns = patterns if atlas.patterns is None else joined(atlas.patterns, patterns)
    else:
        title = f"{thing.kind.replace('_', ' ')}, {thing.name}" if isinstance(thing, Curves) else thing.name
        collected.tables[_unused(item.name or title, collected.tables)] = thing


def _is_ships(safety: SafetyHeads) -> bool:
    """Whether the heads were ranked by Ships, not by their contribution to refusals."""
    return safety.provenance.get("score", "ships") == "ships"


def _ablation(safety: SafetyHeads) -> str:
    return str(safety.provenance.get("ablation", "unknown"))


def patterns_of(attention: Attention, name: str = "") -> HeadPatterns:
    """The patterns of a run with the weights that a page shows; the names of its prompts begin with ``name``."""
    check_length(attention)
    return HeadPatterns.of([attention], [f"{name}prompt {i}" for i in range(len(attention.strings))], n_keys=N_KEYS)


def check_length(attention: Attention) -> None:
    """Raise a ValueError if a prompt is too long to be shown."""
    longest = max(map(len, attention.strings))
    if longest > MAX_TOKENS:
        raise ValueError(f"the longest prompt has {longest} tokens; a view shows at most {MAX_TOKENS}")


def _without(atlas: Atlas, results: Sequence[_Item]) -> Atlas:
    """A new atlas without the parts that the results replace."""
    for item in results:
        for place in (place for kind, place in _PLACES.items() if isinstance(item.thing, kind)):
            setattr(atlas, place, None)
        if isinstance(item.thing, SafetyHeads) and _is_ships(item.thing):
            atlas.safety.pop(_ablation(item.thing), None)
    return atlas


def _unused(name: str, taken: Mapping[str, Any]) -> str:
    """The name, with a number if it is taken."""
    numbered = (name if number == 1 else f"{name} ({number})" for number in range(1, len(taken) + 2))
    return next(each for each in numbered if each not in taken)


def _size(sizes: Sizes | None) -> str:
    return " x ".join(map(str, sizes or ()))


def _short(thing: Any) -> str:
    return one_line(repr(thing))
