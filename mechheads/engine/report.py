"""The measured values of a job as ``HeadScores``, and warnings if the clean run contradicts the prompts' answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.engine.cached_runs import Ablated
from mechheads.engine.job import Job
from mechheads.interventions.basic import Intervention
from mechheads.messages.notices import warn
from mechheads.metrics import MetricInfo, name_of, read_positions
from mechheads.model.parts import moved
from mechheads.prompts.encoding import single_token, token_strings
from mechheads.results.dataset import Label, of_means
from mechheads.results.kinds import kind_of
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.shown import titled
from mechheads.results.stats import rounding_of


@dataclass(frozen=True)
class Metadata:
    """The name, kind, further dimensions with labels, and further provenance of a result.
    ``exact``: whether the values are changes of the metric itself, within its bounds, and not estimates of them."""

    name: str
    kind: str
    extra: Mapping[str, Sequence[Label]] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    exact: bool = True
    units: str = "heads"


def report(job: Job, values: Float[np.ndarray, "layer head *extra prompt"], metadata: Metadata) -> HeadScores:
    """Means over prompts with intervals, and p values if the kind has a test and the metric a null."""
    spec, metric = job.spec, MetricInfo.of(job.spec.metric)
    positions = spec.positions if isinstance(spec.positions, str) else list(spec.positions)
    units = "all" if spec.heads is None else [str(head) for head in job.heads]
    base, ablated = job.evaluator.base_value.cpu().numpy(), describe_given(spec.ablated)
    bounds = metric.bounds_of_changes(job.evaluator.distance() if spec.normalize else 1.0) if metadata.exact else None
    only_0_and_1 = np.isin(base, (0, 1)).all() and np.isin(values[np.isfinite(values)], (-1, 0, 1)).all()
    if metric.bounds == (None, None) and not metric.share and only_0_and_1:
        warn(
            f"metric {metric.name} is 0 or 1 for every prompt, but does not say that it is a share, so intervals where "
            "all prompts agree have no width; declare it with @mh.metric(share=True)"
        )
    result = {
        "name": titled(metadata.name, ablated),
        "unit": "share restored" if spec.normalize else metric.unit,
        "kind": metadata.kind,
        "extra": metadata.extra,
        "provenance": make_provenance(
            job.model,
            {"metric": metric.name, "prompts": job.fingerprint(), "n_prompts": len(job.tokens), "seed": spec.seed},
            {"positions": positions, metadata.units: units},
            metadata.more,
            ablated,
        ),
    }
    test = {
        "null": None if kind_of(metadata.kind).null is None else metric.null,
        "bounds": bounds,
        "rounding": rounding_of(*[values] if spec.normalize else [values, base]),
        "seed": spec.seed,
    }
    return HeadScores(of_means(values, job.tokens.cluster, result, **test)).assign(base_metric=("prompt", base))


def describe_intervention(intervention: Intervention) -> str:
    """The name of an intervention in results: a dataclass with its fields, or a function's name."""
    return name_of(intervention) if hasattr(intervention, "__name__") else repr(intervention)


def describe_given(ablated: Ablated) -> dict[str, dict[str, str]]:
    """The heads that are ablated all the time, and how, as the provenance stores them; nothing if there are none."""
    return {"given": {str(head): describe_intervention(rule) for head, rule in ablated}} if ablated else {}


_MUCH_MORE_LIKELY = 10.0
_SHOWN = 3
_PROMPT_SHOWN = 60


class AnswerWarning(UserWarning):
    """Warns that the clean run contradicts the prompts' answers."""


@torch.no_grad()
def warn_of_answers(job: Job) -> None:
    """Warn if the clean run contradicts the answers, as mistaken answers give numbers that look plausible.
    Either an answer lacks its leading space, or the model prefers the wrong answer."""
    clean = job.source if job.source is not None and job.spec.base == "corrupted" else job.base
    tokenizer, tokens = job.model.tokenizer, clean.tokens.on_cpu
    if "answer" not in job.answers or tokens.answer is None:
        return
    spaced = tokens.answer if tokenizer is None else _with_space(tokens.answer, tokenizer)
    columns = torch.stack([tokens.answer, tokens.answer if tokens.wrong is None else tokens.wrong, spaced], dim=1)
    at, mask = read_positions(job.spec.metric, clean.tokens)
    final = clean.final_at(at.gather(1, mask.sum(1, keepdim=True) - 1))[:, 0]
    some, index = moved(columns, job.at.device).unique(return_inverse=True)
    logits = job.backend.unembed(final, tokens=some).gather(1, index).cpu()
    right, wrong, with_space = logits.unbind(1)
    prompts = ["".join(strings)[-_PROMPT_SHOWN:] for strings in tokens.strings]
    if (no_space := with_space - right > math.log(_MUCH_MORE_LIKELY)).any():
        shown = _shown(job, no_space, final, prompts, (spaced, tokens.answer))
        warn(
            f"answer: the token with a leading space is much more likely for {shown}. Write answers exactly as they "
            'continue the prompt, such as answer=[" Paris"]',
            AnswerWarning,
        )
    if "wrong" in job.answers and tokens.wrong is not None and (prefers := wrong > right).any():
        shown = _shown(job, prefers, final, prompts, (tokens.wrong, tokens.answer))
        warn(
            f"the clean run prefers `wrong` to `answer` for {shown}. Leave these prompts out, or check "
            "answer= and wrong=",
            AnswerWarning,
        )


def _with_space(answer: Int[Tensor, " prompt"], tokenizer: Any) -> Int[Tensor, " prompt"]:
    """The tokens of the same words with a leading space; an answer stays as it is if it has no such token."""
    with_space = {}
    for token in answer.unique().tolist():
        text = token_strings([token], tokenizer)[0]
        spaced = single_token(" " + text, tokenizer) if text.strip() and not text[0].isspace() else None
        with_space[token] = token if spaced is None else spaced
    return torch.tensor([with_space[token] for token in answer.tolist()])


def _shown(
    job: Job, which: Tensor, final: Float[Tensor, "prompt d_model"], prompts: list[str], tokens: Sequence[Tensor]
) -> str:
    """How many prompts, and for the first few both tokens with their probabilities."""

    def lines() -> Iterator[str]:
        for index in which.nonzero()[:_SHOWN, 0].tolist():
            ids = [int(each[index]) for each in tokens]
            p = job.backend.unembed(final[index]).float().softmax(-1)[ids].tolist()
            shown = zip(token_strings(ids, job.model.tokenizer), p, strict=True)
            yield f"{prompts[index]!r} ({' against '.join(f'{text!r} {share:.2g}' for text, share in shown)})"

    n = int(which.sum())
    rest = f" and {n - _SHOWN} more" if n > _SHOWN else ""
    return f"{n} of {len(prompts)} prompt{'s' * (len(prompts) != 1)}: {', '.join(lines())}{rest}"
