"""Copy suppression: heads that attend to a token which is already predicted, and lower its logit.

McDougall et al. 2023, "Copy Suppression: Comprehensively Understanding an Attention Head", arXiv 2310.04625, section 2:
such a head needs a prediction of the token (by earlier layers), attention to it, and a negative OV circuit.

| paper | here |
|---|---|
| the token is predicted before the head | it is among the ``top`` logits of the lens of the head's input |
| attention to the token | A(q, k) at the positions k with this token |
| the direct effect on its logit | A(q, k) v_k W_O, through the frozen norms, with W_U of the token |
| the diagonal of W_E OV W_U | ``copying``, from the eigenvalues of the same matrix (``copying_scores``) |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechheads.behaviour.copying import copying_scores
from mechheads.behaviour.frozen_maps import FrozenMap, frozen_at, frozen_rows, of_attention, tolerance
from mechheads.behaviour.recipes.against_control import against_control
from mechheads.behaviour.windows import Texts, Windows, check_window, windows_of
from mechheads.messages.arguments import check_at_least
from mechheads.messages.interrupted import until_interrupted
from mechheads.messages.progress import Bar
from mechheads.model.backends.temporary_changes import alone
from mechheads.model.model import Model
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.stats import mean_over_prompts

MEASURES = ("score", "control", "attention", "attention_control")
EVERY = 4
"""Every so many queries one is measured, from the fourth token on."""


@alone
def copy_suppression(
    model: Model,
    texts: Texts = None,
    *,
    window: int | None = None,
    n_tokens: int = 4096,
    top: int = 10,
    seed: int = 0,
    progress: bool = True,
) -> HeadScores:
    """How far each head lowers the logit of a token that it attends to and that earlier layers already predict.

    At every fourth query of ordinary text, x is the earlier token of the window that the logit lens of the head's input
    puts first. Only queries count at which it is among the ``top`` largest logits of the whole vocabulary. What the
    head moves from the positions of x has a direct effect on the logit of x, relative to the mean of the earlier ones:

        score = - mean over queries of  sum over k with token x of  A(q, k) v_k W_O . N (W_U[x] - mean of W_U)

    with N the norms of this run, frozen, as in ``mh.behaviour.logit_attribution``. It is positive for copy suppression
    and negative for heads that copy, such as name movers. The control is the same for another earlier token of the
    window, drawn at random: the difference says that the head acts on what is predicted.

    Args:
        texts: as in ``mh.profile_heads``.
        window: the length of a window in tokens; by default 128, or the model's context if that is shorter.
        n_tokens: how many tokens to read.
        top: how many of the largest logits count as predictions.
        seed: for the tokens of the control, and for the p values.
        progress: show a progress bar.

    Returns:
        Scores [layer, head, window] in logits, with intervals over texts; ``control``, and ``excess`` with
        ``excess_low`` and ``excess_high``, to which ``p_value`` and ``q_value`` belong; ``attention`` and
        ``attention_control``: the mean attention to the token; ``predicted`` (layer): the share of queries that count;
        ``copying`` (layer, head): the copying score by
        weights, negative if the head suppresses the tokens that it attends to. Soft caps on logits are left out. After
        Ctrl-C, of the windows until then.

    Raises:
        ValueError: if an argument is not valid, the texts have no window of 16 tokens, or the architecture does
            something else with its heads than add them to the residual stream.
        KeyboardInterrupt: if Ctrl-C came before the first windows were done.

    McDougall et al. 2023 (arXiv 2310.04625).

    >>> found = mh.behaviour.copy_suppression(model, n_tokens=256, progress=False)
    >>> found.unit, bool(found["L24H8"]["score"] < 0)  # it raises what is predicted
    ('logits', True)
    """
    window = check_window(model, min(128, model.n_ctx) if window is None else window)
    check_at_least(16, n_tokens=n_tokens)
    check_at_least(1, top=top)
    draw = torch.Generator().manual_seed(seed)
    found: list[tuple[Tensor, Tensor, list[int]]] = []
    with until_interrupted() as work, torch.no_grad():
        for windows in _shown(windows_of(model, texts, window, n_tokens), n_tokens, progress):
            found.append((*_Measured(model, windows.ids, top, draw).values(), windows.text))
    work.stop_unless(found)
    work.warn(f"{sum(len(text) for *_, text in found)} windows", "the scores are of these")
    if not found:
        raise ValueError("texts have no window of at least 16 tokens; give longer texts")
    values = torch.cat([each for each, *_ in found], dim=-1).double().cpu().numpy()
    predicted = torch.cat([share for _, share, _ in found], dim=-1).double().cpu().numpy()
    measured = dict(zip(MEASURES, values, strict=True))
    copying = copying_scores(model, seed=seed, progress=progress)
    dims = ("layer", "head")
    return against_control(
        measured["score"],
        measured["control"],
        [text for *_, of_batch in found for text in of_batch],
        kind="copy_suppression",
        about={"name": "copy suppression on text"},
        provenance=make_provenance(
            model,
            texts="of the package" if texts is None else "given",
            window=window,
            n_tokens=n_tokens,
            n_windows=values.shape[-1],
            top=top,
            seed=seed,
            interrupted=work.interrupted,
        ),
        variables={
            "attention": (dims, mean_over_prompts(measured["attention"])),
            "attention_control": (dims, mean_over_prompts(measured["attention_control"])),
            "predicted": ("layer", predicted.mean(-1)),
            "copying": (dims, copying.scores.values),
        },
    )


def _shown(batches: Iterator[Windows], total: int, progress: bool) -> Iterator[Windows]:
    with Bar(total=total, desc="copy suppression", unit="token", disable=not progress, leave=False) as bar:
        for windows in batches:
            yield windows
            bar.update(windows.ids.numel())


@dataclass(frozen=True, eq=False)
class _Run:
    """What a run of some windows leaves.

    Attributes:
        streams: the residual stream before each block, and after the last one.
        sites: for each layer, its ``pattern``, ``v`` and ``z``.
    """

    streams: list[Float[Tensor, "window pos d_model"]]
    sites: list[dict[str, Tensor]]

    @classmethod
    def of(cls, model: Model, ids: Int[Tensor, "window pos"]) -> _Run:
        kept = cls([], [{} for _ in range(model.n_layers)])

        def keep(value: Tensor, hook: Any, layer: int, site: str) -> None:
            kept.sites[layer][site] = value.clone()

        hooks = [
            (model.hook_name(site, layer), partial(keep, layer=layer, site=site))
            for layer in range(model.n_layers)
            for site in ("pattern", "v", "z")
        ]

        def run() -> None:
            stream, blocks = model.backend.embed(ids)
            for layer in range(model.n_layers):
                kept.streams.append(stream)
                stream = blocks(layer, stream)
            kept.streams.append(stream)

        model.backend.under(hooks, run)
        return kept


class _Measured:
    """Some windows of one length.

    Attributes:
        queries: the positions that are measured; for each, its earlier tokens are those after the first one.
    """

    def __init__(self, model: Model, ids: Int[Tensor, "window pos"], top: int, draw: torch.Generator) -> None:
        self._model, self._ids, self._top = model, ids, top
        n, pos = ids.shape
        place = torch.arange(pos, device=ids.device)
        self.queries = place[EVERY - 1 :: EVERY]
        self._earlier = (self.queries[:, None] > place) & (place >= 1)
        self._differ = ((ids[:, None] != ids[:, 1, None, None]) & self._earlier).any(-1)
        self._random = torch.rand(n, len(self.queries), pos, generator=draw).to(ids.device)
        self._W_U = model.W_U[:, ids.flatten()].T.float().view(n, pos, -1)
        count = self._earlier.sum(-1)[:, None]
        self._mean = torch.einsum("qk,wkm->wqm", self._earlier.float(), self._W_U) / count

    def values(self) -> tuple[Float[Tensor, "measure layer head window"], Float[Tensor, "layer window"]]:
        """The means over the queries that count, NaN if none does, and the share of queries that count."""
        model, run = self._model, _Run.of(self._model, self._ids)
        final = frozen_at(self._finish, run.streams[-1][:, self.queries].flatten(0, 1), tolerance(model.backend))
        if final is None:
            raise self._inexact("what follows the last block is neither a norm nor a product")
        layers, counts = zip(*(self._layer(run, layer, final) for layer in range(model.n_layers)), strict=True)
        count = torch.stack(counts)
        found = torch.stack(layers, dim=1) / count[:, None].clamp_min(1)
        return found.masked_fill((count == 0)[:, None], torch.nan), count / len(self.queries)

    def _finish(self, rows: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model"]:
        return self._model.backend.finish(rows[:, None])[:, 0]

    def _inexact(self, what: str) -> ValueError:
        return ValueError(f"{self._model.backend.about} does not support copy_suppression: {what}")

    def _layer(
        self, run: _Run, layer: int, final: FrozenMap
    ) -> tuple[Float[Tensor, "measure head window"], Int[Tensor, " window"]]:
        """The sums over queries of a layer's heads, and how many queries count."""
        model, sites, before = self._model, run.sites[layer], run.streams[layer][:, self.queries]
        written = torch.einsum("wqhd,hdm->wqm", sites["z"][:, self.queries], model.W_O[layer])
        b_O = model.b_O(layer)
        written = (written if b_O is None else written + b_O).flatten(0, 1)
        blocks = model.backend.blocks_for(frozen_rows(len(written)), 1)
        map_ = of_attention(model.backend, blocks, layer, before.flatten(0, 1), written)
        if map_ is None:
            raise self._inexact(f"layer {layer} does more with its heads than add them to the residual stream")
        predicted, counts = self._predicted(before)
        different = self._earlier & (self._ids[:, None] != self._token(predicted)[..., None])
        found = []
        for key in (predicted, self._random.masked_fill(~different, -1).argmax(-1)):
            at = self._earlier & (self._ids[:, None] == self._token(key)[..., None]) & counts[..., None]
            row = torch.arange(len(key), device=key.device)[:, None]
            direction = (self._W_U[row, key] - self._mean).flatten(0, 1).double()
            here = map_.back(final.back(direction)).float().view_as(self._mean)
            found.append(self._effects(sites, layer, here, at))
        (effect, attention), (other, other_attention) = found
        return torch.stack([-effect, -other, attention, other_attention]), counts.sum(1)

    def _token(self, key: Int[Tensor, "window query"]) -> Int[Tensor, "window query"]:
        return self._ids.gather(1, key)

    def _predicted(
        self, before: Float[Tensor, "window query d_model"]
    ) -> tuple[Int[Tensor, "window query"], Bool[Tensor, "window query"]]:
        """A key with the most predicted of the earlier tokens, and the queries at which this is a prediction."""
        logits = self._model.unembed(self._model.backend.finish(before)).float()
        keys = logits.gather(-1, self._ids[:, None].expand(-1, len(self.queries), -1))
        largest, key = keys.masked_fill(~self._earlier, -torch.inf).max(-1)
        return key, ((logits > largest[..., None]).sum(-1) < self._top) & self._differ

    def _effects(
        self,
        sites: dict[str, Tensor],
        layer: int,
        here: Float[Tensor, "window query d_model"],
        at: Bool[Tensor, "window query key"],
    ) -> tuple[Float[Tensor, "head window"], Float[Tensor, "head window"]]:
        """What heads move from some keys along a direction, and the attention to these keys, summed over queries."""
        v = sites["v"].float()
        v = v.repeat_interleave(self._model.n_heads // v.shape[2], dim=2)
        of_z = torch.einsum("hdm,wqm->whqd", self._model.W_O[layer].float(), here)
        pattern = sites["pattern"][:, :, self.queries].float() * at[:, None]
        moved = pattern * torch.einsum("wkhd,whqd->whqk", v, of_z)
        return moved.sum((-1, -2)).T, pattern.sum((-1, -2)).T
