"""The checks of an intervention outside sweeps: in sets of heads that are changed together, and in text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from mechheads.gating.fit.gates import task_log_prob
from mechheads.gating.tasks.task import Task
from mechheads.generation.changed import changes_of
from mechheads.generation.generate import generate
from mechheads.heads import HeadId
from mechheads.interventions.base import site_of
from mechheads.interventions.head_change import EVERYWHERE, change_hooks
from mechheads.limits import settings
from mechheads.model.backends.base import Hook
from mechheads.patching.head_sets import patch_sets
from mechheads.prompts.given import Unpadded
from mechheads.prompts.prompts import Prompts
from mechheads.prompts.tokens import Tokens
from mechheads.runs.head_cache import KEY_SITES
from mechheads.testing.slow_runs import SlowRun, forward, slow_sweep
from mechheads.testing.trials import TOLERANCE, InterventionTrial, Wrong, furthest_gap, log_prob_of_0, names_of

_WRITTEN = 2
"""How many tokens are written."""


def sets(tried: InterventionTrial) -> str:
    """Whether ``mh.patching.patch_sets`` agrees with full forward passes in which several heads have a new z."""
    heads, what = list(dict.fromkeys(tried.heads)), "mh.patching.patch_sets"
    asked = {"intervention": tried.intervention, "metric": log_prob_of_0, "direction": "noising"}
    with settings(progress=False):
        found = patch_sets(tried.model, tried.prompts, [heads], **asked)
    slow = slow_sweep(tried.runs, tried.intervention, heads)
    furthest = furthest_gap(slow, log_prob_of_0, found.values[0], what, names_of(heads))
    return f"{what} of {names_of(heads)} agrees with full forward passes to {furthest:.1g}"


def text(tried: InterventionTrial) -> str:
    """Whether ``mh.task_log_prob`` and ``mh.generate``, if they take it, agree with full forward passes."""
    model, rule, tokens = tried.model, tried.intervention, tried.runs.tokens
    heads, what = _whole_groups(tried), "mh.task_log_prob"
    rows = [Unpadded(row) for row in tokens.unpadded]
    try:
        while_written = _hooks(tried, heads, tokens)
    except ValueError as error:
        return f"cannot be used in text: {error}"
    with settings(progress=False):
        task = Task(rows, [Unpadded([0])] * len(rows))
        ours = task_log_prob(model, task, heads, intervention=rule) - task_log_prob(model, task)
        written = generate(model, Prompts(rows), _WRITTEN, off=heads, intervention=rule)
    in_task = _hooks(tried, heads, Prompts([Unpadded([*row, 0]) for row in rows]).tokens(model))
    slow = []
    for i, row in enumerate(rows):
        ids = torch.tensor([[*row, *written.ids[i]]], device=tokens.ids.device)
        one = replace(tokens.rows(slice(i, i + 1)), ids=ids[:, : len(row)])
        slow.append(SlowRun(one, forward(model, one.ids), forward(model, one.ids, in_task)))
        before_each = forward(model, ids, while_written)[0, len(row) - 1 : -1]
        for logits, token in zip(before_each, written.ids[i], strict=True):
            if (by := float(logits.max() - logits[token])) > TOLERANCE * max(1.0, float(logits.abs().max())):
                raise Wrong(
                    f"mh.generate continues prompt {i} with token {token}, but in a full forward pass another token's "
                    f"logit is larger by {by:.3g}; it should be the most likely token"
                )
    furthest = furthest_gap(slow, log_prob_of_0, ours, what, names_of(heads))
    return f"mh.generate and {what} without {names_of(heads)} agree with full forward passes to {furthest:.1g}"


def _whole_groups(tried: InterventionTrial) -> list[HeadId]:
    """The heads of the trial; if k or v is changed, with those that share it."""
    model = tried.model
    size = model.n_heads // model.n_kv_heads if site_of(tried.intervention) in KEY_SITES else 1
    firsts = dict.fromkeys(HeadId(head.layer, head.head // size * size) for head in tried.heads)
    return [HeadId(first.layer, first.head + i) for first in firsts for i in range(size)]


def _hooks(tried: InterventionTrial, heads: Sequence[HeadId], tokens: Tokens) -> list[Hook]:
    """TransformerLens' hooks that make the intervention's changes of text.

    Raises:
        ValueError: if it cannot change text.
    """
    changes = changes_of(tried.model, tokens, heads, tried.intervention)
    return change_hooks(tried.model, [(change, EVERYWHERE) for change in changes])
