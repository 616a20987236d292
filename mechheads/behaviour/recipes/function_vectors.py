"""Function-vector heads: heads whose mean output on worked examples makes the model do the task without them.

Todd et al. 2024, "Function Vectors in Large Language Models", arXiv 2310.15213, section 2:

| paper | here |
|---|---|
| task t, its ICL prompts P_t | a relation, its few-shot prompts |
| mean task-conditioned activation of a head | ``mean_z``, before W_O; at the last token |
| uninformative ICL prompt | the same prompt with its labels shuffled (``mh.labels.shuffled_labels``) |
| causal indirect effect, f = probability of the answer | ``values``; f is any metric, by default the log-probability |
| AIE of a head | ``scores`` at layer, head |
| function vector v_t | ``function_vector`` |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.behaviour.against_control import against_control
from mechheads.engine.evaluate import Evaluator
from mechheads.engine.job import prepare
from mechheads.engine.sweep import sweep
from mechheads.heads import HeadLike, check_heads
from mechheads.interventions.base import Context
from mechheads.labels.few_shot import shuffled_labels
from mechheads.labels.relations import RelationLike, load_relations
from mechheads.limits import current
from mechheads.messages.arguments import Positive
from mechheads.metrics.base import Metric, MetricInfo
from mechheads.metrics.basic import as_metric, log_prob
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.prompts.prompts import PromptPairs, Prompts, Side
from mechheads.results.netcdf import text_array
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.stats import mean_over_prompts

RELATIONS = (
    "country_to_capital",
    "word_to_antonym",
    "verb_to_past_tense",
    "english_to_spanish",
    "object_to_superclass",
    "word_to_first_letter",
)
TEMPLATE = "Q: {source}\nA: {target}\n"
"""As in the paper. It does not say what the task is, so that only the examples do."""
SIDES: tuple[Side, ...] = get_args(Side)
_DIMS = ("layer", "head", "relation")


@analysis
def function_vector_heads(
    model: Model,
    relations: RelationLike | Iterable[RelationLike] = RELATIONS,
    *,
    shots: int = 5,
    n: Positive = 16,
    template: int | str = TEMPLATE,
    metric: Metric | str = log_prob,
    heads: Sequence[HeadLike] | HeadLike | None = None,
) -> HeadScores:
    """How far the mean output of each head on worked examples brings back an answer that shuffled examples hide.

    For each relation, few-shot prompts are made in two versions: with the right targets, and with the same targets
    shuffled among the examples. Half of the questions give the mean z of every head at the last token of the right
    version. In the shuffled version of the other half, one head's z at the last token becomes this mean:

        effect = metric(shuffled prompt, with the head's mean z of its task) - metric(shuffled prompt)

    A head that carries *which task this is* raises the right answer of a question that it has not seen. The control is
    the same with the mean over shuffled prompts: what a typical output of the head does, whatever the task.

    Args:
        relations: names, paths of JSON files or ``Relation`` objects.
        shots: worked examples in each prompt.
        n: the largest number of questions of a relation that are measured; as many others give the means. A relation
            with fewer usable pairs is halved.
        template: a template such as ``"Q: {source}\\nA: {target}\\n"``, or an index in each relation's ``few_shot``.
        metric: what is measured, as in ``mh.sweep``. The paper uses the probability of the answer.
        heads: as in ``mh.sweep``; ``seed`` also draws questions and examples.

    Returns:
        The average indirect effect [layer, head, prompt], in the metric's unit, with intervals over questions;
        ``control``, and ``excess`` with ``excess_low`` and ``excess_high``, to which ``p_value`` and ``q_value``
        belong. ``by_relation`` and ``control_by_relation`` (layer, head, relation) are the effects in each relation,
        ``mean_z`` (layer, head, relation, d_head) what ``function_vector`` is made of, ``prompt_relation`` (prompt) the
        relation of each prompt, and ``clean_metric`` and ``shuffled_metric`` (prompt) the metric of the two versions
        of each prompt: if they do not differ, the examples do not help and there is nothing to carry. After Ctrl-C,
        heads that were not measured are NaN.

    Raises:
        ValueError: if an argument is not valid, or a relation has too few usable pairs; before the sweep.

    Todd et al. 2024 (arXiv 2310.15213).

    >>> found = mh.behaviour.function_vector_heads(
    ...     model, "country_to_capital", n=4, heads=["L20H5", "L2H0"])
    >>> found.heads(1)
    (HeadId(layer=20, head=5),)
    """
    metric = as_metric(metric)
    options: dict[str, Any] = {"shots": shots, "n": 2 * n, "template": template, "seed": current().seed}
    relations = load_relations(relations)
    asked, averaged = zip(
        *(_halves(shuffled_labels(model, each, **options), each.name) for each in relations), strict=True
    )
    of_prompt = np.repeat(np.arange(len(asked)), [len(pairs) for pairs in asked])
    clean, shuffled = (_joined(asked, side) for side in SIDES)
    job = prepare(model, shuffled)
    means = {side: torch.stack([_mean_z(model, each.side(side)) for each in averaged]) for side in SIDES}

    def effect(side: Side) -> HeadScores:
        give = GiveMean(means[side], torch.tensor(of_prompt, device=model.device))
        return sweep(job, intervention=give, metric=metric, heads=heads, positions="last")

    found = effect("clean")
    values = found.dataset["values"].values
    control, about = np.full_like(values, np.nan), found.provenance
    if not about["interrupted"]:
        other = effect("corrupted")
        control, about = other.dataset["values"].values, other.provenance
    of_clean = model.cache(clean, sites=("z",))
    names = [each.name for each in relations]

    def by_relation(effects: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
        means = [mean_over_prompts(effects[..., of_prompt == i]) for i in range(len(names))]
        return _DIMS, np.stack(means, axis=-1)

    return against_control(
        values,
        control,
        cluster=list(clean.cluster or ()),
        name="function-vector heads",
        unit=MetricInfo.of(metric).unit,
        kind="function_vector",
        provenance=make_provenance(about, relations=names),
        variables={
            "relation": ("relation", text_array(names)),
            "prompt_relation": ("prompt", text_array([names[i] for i in of_prompt])),
            "by_relation": by_relation(values),
            "control_by_relation": by_relation(control),
            "mean_z": ((*_DIMS, "d_head"), means["clean"].permute(1, 2, 0, 3).cpu().numpy()),
            "clean_metric": (
                "prompt",
                Evaluator(metric, of_clean, limits=current().limits.in_one_process).base_value.cpu().numpy(),
            ),
            "shuffled_metric": ("prompt", found.dataset["base_metric"].values),
        },
    )


@analysis
@torch.no_grad()
def function_vector(
    model: Model, scores: HeadScores, relation: str, heads: int | Sequence[HeadLike] = 10
) -> Float[Tensor, " d_model"]:
    """The function vector of a relation: what its strongest heads write on average at the last token of its prompts.

        v = sum over the heads of (mean z) W_O

    It goes to ``mh.generate(model, prompts, steer={layer: v})`` or to a hook of your own. The paper adds it at a third
    of the depth, at the last token. If the model has a norm after attention, its scale is part of v, and its statistics
    are not.

    Args:
        scores: from ``function_vector_heads``, of this model.
        relation: one of its relations.
        heads: so many of the heads with the largest scores, or the heads themselves. The paper uses 10 in a model of
            448 heads.

    Raises:
        ValueError: if the scores are of another kind or model, have no such relation, or a head does not exist.

    >>> found = mh.behaviour.function_vector_heads(
    ...     model, "country_to_capital", n=4, heads=["L20H5", "L2H0"])
    >>> mh.behaviour.function_vector(model, found, "country_to_capital", heads=1).shape
    torch.Size([576])
    """
    if "mean_z" not in scores.dataset:
        raise ValueError(f"scores are {scores.kind!r} scores; give the result of mh.behaviour.function_vector_heads")
    if (scores.n_layers, scores.n_heads) != (model.n_layers, model.n_heads):
        raise ValueError(
            f"scores are of {scores.n_layers} layers x {scores.n_heads} heads, but the model has {model.n_layers} x "
            f"{model.n_heads}; give the model that they were computed with"
        )
    known = scores.dataset["relation"].values.tolist()
    if relation not in known:
        raise ValueError(f"relation is {relation!r}; these scores have {', '.join(map(repr, known))}")
    chosen = scores.heads(heads) if isinstance(heads, int) else check_heads(heads, model.n_layers, model.n_heads)
    z = torch.tensor(scores.dataset["mean_z"].values[:, :, known.index(relation)], device=model.device)
    parts = [
        z[head.layer, head.head] @ model.W_O[head.layer][head.head].float() * model.attention_out_scale(head.layer)
        for head in chosen
    ]
    return torch.stack(parts).sum(0)


@dataclass(frozen=True, eq=False)
class GiveMean:
    """z becomes a given vector of the prompt's task.

    Attributes:
        means: for each task; ``task``: the task of each prompt.
    """

    means: Float[Tensor, "task layer head d_head"]
    task: Int[Tensor, " prompt"]
    needs: ClassVar = ()

    def __call__(self, value: Float[Tensor, "prompt pos d_head"], context: Context) -> Tensor:
        return self.means[self.task, context.head.layer, context.head.head][:, None].to(value).expand_as(value)


def _halves(pairs: PromptPairs, name: str) -> Iterator[PromptPairs]:
    """The questions of a relation that are measured, each a cluster of its own, and those that give the means."""
    half = (len(pairs) + 1) // 2
    answer, cluster = pairs.answer or (), [f"{name}: {source}" for source in pairs.cluster or ()]
    for some in (slice(None, half), slice(half, None)):
        yield PromptPairs(pairs.clean[some], pairs.corrupted[some], answer=answer[some], cluster=cluster[some])


def _joined(asked: Sequence[PromptPairs], side: Side) -> Prompts:
    """One version of all questions that are measured."""
    return Prompts(
        [text for pairs in asked for text in pairs.side(side).items],
        answer=[answer for pairs in asked for answer in pairs.answer or ()],
        cluster=[question for pairs in asked for question in pairs.cluster or ()],
    )


def _mean_z(model: Model, prompts: Prompts) -> Float[Tensor, "layer head d_head"]:
    """The mean z of every head at the last token, in float32."""
    run = model.cache(prompts, sites=("z",))
    row, last = torch.arange(len(prompts), device=model.device), run.tokens.lengths - 1
    return torch.stack([run.z.layer(layer)[row, :, last].float().mean(0) for layer in range(model.n_layers)])
