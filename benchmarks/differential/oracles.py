"""Analyses, each with mechheads' public functions and in plain transformers, one full forward pass after another."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

import mechheads as mh
from benchmarks.differential.containers import NotSo, Rows, ids_of
from mechheads.interventions.basic import Intervention, UniformAttention
from support.plain import Change, Plain, Spot
from support.tiny_families import WORDS

Head = tuple[int, int]
NEW_TOKENS = 3


@dataclass
class Question:
    """What is asked of a model.

    Attributes:
        bring: the prompts in their container, clean (0) or corrupted (1); new each time.
        rows, corrupted: the tokens that are meant.
        texts: the clean prompts.
        heads: the heads that are changed.
        last: whether a head is changed at the last token only.
        answers, cluster: what ``answer`` and ``wrong``, and ``cluster``, come in.
        store: the file of finished units.
    """

    bring: Callable[[int], Any]
    rows: Rows
    corrupted: Rows
    texts: Sequence[str]
    tokenizer: Any
    heads: tuple[Head, ...]
    last: bool = False
    answers: str = "ids"
    cluster: str = "none"
    store: str | None = None

    @property
    def names(self) -> list[str]:
        return [f"L{layer}H{head}" for layer, head in self.heads]

    @property
    def positions(self) -> Any:
        return "last" if self.last else "all"

    @cached_property
    def ids(self) -> tuple[list[int], list[int]]:
        """The answer and the wrong answer of each prompt."""
        return tuple([(37 * i + start) % 200 + 300 for i in range(len(self.rows))] for start in (0, 91))  # pyright: ignore

    @cached_property
    def brought(self) -> tuple[Any, Any, bool]:
        """Both answers in their containers, and whether they have a meaning."""
        make, means = ANSWERS[self.answers]
        one, other = (make(ids, self) for ids in self.ids)
        return one, other, means

    @cached_property
    def targets(self) -> list[tuple[Any, list[int] | None]]:
        """What should follow each prompt, as it is given, and its tokens; None if its prompt has other ones then."""
        if not self.texts:
            return [([one, other], [one, other]) for one, other in zip(*self.ids, strict=True)]
        found = []
        for i, (text, row) in enumerate(zip(self.texts, self.rows, strict=True)):
            target = f" {WORDS[31 * i + 5]} {WORDS[i]}"
            whole = ids_of(text + target, self.tokenizer)
            found.append((target, whole[len(row) :] if whole[: len(row)] == row else None))
        return found

    @property
    def clusters(self) -> tuple[Any, bool]:
        make, means = CLUSTERS[self.cluster]
        return make(len(self.rows)), means

    def prompts(self) -> Any:
        answer, wrong, _ = self.brought
        return mh.Prompts(self.bring(0), answer=answer, wrong=wrong, cluster=self.clusters[0])

    def pairs(self) -> mh.PromptPairs:
        answer, wrong, _ = self.brought
        return mh.PromptPairs(self.bring(0), self.bring(1), answer=answer, wrong=wrong, cluster=self.clusters[0])

    def picked(self, scores: mh.HeadScores) -> list[np.ndarray]:
        values = np.asarray(scores.values, dtype=float)
        return [np.array([values[layer, head].reshape(-1) for layer, head in self.heads])]


def _text_of(ids: list[int], question: Question) -> list[str]:
    """Each answer as the text that has this token after its prompt."""
    texts = []
    for text, row, token in zip(question.texts, question.rows, ids, strict=True):
        if (name := question.tokenizer.convert_ids_to_tokens(token)) is None:
            raise NotSo("no such token")
        piece = question.tokenizer.convert_tokens_to_string([name])
        for answer in (piece, f" {piece}", piece.strip()):
            if answer and ids_of(text + answer, question.tokenizer) == [*row, token]:
                texts.append(answer)
                break
        else:
            raise NotSo("no such text")
    return texts


def _filtered(items: Sequence[Any]) -> pd.Series:
    every = pd.Series([each for item in items for each in (item, item)])
    return every.loc[[i for i in range(len(every)) if i % 2]]


Make = Callable[[list[int], Question], Any]
ANSWERS: dict[str, tuple[Make, bool]] = {
    "ids": (lambda ids, _: ids, True),
    "array of ids": (lambda ids, _: np.array(ids), True),
    "array of int16": (lambda ids, _: np.array(ids, dtype=np.int16), True),
    "tensor of ids": (lambda ids, _: torch.tensor(ids), True),
    "Series of ids": (lambda ids, _: pd.Series(ids), True),
    "filtered Series of ids": (lambda ids, _: _filtered(ids), True),
    "texts": (_text_of, True),
    "array of texts": (lambda ids, q: np.array(_text_of(ids, q)), True),
    "filtered Series of texts": (lambda ids, q: _filtered(_text_of(ids, q)), True),
    "Series of strings": (lambda ids, q: pd.Series(_text_of(ids, q), dtype="string"), True),
    "iterator of ids": (lambda ids, _: iter(ids), True),
    "dict of ids": (lambda ids, _: {f"answer {i}": each for i, each in enumerate(ids)}, False),
    "set of ids": (lambda ids, _: set(ids), False),
    "whole floats": (lambda ids, _: [float(each) for each in ids], False),
    "array of floats": (lambda ids, _: np.array(ids, dtype=float), False),
    "tensor of floats": (lambda ids, _: torch.tensor(ids).float(), False),
    "floats": (lambda ids, _: [each + 0.7 for each in ids], False),
    "Series with a hole": (lambda ids, _: pd.Series([*ids[:-1], None], dtype="float"), False),
    "booleans": (lambda ids, _: [True for _ in ids], False),
    "None in a list": (lambda ids, _: [*ids[:-1], None], False),
    "bytes": (lambda ids, _: [b"bad" for _ in ids], False),
    "lists of an id": (lambda ids, _: [[each] for each in ids], False),
    "empty texts": (lambda ids, _: ["" for _ in ids], False),
    "negative": (lambda ids, _: [-each for each in ids], False),
    "unknown": (lambda ids, _: [each + 100_000 for each in ids], False),
    "one too many": (lambda ids, _: [*ids, 5], False),
    "one text": (lambda ids, _: "b" * len(ids), False),
    "a number": (lambda ids, _: ids[0], False),
}
"""What answers come in, and whether they have a meaning."""

CLUSTERS: dict[str, tuple[Callable[[int], Any], bool]] = {
    "none": (lambda n: None, True),
    "texts": (lambda n: [f"c{i % 2}" for i in range(n)], True),
    "array": (lambda n: np.array([f"c{i % 2}" for i in range(n)]), True),
    "filtered Series": (lambda n: _filtered([f"c{i % 2}" for i in range(n)]), True),
    "numbers": (lambda n: [i % 2 for i in range(n)], True),
    "NaN": (lambda n: [float("nan")] * n, False),
    "hole": (lambda n: pd.Series([*(["c"] * (n - 1)), None]), False),
    "one text": (lambda n: "c" * n, False),
    "one too few": (lambda n: ["c"] * (n - 1), False),
}


@dataclass(frozen=True)
class Analysis:
    """An analysis.

    Attributes:
        ours: what mechheads gives.
        check: what it should be, each with a name and beside ours: (name, ours, plain, size of rounding's unit).
        pairs: whether it compares clean and corrupted prompts.
        answers: whether it reads answers.
        takes: the kinds of prompts that it must read; none if it has no prompts.
        store: whether a ledger can keep what it has finished.
    """

    ours: Callable[[mh.Model, Question], list[Any]]
    check: Callable[[Plain, Question, list[Any]], list[tuple[str, np.ndarray, np.ndarray]]]
    pairs: bool = False
    answers: bool = False
    takes: tuple[str, ...] = ("text", "ids", "chat")
    store: bool = False


def _numpy(each: Tensor) -> np.ndarray:
    return each.detach().double().cpu().numpy()


def _cache(model: mh.Model, question: Question) -> list[Any]:
    run = model.cache(question.bring(0))
    result = torch.stack([_attention_out(run, model, layer) for layer in range(model.n_layers)], 1)
    z = torch.stack([run.z.layer(layer) for layer in range(model.n_layers)], 1)
    pattern = torch.stack([run.pattern.layer(layer) for layer in range(model.n_layers)], 1)
    found = []
    for i, length in enumerate(run.tokens.lengths.tolist()):
        attended = pattern[i, :, :, :length, :length]
        found.append(
            [_numpy(x) for x in (run.logits[i, :length], z[i, :, :, :length], result[i, :, :length], attended)]
        )
    return found


def _attention_out(run: mh.patching.HeadCache, model: mh.Model, layer: int) -> Tensor:
    """What the heads of a layer write, with its bias."""
    written, bias = run.result.layer(layer).sum(1), model.b_O(layer)
    return written if bias is None else written + bias


def _plain_cache(plain: Plain, question: Question, found: list[Any]) -> list[tuple[str, np.ndarray, np.ndarray]]:
    pairs = []
    for (logits, z, result, pattern), row in zip(found, question.rows, strict=True):
        seen: dict[int, Tensor] = {}
        out: dict[int, Tensor] = {}
        watch = [(("z", layer), _keeper(seen, layer)) for layer in range(plain.n_layers)]
        hooked = nn.modules.module._global_forward_hooks or any(at.out._forward_hooks for at in plain.attention)
        handles = [at.out.register_forward_hook(_watcher(out, layer)) for layer, at in enumerate(plain.attention)]
        try:
            truth = plain.run(row, watch)
        finally:
            for handle in handles:
                handle.remove()
        pairs.append(("logits", logits, _numpy(truth)))
        theirs = torch.stack([seen[layer].reshape(len(row), plain.n_heads, -1) for layer in range(plain.n_layers)])
        pairs.append(("z", z, _numpy(theirs.transpose(1, 2))))
        if not hooked:  # the result is z W_O, whatever a hook makes of it
            pairs.append(("result", result, _numpy(torch.stack([out[k].reshape(len(row), -1) for k in sorted(out)]))))
        asked = {"use_cache": False, "output_attentions": True, "return_dict": True}
        patterns = plain.model(input_ids=torch.tensor([row]), **asked).attentions
        if patterns and all(each is not None and each.shape[-2:] == (len(row), len(row)) for each in patterns):
            pairs.append(("pattern", pattern, _numpy(torch.stack([each[0] for each in patterns]))))
    return pairs


def _watcher(out: dict[int, Tensor], layer: int) -> Callable[[Any, Any, Tensor], None]:
    def keep(module: Any, given: Any, value: Tensor) -> None:
        out[layer] = value.clone()

    return keep


def _keeper(seen: dict[int, Tensor], layer: int) -> Change:
    def keep(value: Tensor) -> Tensor:
        seen[layer] = value.clone()
        return value

    return keep


def _z(plain: Plain, row: Sequence[int]) -> tuple[Tensor, dict[int, Tensor]]:
    """The last logits and each layer's z."""
    seen: dict[int, Tensor] = {}
    logits = plain.run(row, [(("z", layer), _keeper(seen, layer)) for layer in range(plain.n_layers)])
    return logits[-1], seen


def _only_last(change: tuple[Spot, Change], last: bool) -> tuple[Spot, Change]:
    spot, all_of = change

    def at_last(value: Tensor) -> Tensor:
        new = value.clone()
        new[:, -1:] = all_of(value)[:, -1:]
        return new

    return spot, at_last if last else all_of


def _kl(base: Tensor, new: Tensor) -> float:
    p, q = base.double().log_softmax(-1), new.double().log_softmax(-1)
    return float((p.exp() * (p - q)).sum())


def _diff(question: Question, i: int, logits: Tensor) -> float:
    answer, wrong = question.ids
    return float(logits[answer[i]] - logits[wrong[i]])


def _log_prob(question: Question, i: int, logits: Tensor) -> float:
    return float(logits.double().log_softmax(-1)[question.ids[0][i]])


Measure = Literal["kl", "diff", "log_prob"]


def _measured(measure: Measure, question: Question, i: int, base: Tensor, new: Tensor) -> float:
    if measure == "kl":
        return _kl(base, new)
    read = _diff if measure == "diff" else _log_prob
    return read(question, i, new) - read(question, i, base)


def _changed(
    measure: Measure,
    value: Callable[[Plain, Question, dict[int, Tensor], int, Head], Tensor],
    rows: Literal["rows", "corrupted"] = "rows",
) -> Callable[[Plain, Question, list[Any]], list[tuple[str, np.ndarray, np.ndarray]]]:
    """The check of an analysis that gives one head at a time another z, which ``value`` tells."""

    def check(plain: Plain, question: Question, found: list[Any]) -> list[tuple[str, np.ndarray, np.ndarray]]:
        truth = np.zeros((len(question.heads), len(question.rows)))
        for i, row in enumerate(getattr(question, rows)):
            base, seen = _z(plain, row)
            for h, head in enumerate(question.heads):
                new = plain.z_of(*head, value(plain, question, seen, i, head))
                changed = plain.run(row, [_only_last(new, question.last)])[-1]
                truth[h, i] = _measured(measure, question, i, base, changed)
        return [("effect", found[0], truth)]

    return check


def _mean_z(plain: Plain, question: Question, seen: dict[int, Tensor], i: int, head: Head) -> Tensor:
    every = [_z(plain, row)[1][head[0]].flatten(2)[0] for row in question.rows]
    return torch.cat(every).mean(0).expand(*seen[head[0]].flatten(2).shape)


def _undifferentiated(plain: Plain, question: Question, seen: dict[int, Tensor], i: int, head: Head) -> Tensor:
    return plain.z_when(question.rows[i], head[0], [plain.of_head("q", *head, 0.0)])


def _of_clean(plain: Plain, question: Question, seen: dict[int, Tensor], i: int, head: Head) -> Tensor:
    return _z(plain, question.rows[i])[1][head[0]]


def _of_clean_v(plain: Plain, question: Question, seen: dict[int, Tensor], i: int, head: Head) -> Tensor:
    kept: list[Tensor] = []
    plain.run(question.rows[i], [(("v", head[0]), lambda value: kept.append(value.clone()) or value)])
    return plain.z_when(question.corrupted[i], head[0], [plain.of_head("v", *head, kept[0])])


def _ablate(rule: Any, metric: str, answers: bool) -> Callable[[mh.Model, Question], list[Any]]:
    def ours(model: mh.Model, question: Question) -> list[Any]:
        prompts = question.prompts() if answers else question.bring(0)
        given = {"positions": question.positions, "heads": question.names, "store": question.store}
        return question.picked(mh.ablate(model, prompts, intervention=rule, metric=metric, **given))

    return ours


def _patch(site: Any) -> Callable[[mh.Model, Question], list[Any]]:
    def ours(model: mh.Model, question: Question) -> list[Any]:
        scores = mh.activation_patch(model, question.pairs(), site=site, heads=question.names, store=question.store)
        return question.picked(scores)

    return ours


def _path(model: mh.Model, question: Question) -> list[Any]:
    return question.picked(mh.path_patch(model, question.pairs(), senders=question.names, store=question.store))


def _plain_path(plain: Plain, question: Question, found: list[Any]) -> list[tuple[str, np.ndarray, np.ndarray]]:
    truth = np.zeros((len(question.heads), len(question.rows)))
    for i, (row, other) in enumerate(zip(question.rows, question.corrupted, strict=True)):
        (base, seen), (_, there) = _z(plain, row), _z(plain, other)
        for h, head in enumerate(question.heads):
            frozen = [(("z", layer), _give(value)) for layer, value in seen.items()]
            new = plain.run(row, [*frozen, plain.z_of(*head, there[head[0]])])[-1]
            truth[h, i] = _diff(question, i, new) - _diff(question, i, base)
    return [("effect", found[0], truth)]


def _give(value: Tensor) -> Change:
    return lambda old: value.reshape(old.shape).clone()


def _ships(rule: Intervention) -> Callable[[mh.Model, Question], list[Any]]:
    def ours(model: mh.Model, question: Question) -> list[Any]:
        scores = mh.ships(
            model, question.bring(0), intervention=rule, template="bare", heads=question.names, store=question.store
        )
        return question.picked(scores)

    return ours


class Negate:
    """The new z is -z; a class, so that it has a name."""

    def __call__(self, z: Tensor, context: Any) -> Tensor:
        return -z


def _sweep(model: mh.Model, question: Question) -> list[Any]:
    scores = mh.sweep(
        model, question.bring(0), intervention=Negate(), heads=question.names, positions=question.positions
    )
    return question.picked(scores)


def _generate(model: mh.Model, question: Question) -> list[Any]:
    found = mh.generate(model, question.bring(0), NEW_TOKENS)
    return [*zip(found.ids, found.finished, strict=True)]


def _plain_generate(plain: Plain, question: Question, found: list[Any]) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """How far each chosen token is from the most probable one, and whether a text ends where an end token comes."""
    tokenizer = question.tokenizer
    ends = {1, tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|im_end|>")}
    off, size = [], []
    for (ids, finished), row in zip(found, question.rows, strict=True):
        for n in range(len(ids) + bool(finished)):
            logits = _numpy(plain.run([*row, *ids[:n]])[-1])
            chosen = max(logits[token] for token in ends) if n == len(ids) else logits[ids[n]]
            off.append(logits.max() - chosen)
            size.append(logits.std())
        if not finished and len(ids) != NEW_TOKENS:
            off.append(np.inf)
    biggest = np.array([*size, 1.0]).max()
    return [("distance to the most probable", np.array([*off, biggest]), np.array([*(0.0 for _ in off), biggest]))]


def _task(off: bool) -> Callable[[mh.Model, Question], list[Any]]:
    def ours(model: mh.Model, question: Question) -> list[Any]:
        task = mh.Task(question.bring(0), [target for target, _ in question.targets])
        return [mh.task_log_prob(model, task, off=question.names if off else None, reduce="sum")]

    return ours


def _plain_task(off: bool) -> Callable[[Plain, Question, list[Any]], list[tuple[str, np.ndarray, np.ndarray]]]:
    def check(plain: Plain, question: Question, found: list[Any]) -> list[tuple[str, np.ndarray, np.ndarray]]:
        truth = []
        for row, (_, target) in zip(question.rows, question.targets, strict=True):
            if target is None:
                truth.append(np.nan)
                continue
            whole = [*row, *target]
            changes = [_zero(plain, head) for head in question.heads] if off else []
            each = plain.run(whole, changes).double().log_softmax(-1)
            truth.append(sum(float(each[i - 1, whole[i]]) for i in range(len(row), len(whole))))
        return [("log-probability", np.asarray(found[0], dtype=float), np.array(truth))]

    return check


def _zero(plain: Plain, head: Head) -> tuple[Spot, Change]:
    layer, number = head

    def change(z: Tensor) -> Tensor:
        new, size = z.clone(), z[0, 0].numel() // plain.n_heads
        new.flatten(2)[..., number * size : (number + 1) * size] = 0
        return new

    return ("z", layer), change


def _attribution(model: mh.Model, question: Question) -> list[Any]:
    data = mh.behaviour.logit_attribution(model, question.prompts()).dataset
    parts = data["score"] if "prompt" in data["score"].dims else data["values"]
    mlp = data["mlp"].sum("layer") if "mlp" in data else 0
    every = parts.sum(("layer", "head")) + mlp + data["bias"].sum("layer") + data["embedding"] + data["output_bias"]
    return [np.asarray(data["total"]), np.asarray(every)]


def _plain_attribution(plain: Plain, question: Question, found: list[Any]) -> list[tuple[str, np.ndarray, np.ndarray]]:
    truth = np.array([_diff(question, i, plain.run(row)[-1]) for i, row in enumerate(question.rows)])
    return [("total", found[0], truth), ("sum of the parts", found[1], truth)]


def _weights(model: mh.Model, question: Question) -> list[Any]:
    """What each head writes for one and the same z, and W_U."""
    return [_numpy(torch.stack([model.W_O[layer][head] for layer, head in question.heads])), _numpy(model.W_U)]


def _plain_weights(plain: Plain, question: Question, found: list[Any]) -> list[tuple[str, np.ndarray, np.ndarray]]:
    head = plain.model.get_output_embeddings()
    return [
        ("W_O", found[0], _numpy(torch.stack([plain.weight("o", *head) for head in question.heads]))),
        ("W_U", found[1], _numpy(head.weight.T)),
    ]


def _zeros(plain: Plain, question: Question, seen: dict[int, Tensor], i: int, head: Head) -> Tensor:
    return 0 * seen[head[0]]


ANALYSES: dict[str, Analysis] = {
    "cache": Analysis(_cache, _plain_cache),
    "ablate, zero, KL": Analysis(_ablate("zero", "kl_divergence", False), _changed("kl", _zeros), store=True),
    "ablate, mean, logit difference": Analysis(
        _ablate("mean", "logit_diff", True), _changed("diff", _mean_z), answers=True, store=True
    ),
    "ablate, scale, log-probability": Analysis(
        _ablate(mh.patching.Scale(0.5), "log_prob", True),
        _changed("log_prob", lambda plain, question, seen, i, head: 0.5 * seen[head[0]]),
        answers=True,
        store=True,
    ),
    "patch z": Analysis(_patch("z"), _changed("diff", _of_clean, "corrupted"), pairs=True, answers=True, store=True),
    "patch v": Analysis(_patch("v"), _changed("diff", _of_clean_v, "corrupted"), pairs=True, answers=True, store=True),
    "path to the logits": Analysis(_path, _plain_path, pairs=True, answers=True, store=True),
    "Ships, zero": Analysis(_ships(mh.Zero()), _changed("kl", _zeros), takes=("text",), store=True),
    "Ships, undifferentiated": Analysis(
        _ships(UniformAttention()), _changed("kl", _undifferentiated), takes=("text",), store=True
    ),
    "sweep": Analysis(_sweep, _changed("kl", lambda plain, question, seen, i, head: -seen[head[0]])),
    "generate": Analysis(_generate, _plain_generate),
    "task": Analysis(_task(False), _plain_task(False), takes=("text", "ids")),
    "task, heads off": Analysis(_task(True), _plain_task(True), takes=("text", "ids")),
    "logit attribution": Analysis(_attribution, _plain_attribution, answers=True),
    "weights": Analysis(_weights, _plain_weights, takes=()),
}


def new_store() -> str:
    """A new file for finished units."""
    return str(Path(tempfile.mkdtemp(prefix="mh-store")) / "units.sqlite")
