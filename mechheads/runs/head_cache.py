"""``HeadCache``: the attention pattern and output of every head in one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from itertools import count
from typing import Any, NoReturn

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.heads import HeadId
from mechheads.limits import Limits, current
from mechheads.messages.arguments import did_you_mean
from mechheads.messages.habits import advice
from mechheads.messages.notices import Wrapped
from mechheads.model.backend import Hook
from mechheads.model.core import ModelCore
from mechheads.model.proof import Claim, at_the_ends, last_and_drawn, versions_now
from mechheads.progress import Bar
from mechheads.prompts.prompts import Prompts, as_prompts
from mechheads.prompts.tokens import PromptLike, Tokens
from mechheads.runs.head_tensor import Attention, HeadResult, HeadTensor, LayerStore

SITES = ("z", "pattern", "q", "k", "v")
"""The sites that users name; the others are used by the engine only."""
HEAD_SITES = (*SITES, "scored_q", "scored_k")
KEY_SITES = ("k", "v", "scored_k")
"""The sites with one entry for each key/value head; a change at one position affects every later token."""
RUN_SITES = ("resid_pre", "keys", "values")
"""Further activations that resuming a run needs: the residual stream, and keys and values after rotation."""
_SERIALS = count()
"""Numbers the runs, so that proofs can tell them apart."""


def token_bytes(model: ModelCore, pos: int) -> int:
    """Memory that one token needs inside a block, in bytes."""
    return model.dtype.itemsize * (6 * model.d_model + 4 * model.backend.d_mlp + 3 * model.n_heads * pos)


def tokens_in_run(model: ModelCore, limits: Limits, pos: int) -> int:
    """How many tokens a cached run computes at a time: with weights on disk, which each part of a run reads again, as
    many as fit into a quarter of the memory."""
    if model.backend.on_disk is None:
        return limits.run_tokens
    return max(limits.run_tokens, limits.memory // 4 // token_bytes(model, pos))


def cache_sizes(model: ModelCore, tokens: Tokens, sites: Sequence[str]) -> dict[str, int]:
    """The bytes that a cached run takes for each of these sites, and for its final states and ids."""
    (n, pos), heads = tokens.ids.shape, model.n_heads * model.d_head
    widths = dict.fromkeys((*KEY_SITES, "keys", "values"), model.n_kv_heads * model.d_head)
    widths |= {"pattern": model.n_heads * pos, "resid_pre": model.d_model}
    token = model.dtype.itemsize * n * pos
    sizes = {site: token * model.n_layers * widths.get(site, heads) for site in sites}
    return sizes | {"final": token * model.d_model, "ids": n * pos * 8}


def states_at(states: Float[Tensor, "row pos d"], at: Int[Tensor, "row position"]) -> Float[Tensor, "row position d"]:
    """The states of each row at some positions."""
    return states.gather(1, at[..., None].expand(-1, -1, states.shape[-1]))


class HeadCache(Wrapped):
    """One run of a model, with the attention pattern and output of every head.

    Attributes:
        pattern: [prompt, layer, head, query, key]; rows sum to 1, padding is zero.
        z: each head's output before W_O, [prompt, layer, head, pos, d_head].
        result: z @ W_O, what the head adds to the attention output, [prompt, layer, head, pos, d_model]. Its sum over
            heads plus b_O is the attention output of the layer, before any norm (Gemma 2) or scale (Granite) that the
            model applies before adding it to the residual stream.
        q, k, v: before rotation [prompt, layer, head, pos, d_head], if ``sites`` includes them.
        logits: [prompt, pos, d_vocab], computed from ``final`` [prompt, pos, d_model].
        tokens: the prompts as tokenised for the run.
        ablated: heads whose z was replaced in the run; it stays the same in runs that are resumed from it.

    Made by ``model.cache(prompts)``.

    >>> run = model.cache(["The capital of France is"])
    >>> run.pattern
    HeadTensor[1, 30, 9, 5, 5]
    >>> bool((run.result.layer(3).sum(1)).shape == run.final.shape)
    True
    """

    def __init__(
        self,
        model: ModelCore,
        tokens: Tokens,
        stores: dict[str, LayerStore],
        final: Tensor,
        heads: tuple[int, int],
    ) -> None:
        self.model: ModelCore | None = model
        self.tokens, self.stores, self.final = tokens, stores, final
        self.n_heads, self._n_kv_heads = heads
        self.n_layers = next(iter(stores.values())).n_layers
        self.ablated: tuple[HeadId, ...] = ()
        self._gives_copies = False
        self._serial = next(_SERIALS)
        self._mark = None if model.backend.on_disk else versions_now(model.backend)

    def copies(self) -> HeadCache:
        """The same run, which returns copies of its activations, so that writing into them changes nothing."""
        other = copy(self)
        other._gives_copies = True
        return other

    @classmethod
    def run(
        cls,
        model: ModelCore,
        prompts: Prompts | Tokens | Sequence[PromptLike],
        *,
        sites: Sequence[str] = ("z", "pattern"),
        limits: Limits | None = None,
        on_disk: bool | None = None,
    ) -> HeadCache:
        """Run the prompts and cache every head's activations.
        ``on_disk``: whether activations are stored on disk; by default, if they are larger than the memory."""
        limits = current().limits if limits is None else limits
        sites = check_sites(sites)
        tokens = prompts if isinstance(prompts, Tokens) else as_prompts(prompts).tokens(model)
        (run,) = cls.together(model, [(tokens, sites)], limits=limits, on_disk=on_disk)
        run.claim()
        return run

    @classmethod
    def together(
        cls,
        model: ModelCore,
        sides: Sequence[tuple[Tokens, Sequence[str]]],
        *,
        limits: Limits,
        ablated: Mapping[HeadId, Float[Tensor, "prompt pos d_head"]] | None = None,
        on_disk: bool | None = None,
    ) -> list[HeadCache]:
        """Runs of several lists of equally wide prompts, which share passes, and the sites to cache of each.
        ``ablated``: a z that replaces a head's own, if there is one list."""
        if on_disk is None:
            each = (cache_sizes(model, tokens, sites).values() for tokens, sites in sides)
            on_disk = sum(map(sum, each)) > limits.memory
        ids = torch.cat([tokens.ids for tokens, _ in sides])
        stores = [{s: LayerStore(model.n_layers, len(tokens), on_disk) for s in sites} for tokens, sites in sides]
        owners = [(tokens.mask, each) for (tokens, _), each in zip(sides, stores, strict=True)]
        begins = np.cumsum([0, *(len(tokens) for tokens, _ in sides)]).tolist()
        step = max(1, tokens_in_run(model, limits, ids.shape[1]) // ids.shape[1])
        starts = range(0, len(ids), step)
        finals = []
        for start in Bar(starts, desc="caching heads", disable=len(starts) == 1, leave=False):
            rows = slice(start, start + step)
            hooks, keys_to = z_hooks(model, ablated or {}, rows), list[tuple[slice, Mapping[str, LayerStore]]]()
            for begin, (mask, by_site) in zip(begins, owners, strict=False):
                first, last = max(start, begin), min(start + step, begin + len(mask))
                if first < last:
                    part, real = slice(first - start, last - start), mask[first - begin : last - begin]
                    hooks += [
                        (model.hook_name(site, layer), _caching_hook(by_site[site], layer, site, part, real))
                        for layer in range(model.n_layers)
                        for site in by_site
                        if site not in ("keys", "values")
                    ]
                    keys_to += [(part, by_site)] if "keys" in by_site else []
            finals.append(model.backend.run(ids[rows], hooks, keys=_CacheKeys(keys_to) if keys_to else None))
        every = torch.cat(finals).split([len(tokens) for tokens, _ in sides])
        runs = []
        for (tokens, _), by_site, final in zip(sides, stores, every, strict=True):
            runs.append(cls(model, tokens, by_site, final, (model.n_heads, model.n_kv_heads)))
            runs[-1].ablated = tuple(ablated or ())
        return runs

    def claim(self, at: Int[Tensor, "prompt position"] | None = None) -> None:
        """Claim that the run is the model's own forward pass, which the analysis proves for two of its prompts.
        ``at``: the positions that are compared, by default the last of each prompt and one that is drawn."""
        if self.ablated:
            return
        here, proofs = self.tokens.on_cpu, self.need_model().backend.proofs
        for i, ids, wanted in at_the_ends(here.ids, here.lengths, None if at is None else at.tolist()):
            if places := proofs.new(self._serial, i, wanted):
                proofs.claim([self._claim(i, ids, places)])

    def claims_of(self, prompt: int, at: Sequence[int] | None = None) -> list[Claim]:
        """The claim for a prompt, by default at the positions of ``claim``; it can replace one of equal length."""
        if self.ablated:
            return []
        ids = tuple(self.tokens.on_cpu.ids[prompt, : int(self.tokens.on_cpu.lengths[prompt])].tolist())
        return [self._claim(prompt, ids, tuple(sorted(last_and_drawn(ids) if at is None else at)))]

    def _claim(self, prompt: int, ids: tuple[int, ...], at: tuple[int, ...]) -> Claim:
        what = f"the cached run of prompt {prompt}"
        return Claim(what, ids, at, self.final[prompt, [*at]], run=self._serial)

    def site(self, site: str) -> HeadTensor:
        """An activation by its name: ``run.site("q")`` is ``run.q``."""
        if site not in self.stores:
            sites = ", ".join(name for name in self.stores if name in SITES) or "none of them"
            raise ValueError(f"this run did not keep {site!r} (it kept {sites}); ask for it with sites=(..., {site!r})")
        stored = self._n_kv_heads if site in KEY_SITES else self.n_heads
        return HeadTensor(self.stores[site], self.n_heads, stored, copied=self._gives_copies)

    @property
    def pattern(self) -> HeadTensor:
        return self.site("pattern")

    @property
    def z(self) -> HeadTensor:
        return self.site("z")

    @property
    def q(self) -> HeadTensor:
        return self.site("q")

    @property
    def k(self) -> HeadTensor:
        return self.site("k")

    @property
    def v(self) -> HeadTensor:
        return self.site("v")

    @property
    def result(self) -> HeadResult:
        return HeadResult(self.z._layers, self.n_heads, self.need_model())

    @property
    def logits(self) -> Float[Tensor, "prompt pos d_vocab"]:
        return self.need_model().unembed(self.final)

    def final_at(self, at: Int[Tensor, "prompt position"]) -> Float[Tensor, "prompt position d_model"]:
        """The states after the final norm at some positions."""
        return states_at(self.final, at)

    @property
    def attention(self) -> Attention:
        return Attention(self.pattern, self.tokens.strings, (self.n_layers, self.n_heads))

    __iter__ = None  # a run cannot be iterated over; without this, Python would call __getitem__

    def __getitem__(self, item: object) -> NoReturn:
        raise KeyError(
            f'run[{item!r}]: a run has no items; write run.pattern.layer(2) or run.z["L2H1"]; run.result is there too, '
            "and model.model is the TransformerLens model"
        )

    def __getattr__(self, name: str) -> Any:
        if instead := advice("run", name):
            raise AttributeError(f"a cached run has no attribute {name!r}{instead}")
        return object.__getattribute__(self, name)  # raises the usual error, or a property's own

    def __getstate__(self) -> dict[str, Any]:
        """A run is pickled without its model."""
        return vars(self) | {"model": None, "_mark": None}

    def need_model(self) -> ModelCore:
        if self.model is None:
            raise ValueError("this run was pickled, which leaves its model out; run it again: model.cache(...)")
        if self._mark is not None and self._mark != versions_now(self.model.backend):
            raise ValueError(
                "the model's weights have changed since this run was cached; run it again: model.cache(...), or "
                "prepare a new job with mh.prepare(model, ...)"
            )
        return self.model

    def check_finite(self) -> None:
        """Raise an error if the run gave NaN or infinity, as with weights that were overwritten after loading."""
        if not (self.final.isfinite() | ~self.tokens.mask[..., None]).all():
            raise ValueError(
                f"model: {self.need_model().name!r} gives NaN or infinity without any intervention, so its weights are "
                "damaged; load it again"
            )

    def __repr__(self) -> str:
        n, pos = self.tokens.ids.shape
        where = "on disk" if next(iter(self.stores.values())).on_disk else "in memory"
        sites = ", ".join(site for site in self.stores if site in SITES)
        return f"HeadCache({n} prompt{'s' * (n != 1)} of up to {pos} tokens, {sites} kept {where})"


def check_sites(sites: Sequence[str]) -> tuple[str, ...]:
    """The sites, each once."""
    known = ", ".join(SITES)
    if isinstance(sites, str):
        raise ValueError(f'sites is the text {sites!r}; give a list of some of {known}, such as ["z"]')
    if not sites:
        raise ValueError(f"sites is empty; name at least one of {known}")
    if unknown := [site for site in sites if site not in (*HEAD_SITES, *RUN_SITES)]:
        raise ValueError(f"sites: {unknown[0]!r} is not known; choose among {known}.{did_you_mean(unknown[0], SITES)}")
    return tuple(dict.fromkeys(sites))


class _CacheKeys:
    """Adds every layer's keys and values, after rotation, as attention uses them, to the stores of some of the rows."""

    def __init__(self, stores: Sequence[tuple[slice, Mapping[str, LayerStore]]]) -> None:
        self._stores = stores

    def update(self, k: Tensor, v: Tensor, layer: int, *_: Any) -> tuple[Tensor, Tensor]:
        for part, by_site in self._stores:
            by_site["keys"].add(layer, k[part].detach())
            by_site["values"].add(layer, v[part].detach())
        return k, v


def z_hooks(
    model: ModelCore, new: Mapping[HeadId, Float[Tensor, "prompt pos d_head"]], rows: slice | Int[Tensor, " row"]
) -> list[Hook]:
    """Hooks that give heads a new z in a run of some prompts."""
    return [(model.hook_name("z", head.layer), partial(_put_z, head=head.head, z=z[rows])) for head, z in new.items()]


def _put_z(value: Tensor, hook: Any, head: int, z: Tensor) -> Tensor:
    """Replace the z of a head."""
    value = value.clone()
    value[:, :, head] = z.to(value.dtype)
    return value


def _caching_hook(store: LayerStore, layer: int, site: str, part: slice, mask: Tensor) -> Any:
    """A hook that adds some rows' activation to the store, with the head axis first and padding set to zero."""

    def hook_fn(value: Tensor, hook: Any) -> None:
        value = value[part]
        if site == "pattern":
            real = mask[:, None, :, None] & mask[:, None, None, :]
        elif site == "resid_pre":
            real = None
        else:
            value, real = value.transpose(1, 2), mask[:, None, :, None]
        store.add(layer, value.detach() if real is None else value.detach().masked_fill(~real, 0))

    return hook_fn
