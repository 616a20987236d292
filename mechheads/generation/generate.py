"""Generate text from many prompts at once, greedily or by sampling, with heads changed or not.

Several conditions, such as a model with and without some heads, share batches, so that the weights are read once for
all of them. ``mechheads.generation.batch`` writes one batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Annotated, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.engine.job import intervention_for
from mechheads.generation.batch import Batch
from mechheads.heads import HeadId, HeadLike, check_heads
from mechheads.interventions.basic import (
    Context,
    Intervention,
    InterventionLike,
    Mean,
    MeanOf,
    PatternOfTokens,
    site_of,
)
from mechheads.interventions.new_z import EVERYWHERE, HeadChange, change_hooks
from mechheads.io.text import described, entries
from mechheads.limits import current
from mechheads.messages.arguments import Positive, Within, check_arguments
from mechheads.messages.notices import until_interrupted, wrapped
from mechheads.model.analysis import analysis
from mechheads.model.backend import Hook
from mechheads.model.model import Model
from mechheads.model.proof import Claim
from mechheads.progress import Bar
from mechheads.prompts.chats import apply_template
from mechheads.prompts.encoding import text_ids, token_strings
from mechheads.prompts.prompts import Prompts, as_prompts
from mechheads.prompts.tokens import PromptLike, Tokens
from mechheads.runs.head_cache import KEY_SITES, HeadCache, token_bytes

Off = Sequence[HeadLike] | HeadLike
Texts = Callable[[], list[tuple[list[int], list[int]]]]
"""Returns, for each row of the current forward pass, its tokens so far and the positions that the pass computes."""


@torch.no_grad()
def changes_of(model: Model, tokens: Tokens, heads: Sequence[HeadId], intervention: Intervention) -> list[HeadChange]:
    """A change for each head that applies an intervention to any text; for each key/value head if its site is k or v.
    The mean of ``mh.Mean()`` is over ``tokens``; an intervention has no cached runs in its context."""
    if isinstance(intervention, Mean):
        intervention = MeanOf(HeadCache.run(model, tokens, sites=("z",), limits=current().limits))
    if isinstance(intervention, MeanOf):
        z = {head: intervention.of(head) for head in heads}
        changes = [HeadChange(head.layer, head.head, "z", partial(_constantly, z=z[head])) for head in heads]
    else:
        changes = _by_intervention(model, heads, intervention)
    for change in changes:
        _check_alone(change, model)
    return changes


def _heads_off(model: Model, off: Off) -> tuple[HeadId, ...]:
    if off is None:
        raise ValueError("off is None; give a list of heads, or leave it out to turn none off")
    if not isinstance(off, str) and isinstance(off, Sized) and not len(off):
        return ()
    return check_heads(off, model.n_layers, model.n_heads)


def _attending(model: Model, head: HeadId, rule: PatternOfTokens, texts: Texts) -> Hook:
    """A hook that gives a head the pattern that a rule makes of the tokens so far, in the rows that a pass computes."""

    def put(value: Tensor, hook: Any) -> Tensor:
        value = value.clone()
        for row, (ids, at) in zip(value[:, head.head], texts(), strict=True):
            weights = rule.weights(token_strings(ids, model.tokenizer))[at].to(row)
            row[: len(at)] = torch.nn.functional.pad(weights, (0, row.shape[-1]))[:, : row.shape[-1]]
        return value

    return model.hook_name("pattern", head.layer), put


def _constantly(value: Tensor, z: Tensor) -> Tensor:
    return z.to(value).expand_as(value)


def _by_intervention(model: Model, heads: Sequence[HeadId], intervention: Intervention) -> list[HeadChange]:
    """The changes of an intervention; one for each key/value head if it changes k or v."""
    site = site_of(intervention)
    if site == "pattern":
        raise ValueError(
            "intervention is on the pattern, of which text that is written has one row; give one on z or q"
        )
    size = model.n_heads // model.n_kv_heads if site in KEY_SITES else 1
    firsts = dict.fromkeys(HeadId(head.layer, head.head - head.head % size) for head in heads)
    for first in firsts:
        group = [HeadId(first.layer, first.head + i) for i in range(size)]
        if missing := [head for head in group if head not in heads]:
            shared, rest = (", ".join(map(str, some)) for some in (group, missing))
            raise ValueError(
                f"intervention changes {site}, which {shared} share; turn off {rest} too, or give one on z or q"
            )
    put = partial(_put, intervention=intervention)
    return [HeadChange(first.layer, first.head // size, site, partial(put, head=first)) for first in firsts]


def _put(value: Tensor, intervention: Intervention, head: HeadId) -> Tensor:
    every = torch.ones(value.shape[:2], dtype=torch.bool, device=value.device)
    return intervention(value, Context(head, None, None, every))  # pyright: ignore[reportArgumentType]


def _check_alone(change: HeadChange, model: Model) -> None:
    """Check that a change treats every row and position by itself, because text is written token by token."""
    must = (
        "intervention must treat every row and every position on its own, without context.base, as text is written "
        "token by token"
    )
    value = torch.linspace(-1, 1, 6 * model.d_head).view(2, 3, -1).to(model.device, model.dtype)
    try:
        new = change.function(value.clone())
        apart, alone = (change.function(tokens.clone()) for tokens in (value.view(6, 1, -1), value[1:, 2:]))
        same = [(value, new), (new.reshape(6, 1, -1), apart), (new[1:, 2:], alone)]
        shapes = [(list(one.shape), list(other.shape)) for one, other in same]
    except (RuntimeError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{must}; on two rows of three tokens, or on one, it fails: {error}") from error
    if any(one != other for one, other in shapes):
        raise ValueError(f"{must}; of values of shape {list(value.shape)} it makes {shapes[0][1]}")
    if not all(torch.allclose(one.float(), other.float(), 1e-2, 1e-2, equal_nan=True) for one, other in same[1:]):
        raise ValueError(f"{must}; it gives a token another value when it comes alone")


@dataclass(frozen=True)
class Sampling:
    """How many tokens are written, and how each is chosen.

    Attributes:
        max_new_tokens: the largest number of new tokens for each prompt.
        temperature: 0 chooses the most probable token; otherwise tokens are drawn from logits divided by it.
        top_k: draw from this many most probable tokens only; None for all.
        seed: of the random numbers; None for the seed of ``mh.settings``. A random number depends only on the seed, the
            prompt's tokens and the index of the new token, so a text stays the same if ``max_new_tokens`` grows or
            other prompts are left out. Copies of a prompt have random numbers of their own.

    >>> from mechheads.generation.generate import Sampling
    >>> Sampling(max_new_tokens=3, temperature=0.7)
    Sampling(max_new_tokens=3, temperature=0.7, top_k=None, seed=None)
    """

    max_new_tokens: Positive = 128
    temperature: Annotated[float, Within(least=0)] = 0.0
    top_k: Positive | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        check_arguments(type(self), vars(self))
        if self.top_k is not None and not self.temperature:
            raise ValueError(f"top_k is {self.top_k}, but temperature 0 draws nothing; give temperature=1.0 to sample")

    def noise(self, prompts: Sequence[Sequence[int]], device: torch.device) -> Float[Tensor, "prompt step"] | None:
        """A random number from 0 to 1 for each prompt (its ids) and step; None if nothing is drawn."""
        if not self.temperature:
            return None
        seed = current().seed if self.seed is None else self.seed
        copies: Counter[tuple[int, ...]] = Counter()
        drawn = np.empty((len(prompts), self.max_new_tokens), np.float32)
        for row, ids in zip(drawn, map(tuple, prompts), strict=True):
            np.random.default_rng([seed, copies[ids], *ids]).random(out=row, dtype=np.float32)
            copies[ids] += 1
        return torch.from_numpy(drawn).to(device)

    def choose(
        self,
        noise: Float[Tensor, "prompt step"] | None,
        logits: Float[Tensor, "row d_vocab"],
        prompts: Int[Tensor, " row"],
        step: int,
    ) -> Int[Tensor, " row"]:
        """The token of each row, drawn with the random numbers of all prompts; without these, the most probable one."""
        if noise is None:
            return logits.argmax(-1)
        best = None if self.top_k is None else logits.topk(min(self.top_k, logits.shape[-1]))
        drawn_from = (logits if best is None else best.values).double() / self.temperature
        reached = drawn_from.softmax(-1).cumsum(-1)
        wanted = noise[prompts, step].double() * reached[:, -1]
        at = torch.searchsorted(reached, wanted[:, None], right=True)
        return (at if best is None else best.indices.gather(-1, at))[:, 0]


GREEDY = Sampling()
"""Up to 128 new tokens, each the most probable."""


@dataclass(frozen=True)
class Generated:
    """Generated texts, one entry for each prompt.

    Attributes:
        texts: the new text without special tokens; token ids as text if there is no tokenizer.
        ids: the new tokens, without the end token.
        finished: whether the model wrote an end token. If not, the text was cut at ``max_new_tokens`` or by Ctrl-C.
        interrupted: whether Ctrl-C ended the call, under this condition or another.
        unfinished: indices of the prompts whose texts were cut by Ctrl-C.
    """

    texts: tuple[str, ...]
    ids: tuple[tuple[int, ...], ...]
    finished: tuple[bool, ...]
    interrupted: bool = False
    unfinished: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.texts)

    def __str__(self) -> str:
        return wrapped("\n".join(map(repr, self.texts)))


@analysis
def generate(
    model: Model,
    prompts: Prompts | Sequence[PromptLike],
    sampling: Sampling | int = GREEDY,
    *,
    off: Off = (),
    intervention: InterventionLike = "mean",
    hooks: Sequence[Hook] = (),
) -> Generated:
    """The continuations of prompts, up to an end token or ``sampling.max_new_tokens``, with heads on or off.

    Of the model's own generation settings, ``repetition_penalty``, ``no_repeat_ngram_size`` and ``suppress_tokens``
    apply as in its own ``generate``; the others, such as beams, do not.

    Args:
        prompts: a list of strings, chats or ids, or ``Prompts``.
        sampling: how many tokens are written, and how each is chosen. A whole number is the largest number of new
            tokens, each the most probable. By default up to 128.
        off: heads that are off while the prompt is read and while new tokens are written.
        intervention: the output of a head that is off, as in ``mh.sweep``: ``"mean"``, its mean over all tokens of the
            prompts; ``"zero"``; ``"uniform"``, its output if it attends equally to all tokens so far; or any other that
            treats every token by itself, without ``context.base``.
        hooks: (hook name, function of value and hook), with names from ``Model.hook_name``. They are called for the
            prompt, perhaps in two parts, and then for one token at a time of each unfinished row. So a function must
            treat every row and every position independently.

    Returns:
        Texts and ids; after Ctrl-C, with a warning, those written until then.

    Raises:
        ValueError: before anything is run, if prompt and new tokens are too long for the model's context; if the logits
            are NaN.

    >>> prompts = ["The capital of France is"]
    >>> mh.generate(model, prompts, 3).texts
    (' Paris.\\n',)
    >>> without = mh.generate(model, prompts, 3, off=[f"L0H{head}" for head in range(9)])
    >>> " Paris" in without.texts[0]
    False
    """
    check_hooks(model, hooks)
    sampling = Sampling(max_new_tokens=sampling) if isinstance(sampling, int) else sampling
    resolved = as_prompts(prompts)
    writer = _Writer(model, resolved, [()], hooks, sampling)
    tokens, rule = writer.ready(), intervention_for("intervention", intervention, resolved)
    if heads := _heads_off(model, off):
        if isinstance(rule, PatternOfTokens) and site_of(rule) == "pattern":
            writer = replace(writer, attending=lambda texts: [_attending(model, head, rule, texts) for head in heads])
        else:
            writer = replace(writer, conditions=[changes_of(model, tokens, heads, rule)])
    return writer.write()[0]


def check_hooks(model: Model, hooks: Sequence[Hook]) -> None:
    """Check that hooks are pairs of a hook name of the model and a function."""
    for index, hook in enumerate(entries(hooks, "hooks", "pairs (hook name, function)")):
        if not isinstance(hook, (tuple, list)) or len(hook) != 2 or not callable(hook[1]):
            raise ValueError(f"hooks[{index}] is {described(hook)}; give (hook name, function of value and hook)")
        if hook[0] not in model.model.hook_dict:
            raise ValueError(f"hooks: the model has no hook {hook[0]!r}; Model.hook_name gives a head's hook names")


@analysis
def generate_under(
    model: Model,
    prompts: Prompts | Sequence[PromptLike],
    conditions: Sequence[Sequence[HeadChange]],
    sampling: Sampling = GREEDY,
) -> list[Generated]:
    """The continuations under several conditions, each a list of changes; random numbers are the same for all."""
    return _Writer(model, as_prompts(prompts), conditions, (), sampling).write()


def check_writing(model: Model, prompts: Prompts | Sequence[PromptLike], sampling: Sampling) -> None:
    """Check the prompts and their lengths for ``generate``, without running the model."""
    _Writer(model, as_prompts(prompts), [()], (), sampling).ready()


@dataclass(frozen=True)
class _Writer:
    """Writes every prompt under every condition, batch by batch. Rows are ordered by condition, then prompt."""

    model: Model
    prompts: Prompts
    conditions: Sequence[Sequence[HeadChange]]
    hooks: Sequence[Hook]
    sampling: Sampling
    attending: Callable[[Texts], list[Hook]] = lambda texts: []

    def write(self) -> list[Generated]:
        tokens, limits = self.ready(), current().limits
        n = len(tokens)
        new, noise = self.sampling.max_new_tokens, self.sampling.noise(tokens.unpadded, self.model.device)
        choose = partial(self.sampling.choose, noise)
        ends = torch.tensor(end_tokens(self.model), dtype=torch.long, device=self.model.device)
        answers: list[tuple[tuple[int, ...], bool]] = [((), False)] * (n * len(self.conditions))
        bar = Bar(total=len(answers) * new, desc=f"writing up to {len(answers) * new:,} tokens", leave=False)
        with until_interrupted() as interrupts, torch.no_grad(), bar:
            for rows in self._batches(tokens, limits.memory):
                prompts, conditions = [row % n for row in rows], [row // n for row in rows]
                batch = Batch(self.model, tokens, prompts, conditions, new, limits)
                try:
                    write = partial(batch.run, choose, ends, bar)
                    changes = [*self.attending(batch.texts), *self._changes(batch), *self.hooks]
                    self.model.backend.under(changes, write)
                finally:
                    for row, written in zip(rows, batch.written(), strict=True):
                        answers[row] = written
                self._claim(batch)
        done = sum(map(self._is_done, answers))
        interrupts.warn(f"{done} of {len(answers)} answers", "the others are as far as they got")
        starts = range(0, len(answers), n)
        return [self._generated(answers[start : start + n], interrupts.interrupted) for start in starts]

    def _claim(self, batch: Batch) -> None:
        """Have the shortest and the longest text of a batch proved; none under hooks of the caller."""
        sizes = batch.seen.tolist()
        if self.hooks or not min(sizes):
            return
        for row in sorted({sizes.index(min(sizes)), sizes.index(max(sizes))}):
            ids = tuple(batch.ids[row, : sizes[row]].tolist())
            whole = [*ids], [*range(len(ids))]
            changes = [(change, EVERYWHERE) for change in self.conditions[int(batch.condition[row])]]
            hooks = [*self.attending(partial(list, [whole])), *change_hooks(self.model, changes)]
            edits = [(name, partial(hook, hook=None)) for name, hook in hooks]
            what = f"the text written after prompt {int(batch.prompt[row])}"
            claim = Claim(what, ids, (len(ids) - 1,), batch.state[row : row + 1], edits or None)
            self.model.backend.proofs.claim([claim])

    def ready(self) -> Tokens:
        """The tokens of the prompts, checked to leave room for the new ones."""
        tokens = self.prompts.tokens(self.model)
        longest = int(tokens.lengths.argmax())
        length, alike = int(tokens.lengths[longest]), self.model.alike_up_to
        new, context = self.sampling.max_new_tokens, self.model.n_ctx
        if alike < length + new <= context:
            raise ValueError(
                f"max_new_tokens is {new}, and prompt {longest} has {length} tokens; beyond {alike} tokens this model "
                "changes the rotation of every position (LongRoPE), so the keys and values computed before no longer "
                f"hold. Give at most {alike - length}, or shorter prompts"
            )
        if length + new > context:
            raise ValueError(
                f"max_new_tokens is {new}, and prompt {longest} has {length} tokens; this model's context holds "
                f"{context}: give at most {context - length}, or shorter prompts"
            )
        return tokens

    def _batches(self, tokens: Tokens, limit: int) -> Iterator[list[int]]:
        """The rows of each batch: the longest prompts first, each with all its conditions."""
        model, pos = self.model, tokens.ids.shape[1] + self.sampling.max_new_tokens
        cached = 0 if model.backend.layout == "whole" else 2 * model.n_layers * model.n_kv_heads * model.d_head
        row = model.dtype.itemsize * pos * (cached + 2 * model.d_model) + token_bytes(model, pos) + 12 * model.d_vocab
        size = max(1, (limit - limit // 4) // row)
        lengths = tokens.lengths.tolist()
        order = sorted(range(len(lengths)), key=lambda prompt: -lengths[prompt])
        for _, alike in groupby(order, key=lambda prompt: lengths[prompt] if model.backend.layout == "rows" else 0):
            some = [prompt + i * len(lengths) for prompt in alike for i in range(len(self.conditions))]
            yield from (some[start : start + size] for start in range(0, len(some), size))

    def _changes(self, batch: Batch) -> list[Hook]:
        """Hooks that apply each condition's changes to its own rows."""
        changes = [
            (change, (partial(batch.rows_of, i), slice(None)))
            for i, changes in enumerate(self.conditions)
            for change in changes
        ]
        return change_hooks(self.model, changes)

    def _is_done(self, row: tuple[tuple[int, ...], bool]) -> bool:
        ids, ended = row
        return ended or len(ids) == self.sampling.max_new_tokens

    def _generated(self, rows: list[tuple[tuple[int, ...], bool]], interrupted: bool) -> Generated:
        tokenizer, ids = self.model.tokenizer, tuple(row for row, _ in rows)
        texts = [
            " ".join(map(str, row)) if tokenizer is None else tokenizer.decode(row, skip_special_tokens=True)
            for row in ids
        ]
        unfinished = tuple(i for i, row in enumerate(rows) if not self._is_done(row))
        return Generated(tuple(texts), ids, tuple(ended for _, ended in rows), interrupted, unfinished)


def end_tokens(model: Model) -> list[int]:
    """The ids that end an answer, by the tokenizer, the model's configurations and the chat template."""
    own = getattr(model.model, "original_model", None)
    sources = [
        getattr(model.tokenizer, "eos_token_id", None),
        model.backend.configuration.get("eos_token_id"),
        getattr(getattr(own, "generation_config", None), "eos_token_id", None),
        _end_of_turn(model.tokenizer),
    ]
    each = [token for ids in sources for token in (ids if isinstance(ids, list | tuple) else [ids])]
    return sorted({int(token) for token in each if token is not None})


def _end_of_turn(tokenizer: Any) -> int | None:
    """The special token that the chat template writes after an answer, if there is one."""
    if not getattr(tokenizer, "chat_template", None):
        return None
    chat = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}]
    try:
        after = apply_template(tokenizer, chat).rpartition("answer")[2].strip()
    except ValueError:  # a template may refuse such a chat
        return None
    ids = text_ids(after, tokenizer, special=False)[0]
    return ids[0] if ids and getattr(tokenizer.added_tokens_decoder.get(ids[0]), "special", False) else None
