"""Cached runs of one model's prompts: each side of the pairs runs once, and several analyses share it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property

from mechheads.engine.shared_prefix import run_sharing_prefix
from mechheads.ledger.fingerprints import carried_hooks, model_fingerprint, structure_fingerprint
from mechheads.limits import Limits
from mechheads.model.backends.state import ModelState
from mechheads.model.model import Model
from mechheads.prompts.prompts import PromptPairs, Prompts, as_prompts
from mechheads.prompts.tokens import PromptLike, Tokens
from mechheads.runs.head_cache import HeadCache

AnyPrompts = Prompts | PromptPairs | Sequence[PromptLike]


class CachedRuns:
    """Cached runs of some prompts, each computed when it is first needed.

    Attributes:
        tokens: the tokens of each side; plain prompts have only the side "clean".
    """

    def __init__(self, model: Model, prompts: AnyPrompts) -> None:
        self.model, self.prompts = model, prompts
        if isinstance(prompts, PromptPairs):
            clean, corrupted = prompts.tokens(model)
            self.tokens: dict[str, Tokens] = {"clean": clean, "corrupted": corrupted}
        else:
            self.tokens = {"clean": as_prompts(prompts).tokens(model)}
        self._kept: dict[str, HeadCache] = {}
        self._state: tuple[ModelState, list[str], str] | None = None

    def note_state(self) -> None:
        """Note how the model is now, for ``check_state``."""
        self._state = self._now()

    def _now(self) -> tuple[ModelState, list[str], str]:
        """The model's weights and hooks, its torch hooks in words, and a hash of its modules, if they can be hashed."""
        module = self.model.model
        try:
            structure = structure_fingerprint(module, "job")
        except ValueError:
            structure = ""
        return ModelState.of(module), carried_hooks(module), structure

    def check_state(self) -> None:
        """Check that the model is as it was when its state was noted.

        Raises:
            ValueError: if its weights, hooks, dtype, device, code or settings have changed.
        """
        if self._state is None or self._state == (now := self._now()):
            return
        if not (changed := self._state[0].changed(now[0])):
            apart = sorted(set(self._state[1]) ^ set(now[1]))
            changed = f"its hooks, {apart[0]}" if apart else "the code or the settings of its modules"
        raise ValueError(
            f"job: the model has changed since the job's runs were cached: {changed}. The runs are not those of "
            "this model any more; prepare a new job with mh.prepare(model, ...)"
        )

    @cached_property
    def mark(self) -> str:
        """The fingerprint of the model whose runs these are.

        Raises:
            ValueError: if the model carries hooks.
        """
        return model_fingerprint(self.model.model, "workers")

    def sides(self, base: str) -> tuple[Tokens, Tokens | None]:
        """The tokens of the base run and, for pairs, of the source run."""
        if len(self.tokens) == 1:
            return self.tokens["clean"], None
        return self.tokens[base], self.tokens[other_side(base)]

    def run(self, side: str, sites: Sequence[str], limits: Limits) -> HeadCache:
        """The cached run of a side with at least these activations; the model runs again only if some are missing."""
        kept = self._kept.get(side)
        if kept is None or not set(sites) <= set(kept.stores):
            wanted = dict.fromkeys((*sites, *(() if kept is None else kept.stores)))
            kept = HeadCache.run(self.model, self.tokens[side], sites=tuple(wanted), limits=limits)
            self._kept[side] = kept
        return kept

    def source(self, base: HeadCache, side: str, sites: Sequence[str], limits: Limits) -> HeadCache:
        """The source run; if only its z is needed, tokens that it shares with the base run are not computed again."""
        kept = self._kept.get(side)
        if kept is None and set(sites) <= {"z"}:
            kept = run_sharing_prefix(base, self.tokens[side], limits=limits)
            self._kept[side] = kept
        return self.run(side, sites, limits)

    def with_run(self, side: str, run: HeadCache) -> CachedRuns:
        """The same runs with another one in the place of a side, for example of a model whose heads are ablated."""
        other = copy(self)
        other._kept = self._kept | {side: run}
        return other

    def bytes(self, sites: Mapping[str, Sequence[str]]) -> int:
        """Memory that runs with these activations of each side take, in bytes."""
        return sum(HeadCache.estimate(self.model, self.tokens[side], sites=each).total for side, each in sites.items())


def other_side(side: str) -> str:
    """The other side of pairs."""
    return "corrupted" if side == "clean" else "clean"
