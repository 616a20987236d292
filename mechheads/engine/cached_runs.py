"""The cached runs of one model's prompts: each side of pairs is run once, for all analyses that are given them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mechheads.engine.shared_prefix import run_sharing_prefix
from mechheads.limits import Limits
from mechheads.model.model import Model
from mechheads.prompts.prompts import PromptPairs, Prompts, as_prompts
from mechheads.prompts.tokens import PromptLike, Tokens
from mechheads.runs.cache import HeadCache

AnyPrompts = Prompts | PromptPairs | Sequence[PromptLike]


class CachedRuns:
    """The runs of some prompts, kept as they are asked for.

    Attributes:
        tokens: of each side; plain prompts have the side "clean" alone.
    """

    def __init__(self, model: Model, prompts: AnyPrompts) -> None:
        self.model, self.prompts = model, prompts
        if isinstance(prompts, PromptPairs):
            clean, corrupted = prompts.tokens(model)
            self.tokens: dict[str, Tokens] = {"clean": clean, "corrupted": corrupted}
        else:
            self.tokens = {"clean": as_prompts(prompts).tokens(model)}
        self._kept: dict[str, HeadCache] = {}

    def sides(self, base: str) -> tuple[Tokens, Tokens | None]:
        """The prompts that are intervened on and, for pairs, the others."""
        if len(self.tokens) == 1:
            return self.tokens["clean"], None
        return self.tokens[base], self.tokens[other_side(base)]

    def run(self, side: str, sites: Sequence[str], limits: Limits, progress: bool) -> HeadCache:
        """The run of a side with at least these activations; run again only if it was kept without some of them."""
        kept = self._kept.get(side)
        if kept is None or not set(sites) <= set(kept.stores):
            wanted = dict.fromkeys((*sites, *(() if kept is None else kept.stores)))
            kept = HeadCache.run(self.model, self.tokens[side], sites=tuple(wanted), budget=limits, progress=progress)
            self._kept[side] = kept
        return kept

    def source(self, base: HeadCache, side: str, sites: Sequence[str], limits: Limits, progress: bool) -> HeadCache:
        """The run that values are taken from; if only its z is wanted, it is computed from its first new token."""
        kept = self._kept.get(side)
        if kept is None and set(sites) <= {"z"}:
            kept = run_sharing_prefix(base, self.tokens[side], limits=limits, progress=progress)
            self._kept[side] = kept
        return self.run(side, sites, limits, progress)

    def bytes(self, sites: Mapping[str, Sequence[str]]) -> int:
        """What runs with these activations of each side take."""
        return sum(HeadCache.estimate(self.model, self.tokens[side], sites=each).total for side, each in sites.items())


def other_side(side: str) -> str:
    """The other side of pairs."""
    return "corrupted" if side == "clean" else "clean"
