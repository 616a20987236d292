"""Gates: a factor on each head's z at every position, and the log-probability of a task's targets under gates.

    z_h <- g_h z_h,   g_h in [0, 1]

Many sets of gates run through the model at once, with a row for each set and item, or one for each set if items share
their first tokens (``shared_row``). At most positions, the last block computes only keys and values. Only the positions
whose next token belongs to a target are computed in full and unembedded. The weights need no gradients, so the backward
pass costs no more than the forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from mechheads.engine.job import intervention_for
from mechheads.engine.memory import tokens_in_flight
from mechheads.engine.report import AnswerWarning
from mechheads.gating.fitted import Reduce
from mechheads.gating.task import Task, TaskTokens
from mechheads.generation.generate import changes_of
from mechheads.heads import HeadId, HeadLike, named_heads
from mechheads.interventions.basic import Intervention, InterventionLike, Zero
from mechheads.interventions.new_z import EVERYWHERE, HeadChange, change_hooks, region
from mechheads.io.text import shown
from mechheads.limits import current
from mechheads.messages.notices import warn
from mechheads.model.analysis import analysis
from mechheads.model.changes import with_gradient
from mechheads.model.model import Model
from mechheads.model.parts import RecordedKeys, mask_of, until_stopped
from mechheads.model.proof import Claim, shortest_and_longest
from mechheads.progress import Bar
from mechheads.prompts.prompts import Prompts
from mechheads.prompts.tokens import Unpadded
from mechheads.runs.head_cache import KEY_SITES, token_bytes

_OF_GATES = -1
"""The number of runs under gates in proofs; they are not cached runs."""
Changes = Sequence[tuple[HeadChange, Bool[Tensor, " set"]]]
"""Changes of heads, each with a mask of the sets of gates that it applies to."""

_LONGEST = 128
"""The largest number of tokens in a shared row: beyond it, masked attention costs more than sharing saves."""
_SAMPLE = 16
_MUCH_MORE_LIKELY = float(np.log(10))


@dataclass(frozen=True, eq=False)
class SharedRow:
    """Several texts in one row, which has the first tokens that texts share only once: their states are the same."""

    item: Int[Tensor, " token"]  # a text that each token of the row belongs to
    position: Int[Tensor, " token"]  # the token's position in this text
    seen: Bool[Tensor, "token token"]  # whether each token of the row sees each other token
    index: Int[Tensor, "item pos"]  # the row's index of each token of each text; 0 from its end on


def shared_row(ids: Int[Tensor, "item pos"], ends: Int[Tensor, " item"]) -> SharedRow | None:
    """The first tokens of texts, up to each text's end, in one row; None if none is shared, or the row is too long."""
    numbers: dict[tuple[int, int], int] = {}  # of each token, by the number of the token before it and its id
    first: list[tuple[int, int]] = []
    seen: list[list[int]] = []
    index = torch.zeros_like(ids, device="cpu")
    for item, (text, end) in enumerate(zip(ids.tolist(), ends.tolist(), strict=True)):
        before, way = -1, []
        for position, token in enumerate(text[:end]):
            at = numbers.setdefault((before, token), len(numbers))
            way = [*way, at]
            if at == len(first):
                first.append((item, position))
                seen.append(way)
            index[item, position] = before = at
    if len(first) > _LONGEST or len(first) == ids.numel():
        return None
    sees = torch.zeros(len(first), len(first), dtype=torch.bool)
    for token, way in enumerate(seen):
        sees[token, way] = True
    items, positions = torch.tensor(first).T
    return SharedRow(*(each.to(ids.device) for each in (items, positions, sees, index)))


def warn_of_missing_spaces(task: Task, log_probs: Callable[[Task], Float[np.ndarray, " item"]]) -> None:
    """Warn if most of a task's whole targets would be much more likely with a leading space."""
    at = [i for i in range(len(task)) if _could_lack_a_space(task.prompts[i], task.targets[i])][:_SAMPLE]
    if not at:
        return
    some = task.items(at)
    spaced = Task(some.prompts, [f" {target}" for target in some.targets], name=task.name)
    try:
        plain, better = log_probs(some), log_probs(spaced)
    except ValueError:  # none of them can be used in one of the two forms
        return
    much = better - plain > _MUCH_MORE_LIKELY
    if 2 * much.sum() > len(at):
        i = int(much.argmax())
        warn(
            f"targets: with a leading space, {int(much.sum())} of {len(at)} are much more likely, such as "
            f"{spaced.targets[i]!r} ({better[i]:.2g} nats) than {some.targets[i]!r} ({plain[i]:.2g} nats) after "
            f"{shown(some.prompts[i])}. Write targets exactly as they continue the prompt",
            AnswerWarning,
        )


def _could_lack_a_space(prompt: object, target: object) -> bool:
    if not isinstance(prompt, str) or not isinstance(target, str):
        return False
    return not prompt[-1:].isspace() and not target[:1].isspace()


_SAVED = 1.2
"""Memory per token, in ``token_bytes``, that a frozen block saves for the backward pass; measured: 0.8 to 0.95."""
_LEAST_TOKENS = 256
"""If fewer tokens than this fit into memory, blocks are run again in the backward pass to save memory."""


@analysis
def task_log_prob(
    model: Model,
    task: Task,
    off: Sequence[HeadLike] | HeadLike | None = None,
    *,
    intervention: InterventionLike = "zero",
    reduce: Reduce = "mean",
) -> Float[np.ndarray, " item"]:
    """The log-probability of a task's targets, with some heads off.

    Args:
        off: the heads that are off at all positions; by default none.
        intervention: the output of a head that is off, as in ``mh.generate``; a ``"mean"`` is over all items' tokens.
        reduce: ``"mean"`` over the tokens of a target, or ``"sum"``, the log-probability of the whole target.

    Returns:
        One value for each item of the task, in nats; NaN for items that are rejected (see ``Task.tokens``).

    >>> task = mh.Task(["The capital of France is", "The capital of Italy is"], [" Paris", " Rome"])
    >>> intact = mh.task_log_prob(model, task)
    >>> bool((mh.task_log_prob(model, task, off=["L23H4", "L20H1"]) < intact).all())
    True
    """
    rule = intervention_for("intervention", intervention, task.prompts)
    none = off is None or (not isinstance(off, str) and isinstance(off, Sequence) and not len(off))
    named, _ = named_heads(None if none else off, model.n_layers, model.n_heads)
    is_off = torch.from_numpy(named & (not none))[None]
    tokens = usable_items(model, task)
    gates, changes = turned_off(model, tokens, torch.ones(is_off.shape), is_off, rule)
    values = np.full(len(task), np.nan)
    with Bar(total=len(tokens), desc="log-probs", leave=False) as bar:
        values[list(tokens.indices)] = under_gates(model, tokens, gates, changes, reduce=reduce, bar=bar)[0]
    return values


def turned_off(
    model: Model,
    tokens: TaskTokens,
    gates: Float[Tensor, "set layer head"],
    off: Bool[Tensor, "set layer head"],
    intervention: Intervention,
) -> tuple[Float[Tensor, "set layer head"], Changes]:
    """Gates, and further changes, that replace the heads that are off by an intervention's output."""
    if isinstance(intervention, Zero) or not off.any():
        return gates.masked_fill(off, 0), ()
    prompts = Prompts([Unpadded(row[:n]) for row, n in zip(tokens.ids.tolist(), tokens.lengths.tolist(), strict=True)])
    heads = [HeadId(layer, head) for layer, head in off.any(0).nonzero().tolist()]
    changes = []
    for change in changes_of(model, prompts.tokens(model), heads, intervention):
        size = model.n_heads // model.n_kv_heads if change.site in KEY_SITES else 1
        members = off[:, change.layer].unflatten(-1, (-1, size))[:, change.head]
        if not torch.equal(members.any(-1), members.all(-1)):
            raise ValueError(
                f"intervention changes {change.site}, which {size} heads share, and here they are turned off one after "
                "another; give one on z or q"
            )
        changes.append((change, members.all(-1)))
    return gates.masked_fill(off, 1), changes


def usable_items(model: Model, task: Task) -> TaskTokens:
    """The tokens of the items of a task that a model can use; warns of the others, and if targets lack a space."""

    def log_probs_of(some: Task) -> Float[np.ndarray, " item"]:
        tokens, values = some.tokens(model), np.full(len(some), np.nan)
        open_gates = torch.ones(1, model.n_layers, model.n_heads)
        values[list(tokens.indices)] = under_gates(model, tokens, open_gates, reduce="sum")[0]
        return values

    tokens = task.tokens(model)
    if tokens.rejected:
        first, why = next(iter(tokens.rejected.items()))
        warn(f"task {task.name!r}: {len(tokens.rejected)} of {len(task)} items left out, such as item {first}: {why}")
    _prove(model, tokens)
    warn_of_missing_spaces(task, log_probs_of)
    return tokens


def _prove(model: Model, tokens: TaskTokens) -> None:
    """Prove that with open gates, the shortest and the longest item equal the model's own forward pass."""
    two = tokens.items(torch.tensor(shortest_and_longest(tokens.lengths)))
    ids, lengths = two.ids[:, : int(two.lengths.max()) - 1], two.lengths - 1  # the last token predicts nothing
    with torch.no_grad():
        open_gates = torch.ones(1, model.n_layers, model.n_heads, device=model.device)
        final = _final_states(model, ids, lengths[:, None] - 1, open_gates, (), False)[0, :, 0]
    model.backend.proofs.claim_ends("the run under gates of item", ids, lengths, final)
    model.backend.proofs.prove()


def under_gates(
    model: Model,
    tokens: TaskTokens,
    gates: Float[Tensor, "set layer head"],
    changes: Changes = (),
    *,
    reduce: Reduce = "mean",
    bar: Bar | None = None,
) -> Float[np.ndarray, "set item"]:
    """The log-probability of every item's target under each set of gates and changes, in parts that fit into memory."""
    order = torch.argsort(tokens.lengths, stable=True)
    rows = rows_at_once(model, tokens, gradient=False).rows
    values = torch.empty(len(gates), len(tokens), dtype=torch.float64)
    with torch.no_grad():
        for sets, items in parts(len(gates), len(tokens), rows):
            at = order[items]
            some = [(change, under[sets]) for change, under in changes]
            part = log_probs(model, tokens.items(at), gates[sets].to(model.device), some, reduce=reduce)
            values[sets, at.cpu()] = part.cpu().double()
            if bar is not None:
                bar.update(part.numel())
    return values.numpy()


def log_probs(
    model: Model,
    tokens: TaskTokens,
    gates: Float[Tensor, "set layer head"],
    changes: Changes = (),
    *,
    reduce: Reduce = "mean",
    recompute: bool = False,
) -> Float[Tensor, "set item"]:
    """The log-probability of every item's target under each set of gates, at once and differentiable in the gates."""
    width = int(tokens.lengths.max()) - 1  # the prediction of the last token is not needed
    n_targets = tokens.is_target.sum(1)
    back = torch.arange(int(n_targets.max()), 0, -1, device=n_targets.device)
    at = (tokens.lengths[:, None] - 1 - back).clamp_min(0)  # a row ends with its target
    is_read = (back <= n_targets[:, None]).expand(len(gates), -1, -1)
    final = _final_states(model, tokens.ids[:, :width], at, gates, changes, recompute)
    _claim(model, tokens, gates, changes, at, is_read, final)
    targets = tokens.ids.gather(1, at + 1).expand_as(is_read)[is_read]
    each = -F.cross_entropy(model.unembed(final[is_read]), targets, reduction="none")
    total = each.new_zeros(is_read.shape).masked_scatter(is_read, each).sum(-1)
    return total / n_targets if reduce == "mean" else total


def _claim(
    model: Model,
    tokens: TaskTokens,
    gates: Float[Tensor, "set layer head"],
    changes: Changes,
    at: Int[Tensor, "item read"],
    is_read: Bool[Tensor, "set item read"],
    final: Float[Tensor, "set item read d_model"],
) -> None:
    """Have two items under gates that are not all open proved, once in an analysis and not while gates are fitted."""
    if bool((gates[0] == 1).all()) or not model.backend.proofs.new(_OF_GATES, 0, (0,)):
        return
    of_heads = [HeadChange(i, None, "z", partial(_gate, gates=gates[:1, i].detach())) for i in range(model.n_layers)]
    hooks = change_hooks(model, [(change, EVERYWHERE) for change in (*of_heads, *(c for c, on in changes if on[0]))])
    edits = [(name, partial(hook, hook=None)) for name, hook in hooks]
    for i in shortest_and_longest(tokens.lengths):
        ids, read = tuple(tokens.ids[i, : int(tokens.lengths[i]) - 1].tolist()), is_read[0, i]
        states = final[0, i, read].detach()
        model.backend.proofs.claim(
            [Claim(f"the run under gates of item {i}", ids, tuple(at[i, read].tolist()), states, edits)]
        )


def _final_states(
    model: Model,
    ids: Int[Tensor, "item pos"],
    at: Int[Tensor, "item read"],
    gates: Float[Tensor, "set layer head"],
    changes: Changes,
    recompute: bool,
) -> Float[Tensor, "set item read d_model"]:
    """States after the final norm at the positions ``at``, for each set and item."""
    backend, last, queries = model.backend, model.n_layers - 1, model.backend.layout == "queries"
    n_sets, n_read, width = len(gates), at.shape[1], ids.shape[1]
    shared = shared_row(ids, at.amax(1) + 1) if queries else None
    with torch.no_grad():
        if shared is None:
            positions, at = torch.arange(width, device=ids.device), at.repeat(n_sets, 1)
            residual, blocks = backend.embed(ids.repeat(n_sets, 1))
        else:
            positions, at = shared.position, shared.index.gather(1, at).view(1, -1).repeat(n_sets, 1)
            residual = backend.embed(ids)[0][shared.item, positions].repeat(n_sets, 1, 1)
            blocks = backend.blocks_at(positions.repeat(n_sets, 1))

    def seen(layer: int) -> Tensor:
        visible = backend.visible(layer, width)
        return visible if shared is None else visible[positions][:, positions] & shared.seen

    def gated(layer: int, block: Callable[[], Tensor]) -> Tensor:
        gate = HeadChange(layer, None, "z", partial(_gate, gates=gates[:, layer]))
        rows = torch.arange(len(residual)).view(n_sets, -1)
        here = [(change, region(rows[sets].flatten())) for change, sets in changes if change.layer == layer]
        return backend.under(change_hooks(model, [(gate, EVERYWHERE), *here]), block)

    def block(layer: int, residual: Tensor, keys: RecordedKeys | None = None) -> Tensor:
        mask = None if shared is None else mask_of(seen(layer)[None, None], model.dtype)
        return blocks(layer, residual, keys, mask)

    def run(layer: int, residual: Tensor) -> Tensor:
        return gated(layer, partial(block, layer, residual))

    def read(residual: Tensor) -> Tensor:
        return residual.gather(1, at[..., None].expand(-1, -1, model.d_model))

    keys_change = any(change.layer == last and change.site in KEY_SITES for change, _ in changes)
    cut = queries and (shared is not None or n_read < width) and not keys_change
    for layer in range(last if cut else model.n_layers):
        if recompute:
            residual = checkpoint(run, layer, residual, use_reentrant=False, preserve_rng_state=False)
        else:
            residual = run(layer, residual)
    if cut:
        keys = RecordedKeys()
        until_stopped(last, lambda: block(last, residual, keys))
        mask = mask_of(seen(last)[at][:, None], model.dtype)
        residual = gated(last, partial(backend.blocks_at(positions[at]), last, read(residual), keys, mask))
    else:
        residual = read(residual)
    return backend.finish(residual).view(n_sets, len(ids), n_read, -1)


def _gate(
    z: Float[Tensor, "row pos head d_head"], gates: Float[Tensor, "set head"]
) -> Float[Tensor, "row pos head d_head"]:
    """z times the gates; rows are sets of gates, each with all its items."""
    factors = gates.to(z.dtype)[:, None, None, :, None]
    return (z.unflatten(0, (len(gates), -1)) * factors).flatten(0, 1)


@dataclass(frozen=True)
class Rows:
    """The number of rows to run at once, and whether blocks are run again in the backward pass to save memory."""

    rows: int
    recompute: bool


def rows_at_once(model: Model, tokens: TaskTokens, *, gradient: bool = True) -> Rows:
    """The number of rows that fit into memory; with ``gradient``, with a backward pass."""
    limits = current().limits
    limit = limits.memory
    if (free := model.backend.devices.free) is not None:
        limit = min(limit, free // 2)
    pos = max(1, tokens.ids.shape[1] - 1)
    block = token_bytes(model, pos)
    wanted, recompute = tokens_in_flight(model, limit, pos, limits), False
    if gradient:
        fit = int(limit / (_SAVED * model.n_layers * block))
        recompute = fit < _LEAST_TOKENS
        if recompute:
            fit = int(limit / (model.n_layers * model.d_model * model.dtype.itemsize + 3 * block))
        wanted = min(wanted, fit)
    n_read = int(tokens.is_target.sum(1).max())
    return Rows(max(1, min(wanted // pos, limits.logits // (n_read * model.d_vocab))), recompute)


def parts(n_sets: int, n_items: int, rows: int) -> Iterator[tuple[slice, slice]]:
    """Slices of sets and of items, in parts of about equal size with at most ``rows`` pairs of a set and an item."""
    sets_each = math.ceil(n_sets / math.ceil(n_sets / rows))
    items_each = math.ceil(n_items / math.ceil(n_items / max(1, rows // n_sets)))
    for item in range(0, n_items, items_each):
        for first in range(0, n_sets, sets_each):
            yield slice(first, first + sets_each), slice(item, item + items_each)


Objective = Callable[[Float[Tensor, "set layer head"], Int[Tensor, " some"], bool], Float[Tensor, "set some"]]
"""``(gates, items, recompute) -> loss`` of some items under each set of gates, differentiable in the gates."""
Loss = Callable[[Model, Float[Tensor, "set layer head"], Int[Tensor, " some"], bool], Float[Tensor, "set some"]]
"""An objective on any model, which workers compute on their own models."""


def value_and_gradient(
    objective: Objective,
    gates: Float[Tensor, "set layer head"],
    items: Int[Tensor, " some"],
    rows: Rows,
) -> tuple[Float[Tensor, " set"], Float[Tensor, "set layer head"]]:
    """The mean of an objective over some items and its gradient in the gates, for each set of gates."""
    loss, gradient = gates.new_zeros(len(gates)), torch.zeros_like(gates)
    for sets, some in parts(len(gates), len(items), rows.rows):
        with with_gradient():
            leaf = gates[sets].detach().requires_grad_()
            each = objective(leaf, items[some], rows.recompute).sum(1) / len(items)
            (part,) = torch.autograd.grad(each.sum(), leaf)
        loss[sets] += each.detach()
        gradient[sets] += part
    return loss, gradient
