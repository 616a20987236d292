"""Cached runs of one model's prompts: each side of the pairs runs once, and several analyses share it.

Runs that differ only after some token share what comes before it.

Heads that ``given=`` ablates keep a z that is computed once, from the intact runs, whatever else is changed. So the
base run of a sweep is the run with these heads ablated, and the cone that a change recomputes is the same. The source
run of pairs is another run of the same ablated model: there, interventions get that run as base and as source run, so a
patch leaves it as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechheads.engine.rows import Window
from mechheads.engine.wavefront import Wave
from mechheads.heads import HeadId, HeadLike, check_heads
from mechheads.interventions.basic import Intervention, InterventionLike, Zero, as_intervention, needs_of
from mechheads.interventions.new_z import CheckedIntervention, all_new_z, new_z
from mechheads.limits import Limits
from mechheads.model.core import ModelCore
from mechheads.model.model import Model
from mechheads.model.parts import moved
from mechheads.prompts.chats import as_here, noting
from mechheads.prompts.prompts import PromptPairs, Prompts
from mechheads.prompts.tokens import PromptLike, Tokens, Unpadded
from mechheads.runs.head_cache import HeadCache, cache_sizes, tokens_in_run
from mechheads.runs.head_tensor import LayerStore

_PROMPTS_AT_ONCE = 256
_PASS_COSTS = 128
"""The fixed cost of a pass, in tokens: reading the weights, and the steps of Python."""


def _other_tokens(
    model: ModelCore, base: Tokens, tokens: Tokens
) -> tuple[Window, Bool[Tensor, " prompt"], Int[Tensor, "prompt 1"]]:
    """The window from the first token that differs to the last, which prompts differ, and their last positions."""
    last = (tokens.on_cpu.lengths - 1)[:, None]
    differs = tokens.on_cpu.ids != base.on_cpu.ids
    other = differs.any(1)
    first = torch.where(other, differs.long().argmax(1), last[:, 0])
    return Window.from_start(first, last, model.backend.layout, tokens.ids.shape[1], tokens.ids.device), other, last


def run_sharing_prefix(base: HeadCache, tokens: Tokens, *, limits: Limits) -> HeadCache:
    """A run with every head's z. What its prompts share with the equally long ones of ``base`` is copied from there."""
    model, ids = base.need_model(), tokens.ids
    window, other, last = _other_tokens(model, base.tokens, tokens)
    if "keys" not in base.stores or 2 * window.width > ids.shape[1]:
        return HeadCache.together(model, [(tokens, ("z",))], limits=limits)[0]
    store = LayerStore(model.n_layers, len(tokens), base.stores["z"].on_disk)
    final = base.final.clone()
    step = max(1, tokens_in_run(model, limits, ids.shape[1]) // window.width)
    with torch.no_grad():
        for begin in range(0, len(tokens), step):
            rows = slice(begin, begin + step)
            part = window.rows(rows)
            real = part.start[:, None] + torch.arange(part.width) <= last[rows]
            prompt, inside = (real & other[rows, None]).nonzero().T
            prompt, inside, pos = (moved(x, ids.device) for x in (prompt, inside, part.start[prompt] + inside))

            def keep(
                layer: int, z: Tensor, rows: slice = rows, to: Any = (prompt, pos), of: Any = (prompt, inside)
            ) -> None:
                whole = base.stores["z"][layer][rows].clone()
                whole[to[0], :, to[1]] = z[of]
                store.add(layer, whole)

            new = Wave(base, rows, part).follow(part.take(model.backend.embed(ids[rows])[0]), keep)
            final[rows][prompt, pos] = new[prompt, inside]
    return HeadCache(model, tokens, {"z": store}, final, (model.n_heads, model.n_kv_heads))


def values_after(
    model: ModelCore, opening: Sequence[int], ids: Int[Tensor, " token"]
) -> list[Float[Tensor, "token kv d_head"]]:
    """The value vectors of single tokens after one opening, for each layer, in float32."""
    layout, device = model.backend.layout, ids.device
    prompts = torch.cat([torch.tensor(opening, device=device).expand(len(ids), -1), ids[:, None]], 1)
    parts: list[list[Tensor]] = [[] for _ in range(model.n_layers)]
    if layout == "whole":
        for some in prompts.split(_PROMPTS_AT_ONCE):
            v = HeadCache.run(model, [Unpadded(row) for row in some.tolist()], sites=("v",)).v
            for layer, part in enumerate(parts):
                part.append(v.layer(layer)[:, :, -1].float())
        return [torch.cat(part) for part in parts]
    base = HeadCache.run(model, [Unpadded(row) for row in prompts[:1].tolist()], sites=("keys", "values"))

    def keep(layer: int, values: Tensor) -> None:
        parts[layer].append(values[:, -1].float())

    with torch.no_grad():
        for some in prompts.split(_PROMPTS_AT_ONCE):
            last = torch.full((len(some), 1), len(opening))
            window = Window.from_start(last[:, 0], last, layout, some.shape[1], device)
            residual = window.take(model.backend.embed(some)[0])
            Wave(base, torch.zeros_like(some[:, 0]), window).follow(residual, keep, "v")
    return [torch.cat(part) for part in parts]


AnyPrompts = Prompts | PromptPairs | Sequence[PromptLike]


class CachedRuns:
    """Cached runs of some prompts, each computed when it is first needed; plain prompts have only the side "clean"."""

    def __init__(self, model: Model, prompts: Prompts | PromptPairs) -> None:
        self.model, self.prompts, self.reading = model, prompts, as_here()
        self.notes: dict[str, str] = {}  # how chats were read, such as the date that their template got
        with noting(self.notes):
            tokens = prompts.tokens(model)
        sides = tokens if isinstance(tokens, tuple) else (tokens,)
        self.tokens: dict[str, Tokens] = dict(zip(("clean", "corrupted"), sides, strict=False))
        self._cached: dict[str, HeadCache] = {}
        self._ablated: dict[str, Mapping[HeadId, Tensor]] = {}

    def sides(self, base: str) -> tuple[Tokens, Tokens | None]:
        """The tokens of the base run and, for pairs, of the source run."""
        if len(self.tokens) == 1:
            return self.tokens["clean"], None
        return self.tokens[base], self.tokens[other_side(base)]

    def run(self, side: str, sites: Sequence[str], limits: Limits, on_disk: bool | None = None) -> HeadCache:
        """The cached run of a side with at least these activations; the model runs again only if some are missing."""
        cached = self._cached.get(side)
        if cached is None or not set(sites) <= set(cached.stores):
            wanted = tuple(dict.fromkeys((*sites, *(() if cached is None else cached.stores))))
            how: Any = {"limits": limits, "ablated": self._ablated.get(side), "on_disk": on_disk}
            (cached,) = HeadCache.together(self.model, [(self.tokens[side], wanted)], **how)
            self._cached[side] = cached
        return cached

    def both(self, sites: Mapping[str, Sequence[str]], limits: Limits, on_disk: bool) -> list[HeadCache]:
        """The runs of one or two sides, in one pass if both fit into it.
        If only z of the second is needed and it shares most tokens with the first, these are not computed again."""
        side, *others = sites
        pos = self.tokens[side].ids.shape[1]
        most = 0 if on_disk or self.model.backend.on_disk is not None else tokens_in_run(self.model, limits, pos)
        fits = sum(tokens.ids.numel() for tokens in self.tokens.values()) <= most
        if others and fits and not self._cached and not self._ablated and self._saved_tokens(sites) < _PASS_COSTS:
            runs = HeadCache.together(self.model, [(self.tokens[s], sites[s]) for s in sites], limits=limits)
            self._cached = dict(zip(sites, runs, strict=True))
        base = self.run(side, sites[side], limits, on_disk)
        base.check_finite()
        for other in others:
            if other not in self._cached and set(sites[other]) <= {"z"} and not self._ablated:
                self._cached[other] = run_sharing_prefix(base, self.tokens[other], limits=limits)
        return [base, *(self.run(other, sites[other], limits, on_disk) for other in others)]

    def _saved_tokens(self, sites: Mapping[str, Sequence[str]]) -> int:
        """The tokens of the second side that need not be computed if the first side runs before it."""
        first, second = (self.tokens[side] for side in sites)
        window, _, _ = _other_tokens(self.model, first, second)
        wide, pos = 2 * window.width > first.ids.shape[1], first.ids.shape[1]
        return 0 if wide or {*sites[[*sites][1]]} != {"z"} else len(second) * (pos - window.width)

    def bytes(self, sites: Mapping[str, Sequence[str]]) -> int:
        """Memory that runs with these activations of each side take, in bytes."""
        each = (cache_sizes(self.model, self.tokens[side], of_side) for side, of_side in sites.items())
        return sum(sum(size.values()) for size in each)


def other_side(side: str) -> str:
    """The other side of pairs."""
    return "corrupted" if side == "clean" else "clean"


Given = Sequence[HeadLike] | HeadLike | Mapping[Any, InterventionLike]
"""Heads that are set to zero, or the intervention that ablates each."""
Ablated = tuple[tuple[HeadId, Intervention], ...]
"""The heads that are ablated all the time, in order, and how."""


def ablated_heads(given: Given | None, model: ModelCore) -> Ablated:
    """The heads that ``given=`` names, and how each is ablated."""
    if given is None:
        return ()
    try:
        heads = check_heads([*given] if isinstance(given, Mapping) else given, model.n_layers, model.n_heads)
    except ValueError as error:
        raise ValueError(f"given: {error}") from error
    if not isinstance(given, Mapping):
        return tuple((head, Zero()) for head in heads)
    rules: dict[HeadId, InterventionLike] = {HeadId.parse(head): rule for head, rule in given.items()}
    return tuple((head, as_intervention(rules[head], f"given[{str(head)!r}]")) for head in heads)


def ablated_runs(runs: CachedRuns, ablated: Ablated, base: str, limits: Limits) -> CachedRuns:
    """The runs of the same prompts with heads ablated, in one side as ``base``; the intact prompts run once more."""
    rules = [(head, CheckedIntervention(rule)) for head, rule in ablated]
    read = (site for _, rule in rules for site in (rule.site, *needs_of(rule.intervention)))
    sites = tuple(dict.fromkeys(("z", *read)))
    intact = {side: runs.run(side, sites, limits) for side in runs.tokens}
    for run in intact.values():
        run.claim()
    z: dict[str, dict[HeadId, Tensor]] = {}
    for side, run in intact.items():
        source = None if len(intact) == 1 else intact[other_side(side)] if side == base else run
        pos = run.tokens.ids.shape[1]
        rows = max(1, tokens_in_run(runs.model, limits, pos) // pos)
        z[side] = {}
        for head, rule in rules:
            on_z = rule.site == "z"
            of_all = None if on_z else all_new_z(runs.model, run, source, rule, None, [head.layer], rows)
            z[side][head] = new_z(rule, run, source, [head], None, of_all)[0][:, 0]
            rule.check_finite()
    other = copy(runs)
    other._cached, other._ablated = {}, dict(z)
    return other
