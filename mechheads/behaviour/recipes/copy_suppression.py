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

from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechheads.behaviour.against_control import against_control
from mechheads.behaviour.circuits import copying_scores
from mechheads.behaviour.frozen_maps import FrozenRun
from mechheads.behaviour.windows import Texts, check_window, windows_of
from mechheads.limits import current
from mechheads.messages.arguments import Positive, Within
from mechheads.messages.interrupted import until_interrupted
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.progress import Bar
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.stats import mean_over_prompts

MEASURES = ("score", "control", "attention", "attention_control")
EVERY = 4
"""Every so many queries one is measured, from the fourth token on."""


@analysis
def copy_suppression(
    model: Model,
    texts: Texts = None,
    *,
    window: int | None = None,
    n_tokens: Annotated[int, Within(least=16)] = 4096,
    top: Positive = 10,
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

    Returns:
        Scores [layer, head, window] in logits, with intervals over texts; ``control``, and ``excess`` with
        ``excess_low`` and ``excess_high``, to which ``p_value`` and ``q_value`` belong; ``attention`` and
        ``attention_control``: the mean attention to the token; ``predicted`` (layer): the share of queries that count;
        ``copying`` (layer, head): the copying score by weights, negative if the head suppresses the tokens that it
        attends to. Soft caps on logits are left out. After Ctrl-C, of the windows until then.

    Raises:
        ValueError: if an argument is not valid, the texts have no window of 16 tokens, or the architecture does
            something else with its heads than add them to the residual stream.
        KeyboardInterrupt: if Ctrl-C came before the first windows were done.

    McDougall et al. 2023 (arXiv 2310.04625).

    >>> found = mh.behaviour.copy_suppression(model, n_tokens=256)
    >>> found.unit, bool(found["L24H8"]["score"] < 0)  # it raises what is predicted
    ('logits', True)
    """
    window = check_window(model, window, 128)
    draw = torch.Generator().manual_seed(current().seed)
    found: list[tuple[Tensor, Tensor, list[int]]] = []
    bar = Bar(total=n_tokens, desc="copy suppression", unit="token", leave=False)
    with until_interrupted() as interrupts, torch.no_grad(), bar:
        for windows in windows_of(model, texts, window, n_tokens):
            found.append((*_measured(model, windows.ids, top, draw), windows.text))
            bar.update(windows.ids.numel())
    interrupts.stop_unless(found)
    interrupts.warn(f"{sum(len(text) for *_, text in found)} windows", "the scores are of these")
    values = torch.cat([each for each, *_ in found], dim=-1).double().cpu().numpy()
    predicted = torch.cat([share for _, share, _ in found], dim=-1).double().cpu().numpy()
    measured = dict(zip(MEASURES, values, strict=True))
    copying = copying_scores(model)
    dims = ("layer", "head")
    return against_control(
        measured["score"],
        measured["control"],
        cluster=[text for *_, of_batch in found for text in of_batch],
        name="copy suppression on text",
        kind="copy_suppression",
        provenance=make_provenance(
            model,
            texts="of the package" if texts is None else "given",
            window=window,
            n_windows=values.shape[-1],
            interrupted=interrupts.interrupted,
        ),
        variables={
            "attention": (dims, mean_over_prompts(measured["attention"])),
            "attention_control": (dims, mean_over_prompts(measured["attention_control"])),
            "predicted": ("layer", predicted.mean(-1)),
            "copying": (dims, copying.scores.values),
        },
    )


def _measured(
    model: Model, ids: Int[Tensor, "window pos"], top: int, draw: torch.Generator
) -> tuple[Float[Tensor, "measure layer head window"], Float[Tensor, "layer window"]]:
    """The means over the queries of some windows that count, NaN if none does, and the share of queries that count."""
    n, place = len(ids), torch.arange(ids.shape[1], device=ids.device)
    queries = place[EVERY - 1 :: EVERY]
    earlier = (queries[:, None] > place) & (place >= 1)
    window = torch.arange(n, device=ids.device)[:, None]
    run = FrozenRun.of(
        model,
        ids,
        window.expand(-1, len(queries)).flatten(),
        queries.expand(n, -1).flatten(),
        analysis="copy_suppression",
        attention=True,
    )
    final = run.after_blocks()
    random = torch.rand(n, len(queries), len(place), generator=draw).to(ids.device)
    several = ((ids[:, None] != ids[:, 1, None, None]) & earlier).any(-1)
    W_U = model.W_U[:, ids.flatten()].T.float().view(*ids.shape, -1)
    mean = torch.einsum("qk,wkm->wqm", earlier.float(), W_U) / earlier.sum(-1)[:, None]
    found, share = [], []
    for layer in range(model.n_layers):
        logits = model.unembed(model.backend.finish(run.streams[layer].view(*mean.shape))).float()
        of_keys = logits.gather(-1, ids[:, None].expand(-1, len(queries), -1))
        largest, predicted = of_keys.masked_fill(~earlier, -torch.inf).max(-1)
        counts = ((logits > largest[..., None]).sum(-1) < top) & several
        others = earlier & (ids[:, None] != ids.gather(1, predicted)[..., None])
        map_, sums = run.after_attention(layer, run.written(layer, model.dtype)), []
        for key in (predicted, random.masked_fill(~others, -1).argmax(-1)):
            at = earlier & (ids[:, None] == ids.gather(1, key)[..., None]) & counts[..., None]
            direction = map_.back(final.back((W_U[window, key] - mean).flatten(0, 1).double()))
            sums.append(_effects(run, layer, direction.float().view_as(mean), at))
        (effect, attention), (other, other_attention) = sums
        summed = torch.stack([-effect, -other, attention, other_attention])
        count = counts.sum(1)
        found.append((summed / count.clamp_min(1)).masked_fill(count == 0, torch.nan))
        share.append(count / len(queries))
    return torch.stack(found, dim=1), torch.stack(share)


def _effects(
    run: FrozenRun, layer: int, direction: Float[Tensor, "window query d_model"], at: Bool[Tensor, "window query key"]
) -> tuple[Float[Tensor, "head window"], Float[Tensor, "head window"]]:
    """What a layer's heads move from some keys along a direction, and the attention to these keys, over all queries."""
    of_z = torch.einsum("hdm,wqm->whqd", run.model.W_O[layer].float(), direction)
    v = run.v[layer].float().repeat_interleave(run.model.n_heads // run.model.n_kv_heads, dim=2)
    pattern = run.patterns[layer].float().unflatten(0, at.shape[:2]).transpose(1, 2).contiguous() * at[:, None]
    moved = pattern * torch.einsum("wkhd,whqd->whqk", v, of_z)
    return moved.sum((-1, -2)).T, pattern.sum((-1, -2)).T
