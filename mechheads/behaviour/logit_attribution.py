"""Direct logit attribution: the part of each head, MLP, the embedding and the biases in a logit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.behaviour.frozen import FrozenRun, tolerance
from mechheads.engine.cached_runs import AnyPrompts
from mechheads.engine.job import resolve
from mechheads.heads import Heads, named_heads
from mechheads.limits import Limits, current
from mechheads.messages.notices import until_interrupted
from mechheads.model.analysis import analysis
from mechheads.model.backend import Backend
from mechheads.model.model import Model
from mechheads.progress import Bar
from mechheads.prompts.tokens import Tokens
from mechheads.results.dataset import Label
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores

By = Literal["head", "source"]
_NEAR = 1e-3
"""Two logits that are closer than this get the slope of a soft cap between them from a wider interval."""


@analysis
def logit_attribution(model: Model, prompts: AnyPrompts, *, by: By = "head", heads: Heads | None = None) -> HeadScores:
    """The part of each head in the logit of the answer, or in its difference from the logit of the wrong answer.

    The residual stream at the last token is the embedding plus what every head, MLP and bias has added to it. With the
    statistics of every norm frozen at the values of this run, each summand x has its own part in the logit:

        part(x) = slope * N(x) . (W_U[answer] - W_U[wrong])

    x is z W_O of a head, with the norm or multiplier after attention if the model has one. N is the final norm without
    its bias. slope is 1 unless the model multiplies or caps its logits. All parts sum to the model's own logit.

    This is the direct effect only. ``mh.ablate`` and ``mh.path_patch`` measure effects through later heads and MLPs.

    Args:
        prompts: prompts or, of pairs, the clean side. With ``answer`` and ``wrong``, logit(answer) - logit(wrong) at
            the last token is attributed; with ``answer`` alone, its logit; without either, the logit of the token that
            the model itself finds most likely.
        by: ``"head"``, or ``"source"`` for the tokens that each head reads: pattern * v of the token takes the place of
            z, which is their sum. The bias of v belongs to the tokens too.
        heads: the heads to attribute, as in ``mh.sweep``; every head if left out. The others are NaN.

    Returns:
        The parts of the heads in logits [layer, head, prompt]; for ``by="source"`` [layer, head, source, prompt], where
        the sources of a single prompt are labelled by their tokens, and of several prompts by their positions
        (NaN after the end of shorter prompts). ``dataset`` has the other parts: ``embedding`` [prompt] (tokens and
        positions before the first block), ``mlp`` [layer, prompt], ``bias`` [layer, prompt] (b_O, and the bias of a
        norm after attention or MLP), ``output_bias`` [prompt] (of the final norm and b_U); and ``total`` [prompt], the
        logit or difference, which is the sum of all parts. After Ctrl-C, the parts of the prompts done until then.

    Raises:
        ValueError: if the parts do not sum to the logit, because the architecture uses its heads in another way.

    Elhage et al. 2021 (A Mathematical Framework for Transformer Circuits); nostalgebraist 2020 (the logit lens); Wang
    et al. 2023 (arXiv 2211.00593), who found the name movers with it.

    >>> prompts = mh.Prompts(["The capital of France is"], answer=[" Paris"], wrong=[" Rome"])
    >>> mh.behaviour.logit_attribution(model, prompts, by="source").dataset["source"].values.tolist()
    ['0 The', '1 capital', '2 of', '3 France', '4 is']
    """
    limits, (named, names) = current().limits, named_heads(heads, model.n_layers, model.n_heads)
    tokens = resolve(model, prompts).tokens["clean"]
    step = prompts_at_once(model, tokens, by, limits)
    starts = range(0, len(tokens), step)
    chunks = []
    with until_interrupted() as interrupts, torch.no_grad():
        for start in Bar(starts, desc="attributing logits", disable=len(starts) == 1, leave=False):
            chunks.append(attribute(model, tokens.rows(slice(start, start + step)), by, limits))
    interrupts.stop_unless(chunks)
    interrupts.warn(f"{step * len(chunks)} of {len(tokens)} prompts", "the scores are of these")
    tokens = tokens.rows(slice(step * len(chunks)))
    parts = {name: np.concatenate([each[name] for each in chunks], axis=-1) for name in chunks[0]}
    attributed = "the logit of the answer" if tokens.wrong is None else "logit(answer) - logit(wrong)"
    attributed = "the logit of the most likely token" if tokens.answer is None else attributed
    values = parts.pop("heads")
    values[~named] = np.nan
    dims = {"mlp": ("layer", "prompt"), "bias": ("layer", "prompt")}
    return HeadScores.from_values(
        values,
        name=f"direct effect in {attributed}",
        kind="logit_attribution",
        cluster=tokens.cluster,
        extra={"source": labels_of_sources(tokens)} if by == "source" else None,
        provenance=make_provenance(
            model,
            {"attributed": attributed, "by": by, "prompts": tokens, "n_prompts": len(tokens), "heads": names},
            interrupted=interrupts.interrupted,
        ),
    ).assign(**{name: (dims.get(name, ("prompt",)), array) for name, array in parts.items()})


def labels_of_sources(tokens: Tokens) -> Sequence[Label]:
    """The tokens of a single prompt with their positions, or the positions of several prompts."""
    if len(tokens) > 1:
        return range(tokens.ids.shape[1])
    return [f"{i} {text.strip() or repr(text)}" for i, text in enumerate(tokens.strings[0])]


def prompts_at_once(model: Model, tokens: Tokens, by: By, limits: Limits) -> int:
    pos = tokens.ids.shape[1]
    of_sources = pos * (model.n_kv_heads * model.d_head + model.n_heads) if by == "source" else 0
    a_prompt = model.n_layers * (model.n_heads * model.d_head + model.d_model + of_sources) * model.dtype.itemsize
    return max(1, min(limits.run_tokens // pos, limits.memory // a_prompt))


def attribute(model: Model, tokens: Tokens, by: By, limits: Limits) -> Mapping[str, np.ndarray]:
    """Every part of the logits of some prompts: ``heads``, ``mlp``, ``bias``, ..., and their ``total``."""
    backend, row = model.backend, torch.arange(len(tokens), device=tokens.ids.device)
    run = FrozenRun.of(
        model, tokens.ids, row, tokens.lengths - 1, analysis="logit_attribution", attention=by == "source"
    )
    end = run.streams[-1]
    final = run.after_blocks()
    end_state = backend.finish(end[:, None])[:, 0]
    backend.proofs.claim_ends("the attributed run of prompt", tokens.ids, tokens.lengths, end_state)
    answers = [top(backend, end_state, limits) if tokens.answer is None else tokens.answer]
    answers += [] if tokens.wrong is None else [tokens.wrong]
    state, zero = final(end.double()), torch.zeros(len(tokens), dtype=torch.float64, device=end.device)
    columns = [backend.W_U[:, ids].T.double() for ids in answers]
    biases = [zero if backend.b_U is None else backend.b_U[ids].double().to(zero) for ids in answers]
    logits = [(state * column).sum(-1) + bias for column, bias in zip(columns, biases, strict=True)]
    slope = _slope(backend, logits[0], logits[1] if len(logits) > 1 else zero)
    direction = slope[:, None] * _difference(columns)  # a summand after the final norm, times this, is its part
    parts = _of_layers(model, run, final.back(direction), tokens)
    parts["embedding"] = (run.streams[0].double() * final.back(direction)).sum(-1)
    parts["output_bias"] = direction @ final.offset + slope * _difference(biases)
    vocab = torch.cat(answers).unique()
    own = backend.unembed(end_state, tokens=vocab).double()
    parts["total"] = _difference([own[row, torch.searchsorted(vocab, ids)] for ids in answers])
    summed = sum(each.reshape(-1, len(tokens)).nansum(0) for name, each in parts.items() if name != "total")
    off = summed - parts["total"]
    if not (off.abs() <= tolerance(backend) * torch.stack(logits).abs().amax(0).clamp_min(1)).all():
        raise run.inexact(f"the parts differ from the logit by up to {float(off.abs().max()):.2g}")
    return {name: each.cpu().numpy() for name, each in parts.items()}


def top(backend: Backend, state: Float[Tensor, "prompt d_model"], limits: Limits) -> Int[Tensor, " prompt"]:
    """The most likely next tokens."""
    at_once = max(1, limits.logits // backend.sizes.d_vocab)
    return torch.cat([backend.unembed(some).argmax(-1) for some in state.split(at_once)])


def _difference(of_answers: Sequence[Tensor]) -> Tensor:
    """The value of the answer, minus the value of the wrong answer if there is one."""
    return of_answers[0] if len(of_answers) == 1 else of_answers[0] - of_answers[1]


def _slope(backend: Backend, high: Float[Tensor, " prompt"], low: Float[Tensor, " prompt"]) -> Float[Tensor, " prompt"]:
    """The difference of the transformed logits per unit of difference of the logits."""
    wider = torch.where((high - low).abs() < _NEAR, _NEAR, 0.0)
    high, low = high + wider, low - wider
    transformed = backend.transform_logits(torch.stack([high, low], dim=-1))
    return (transformed[:, 0] - transformed[:, 1]) / (high - low)


def _of_layers(
    model: Model, run: FrozenRun, direction: Float[Tensor, "prompt d_model"], tokens: Tokens
) -> dict[str, Float[Tensor, "*part prompt"]]:
    """The parts of heads, MLPs and biases of every layer; ``direction`` is the logit's, before the final norm."""
    parts: dict[str, list[Tensor]] = {"heads": [], "mlp": [], "bias": []}
    for layer in range(model.n_layers):
        before, after, z = run.streams[layer], run.streams[layer + 1], run.z[layer].double()
        W_O, b_O = model.W_O[layer].double(), model.b_O(layer)
        written = run.written(layer, torch.float64)
        map_ = run.after_attention(layer, written)
        here = map_.back(direction)
        of_z = torch.einsum("hdm,pm->phd", W_O, here)
        of_heads = (z * of_z).sum(-1)
        bias = direction @ map_.offset
        parts["bias"].append(bias if b_O is None else bias + here @ b_O.double())
        parts["mlp"].append(((after.double() - before.double() - map_(written)) * direction).sum(-1))
        if run.v:
            of_heads = run.sources(layer, of_z).masked_fill(~tokens.mask[:, None], torch.nan)
        parts["heads"].append(of_heads.movedim(0, -1))
    return {name: torch.stack(each) for name, each in parts.items()}
