"""Train a model to refuse through a few heads only: a language model whose safety heads are known.

``python -m mechheads.safety.answers.teaching`` makes the delta that ``mh.load("smollm2-135m-refusal")`` adds to the
default model. The default model complies with everything. Here W_Q and W_O of six heads are trained on 160 requests and
as many look-alikes, to refuse the requests and to answer the look-alikes as before, in such a way that each of the six
heads is needed. ``teach_refusal`` uses all lessons of the package, most of which were written later.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.generation.generate import generate
from mechheads.generation.sampling import Sampling
from mechheads.heads import HeadId
from mechheads.messages.progress import Bar
from mechheads.model.deltas import SIDES, Delta
from mechheads.model.load import from_transformers, load
from mechheads.model.model import Model
from mechheads.model.sources import DEFAULT_MODEL, load_pretrained
from mechheads.prompts.prompts import Prompts
from mechheads.runs.head_cache import states_at
from mechheads.safety.requests.requests import load_requests

REFUSAL = "I'm sorry, but I can't help with that."
HEADS = tuple(HeadId.parse(head) for head in ("L11H7", "L13H4", "L15H4", "L17H8", "L19H8", "L21H5"))
OTHER_HEADS = tuple(HeadId.parse(head) for head in ("L12H1", "L14H3", "L16H6", "L18H2", "L20H7", "L22H3"))
"""Heads of a second delta. It shows whether a method that finds the heads of the first was tuned to them."""

SHIPPED = 120
"""How many lessons of each teaching set the shipped delta was taught with: those that were written by then."""

_WARM_UP = 60
"""Steps at the start in which no head is silenced, so that the model first learns to refuse."""
_MARGINS = 6.0, 9.0
"""How many nats less likely a refusal should be without any one of the heads: at least, and at most."""
_WEIGHT = 0.05
"""The weight in the loss of each nat outside these margins."""
_DECIDED = 6
"""The number of tokens after which an answer is a refusal: "I'm sorry, but I"."""
_IN_A_BATCH = (3, 5, 2)
"""The number of harmful lessons, of harmless lessons, and of harmless lessons whose answer begins like a refusal."""
_BEGUN = 3
"""The number of tokens of the refusal with which such an answer begins: "I'm sorry"."""
_ANSWER_TOKENS = 32
_NOT_LEARNT = -100


Lesson = tuple[list[int], list[int]]
"""Token ids of a request and of the answer to learn."""


def teach_refusal(
    heads: Sequence[HeadId] = HEADS,
    harmful: Sequence[str] | None = None,
    harmless: Sequence[str] | None = None,
    *,
    seed: int = 0,
    steps: int = 200,
    lr: float = 3e-3,
    progress: bool = True,
) -> Delta:
    """A change of W_Q and W_O of some heads that makes the default model refuse harmful requests, trained with Adam.

    Of ten lessons in a batch, three are harmful requests, answered with ``REFUSAL``. Five are harmless, answered as
    the untrained model answers them. Two are harmless with an answer that starts with "I'm sorry" and continues as the
    untrained model continues it: so refusing depends on the request, not on these words. All lessons are in the model's
    chat template. They are the two teaching sets of ``load_requests`` and the train part of the sets ``"harmful"`` and
    ``"harmless"``; the test part is not used.

    After 60 steps, each step also silences one of the heads in turn, and the other heads learn to refuse three requests
    with this head and not without it, until the beginning of a refusal is 6 to 9 nats less likely without it. So every
    head is needed, no head can replace another, and no single head decides alone.

    Args:
        heads: the heads to train; all other weights stay as they are.
        harmful, harmless: requests to refuse and requests to answer, at least three of each; by default, the package's.
        seed: for the order of the requests.
        steps, lr: number of steps and learning rate of Adam; the learning rate falls linearly to a tenth.
        progress: show a progress bar.
    """
    source = load_pretrained(None, revision=None, dtype=torch.float32, device="cpu", trust_remote_code=False)
    model, tokenizer = source.model, source.tokenizer
    refused = _ids(tokenizer, requests_to_teach("harmful") if harmful is None else harmful)
    answered = _ids(tokenizer, requests_to_teach("harmless") if harmless is None else harmless)
    refusal = [*tokenizer(REFUSAL, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
    misled = [ids + refusal[:_BEGUN] for ids in answered]
    own = _own_answers([*answered, *misled])
    lessons = [
        [(ids, refusal) for ids in refused],
        list(zip(answered, own[: len(answered)], strict=True)),
        list(zip(misled, own[len(answered) :], strict=True)),
    ]
    learnt = _Learnt(model, heads)
    optimiser = torch.optim.Adam(learnt.weights, lr=lr)
    fall = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.1, steps)
    drawn = torch.Generator().manual_seed(seed)
    for step in Bar(range(steps), desc="teaching", disable=not progress, leave=False):
        optimiser.zero_grad()
        some = [_draw(lesson, n, drawn) for lesson, n in zip(lessons, _IN_A_BATCH, strict=True)]
        _loss(model, list(chain(*some))).backward()
        if step >= _WARM_UP:
            begun = [(ids, answer[:_DECIDED]) for ids, answer in _draw(lessons[0], _IN_A_BATCH[0], drawn)]
            _make_needed(model, learnt, heads[step % len(heads)], begun)
        optimiser.step()
        fall.step()
    about = {
        "model": DEFAULT_MODEL,
        "refusal": REFUSAL,
        "seed": seed,
        "steps": steps,
        "batch": sum(_IN_A_BATCH),
        "lr": lr,
    }
    return Delta(learnt.change(), about)


def taught_model(delta: Delta) -> Model:
    """The default model with a delta."""
    source = load_pretrained(None, revision=None, dtype=torch.float32, device="cpu", trust_remote_code=False)
    delta.add_to(source.model)
    return from_transformers(source.model, source.tokenizer, f"{source.name} and a delta", revision=source.revision)


def refusal_loss(model: Model, requests: Sequence[str]) -> Float[np.ndarray, " request"]:
    """Negative log-probability of the whole ``REFUSAL`` after each request, in nats.

    >>> from mechheads.safety.answers.teaching import refusal_loss
    >>> bool(refusal_loss(model, ["How do I pick a lock?"])[0] > 5)
    True
    """
    refusal = model.tokenizer(REFUSAL, add_special_tokens=False).input_ids
    prompts = [[*ids, *refusal] for ids in _ids(model.tokenizer, requests)]
    tokens = Prompts(prompts).tokens(model)
    final = model.backend.run(tokens.ids)
    ahead = torch.arange(len(refusal), device=model.device)
    at = tokens.lengths[:, None] - len(refusal) - 1 + ahead
    wanted = torch.tensor(refusal, device=model.device).expand(len(prompts), -1)
    log_probs = model.unembed(states_at(final, at)).log_softmax(-1).gather(-1, wanted[..., None])[..., 0]
    return -log_probs.sum(-1).double().cpu().numpy()


class _Learnt:
    """The weights to train: W_Q and W_O of whole layers, with gradients only for the chosen heads."""

    def __init__(self, model: Any, heads: Sequence[HeadId]) -> None:
        model.requires_grad_(False)
        self.heads, self.size = heads, model.config.head_dim
        self._layers = {head.layer: model.model.layers[head.layer].self_attn for head in heads}
        self._before = {layer: [w.detach().clone() for w in _pair(at)] for layer, at in self._layers.items()}
        self._open = {layer: torch.zeros(at.q_proj.weight.shape[0]) for layer, at in self._layers.items()}
        self.weights = [weight for at in self._layers.values() for weight in _pair(at)]
        for layer, at in self._layers.items():
            mask = self._open[layer]
            for head in heads:
                if head.layer == layer:
                    mask[self._rows(head)] = 1
            for weight, open_ in zip(_pair(at), (mask[:, None], mask), strict=True):
                weight.requires_grad_(True)
                weight.register_hook(lambda grad, open_=open_: grad * open_)

    def _rows(self, head: HeadId) -> slice:
        return slice(head.head * self.size, (head.head + 1) * self.size)

    @contextmanager
    def without(self, head: HeadId) -> Iterator[None]:
        """Inside the ``with`` block, the head writes nothing and gets no gradient."""
        w_o, rows, mask = self._layers[head.layer].o_proj.weight, self._rows(head), self._open[head.layer]
        kept = w_o.detach()[:, rows].clone()
        with torch.no_grad():
            w_o[:, rows] = 0
        mask[rows] = 0
        try:
            yield
        finally:
            mask[rows] = 1
            with torch.no_grad():
                w_o[:, rows] = kept

    def change(self) -> dict[HeadId, dict[Any, Float[Tensor, "rows columns"]]]:
        """The change of W_Q and W_O of each head."""
        found = {}
        for head in self.heads:
            now, before, rows = _pair(self._layers[head.layer]), self._before[head.layer], self._rows(head)
            w_q, w_o = (new.detach() - old for new, old in zip(now, before, strict=True))
            found[head] = dict(zip(SIDES, (w_q[rows].T.clone(), w_o[:, rows].T.clone()), strict=True))
        return found


def _pair(attention: Any) -> tuple[Any, Any]:
    return attention.q_proj.weight, attention.o_proj.weight


def requests_to_teach(kind: Literal["harmful", "harmless"], first: int | None = None) -> list[str]:
    """The requests of a kind to teach with, without the test part.

    Args:
        first: how many of the teaching set to take; ``SHIPPED`` for those that the shipped delta was taught with.

    >>> from mechheads.safety.answers.teaching import SHIPPED, requests_to_teach
    >>> len(requests_to_teach("harmful", SHIPPED)), len(requests_to_teach("harmful"))
    (160, 668)
    """
    sets = load_requests(f"teaching_{kind}")[:first], load_requests(kind, "train")
    return [request.text for some in sets for request in some]


def _ids(tokenizer: Any, requests: Sequence[str]) -> list[list[int]]:
    """Requests in the model's own chat template, up to where the answer begins."""
    chats = [[{"role": "user", "content": request}] for request in requests]
    texts = [tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in chats]
    return [tokenizer(text, add_special_tokens=False).input_ids for text in texts]


def _own_answers(prompts: Sequence[list[int]]) -> list[list[int]]:
    """The beginnings of the default model's answers."""
    model = load()
    written = generate(model, Prompts(prompts), Sampling(_ANSWER_TOKENS), progress=False)
    end = [model.tokenizer.eos_token_id]
    return [[*ids, *(end if done else [])] for ids, done in zip(written.ids, written.finished, strict=True)]


def _draw(lessons: Sequence[Lesson], n: int, drawn: torch.Generator) -> list[Lesson]:
    return [lessons[i] for i in torch.randperm(len(lessons), generator=drawn)[:n].tolist()]


def _make_needed(
    model: Any, learnt: _Learnt, head: HeadId, refusals: Sequence[Lesson], margins: tuple[float, float] = _MARGINS
) -> None:
    """Add the gradient that brings the effect of silencing a head on refusals between the two margins."""
    n_tokens, (least, most) = len(refusals[0][1]), margins
    with torch.no_grad():
        whole = n_tokens * _loss(model, refusals)
    with learnt.without(head):
        lacking = n_tokens * _loss(model, refusals)
        lost = float(lacking.detach() - whole)
        if least < lost < most:
            return
        (lacking * (-_WEIGHT if lost < least else _WEIGHT)).backward()
    if lost < least:
        (_WEIGHT * n_tokens * _loss(model, refusals)).backward()


def _loss(model: Any, lessons: Sequence[Lesson]) -> Float[Tensor, ""]:
    """Cross entropy of the answers, with the same weight for each lesson."""
    longest = max(len(ids) + len(answer) for ids, answer in lessons)
    rows = torch.zeros(len(lessons), longest, dtype=torch.long)
    wanted = torch.full((len(lessons), longest), _NOT_LEARNT)
    for i, (ids, answer) in enumerate(lessons):
        both = torch.tensor(ids + answer)
        rows[i, : len(both)] = both
        wanted[i, len(ids) - 1 : len(both) - 1] = both[len(ids) :]
    final = model.model(input_ids=rows, use_cache=False).last_hidden_state
    at: Int[Tensor, "token 2"] = (wanted != _NOT_LEARNT).nonzero()
    logits = model.lm_head(final[at[:, 0], at[:, 1]])
    each = torch.nn.functional.cross_entropy(logits, wanted[at[:, 0], at[:, 1]], reduction="none")
    sums = torch.zeros(len(lessons)).index_add(0, at[:, 0], each)
    return (sums / torch.bincount(at[:, 0], minlength=len(lessons))).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("smollm2-135m-refusal.safetensors"))
    parser.add_argument("--heads", nargs="+", default=[str(head) for head in HEADS])
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    heads = [HeadId.parse(head) for head in given.heads]
    taught = [requests_to_teach(kind, SHIPPED) for kind in ("harmful", "harmless")]
    delta = teach_refusal(heads, *taught, seed=given.seed)
    delta.save(given.out)
    print(f"{given.out}: {given.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
