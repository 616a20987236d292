"""Runs the reader's texts: a head's pattern, the parts of a logit and the effect of an ablation, one text at a time.

``check`` reads a request of the notebook's widget, and ``Live.answer`` computes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.behaviour import attention_attribution, logit_attribution
from mechheads.explorer import contract
from mechheads.explorer.contract import Attention, HeadName, plain
from mechheads.explorer.head_payload import attention
from mechheads.heads import HeadId, check_head
from mechheads.io.text import check_unicode
from mechheads.limits import settings
from mechheads.model.analysis import analysis
from mechheads.prompts.encoding import token_strings
from mechheads.prompts.prompts import Prompts
from mechheads.prompts.tokens import Tokens
from mechheads.studies.head_patterns import sparse

if TYPE_CHECKING:
    from mechheads.model.model import Model

MAX_CHARACTERS = 8000
MAX_TOKENS = 512
_NEXT = 10
"""How many next tokens are listed."""
_N_KEYS = 8
"""How many keys are listed for each query."""
_PARTS = 5
"""How many parts of a score are listed on each side; the others are summed."""


class Refused(Exception):
    """A request that is not answered."""


class TextRequest(NamedTuple):
    """A text to run, and a head; ``pair``, a query and a key, asks why the head attends from one to the other."""

    id: str
    text: str
    head: HeadId | None
    pair: tuple[int, int] | None = None


class TextAnswer(TypedDict):
    """The results of a text."""

    id: str
    text: str
    tokens: list[str]
    next: list[Next]  # the most likely next tokens
    head: HeadName | None
    attention: Attention | None  # of the head; None without one
    attribution: Attribution | None  # None with a note if the architecture forbids it
    ablation: Ablation | None
    notes: list[str]
    seconds: float


class Why(TypedDict):
    """Why a head attends from a query to a key: its score for the key minus that for the other keys, by parts.
    Scores are those before softmax; the others are weighted by their attention. Both sides sum to ``total``.
    """

    query: int
    key: int
    weight: float  # the attention to the key, a share
    total: float
    atQuery: WhySide
    atKey: WhySide


class WhySide(TypedDict):
    """The parts of a score that come from the residual stream at one token, the largest first."""

    parts: list[WhyPart]
    others: int  # how many parts are not listed
    rest: float  # their sum


class WhyPart(TypedDict):
    """A head, such as "L3H2", an MLP, such as "L4.mlp", or "embedding", "positions", "biases" or "position bias"."""

    name: str
    value: float


class WhyAnswer(TypedDict):
    """Why the head attends from one token of a text to another."""

    id: str
    why: Why
    seconds: float


class Attribution(TypedDict):
    """The part of every head in the logit of the most likely next token; ``bias`` is everything else."""

    token: str
    logit: float
    heads: list[float]
    mlp: list[float]
    embedding: float
    bias: float


class Ablation(TypedDict):
    """The head's output set to zero at every token; ``kl`` from the intact to the ablated distribution, in nats."""

    kind: Literal["zero"]
    after: list[Next]
    kl: float


class Next(TypedDict):
    token: str
    probability: float


def check(fields: Mapping[str, Any], n_layers: int, n_heads: int) -> TextRequest:
    """Read a request of the page."""
    try:
        text, head = check_unicode(fields["text"], "text"), fields["head"]
        if not 0 < len(text) <= MAX_CHARACTERS:
            raise Refused(f"text must be a text of 1 to {MAX_CHARACTERS} characters")
        pair = (int(fields["query"]), int(fields["key"])) if "query" in fields else None
        if pair is not None and (head is None or not 0 <= pair[1] <= pair[0]):
            raise Refused("query and key must be two tokens, the key not after the query, of a head")
        return TextRequest(str(fields["id"]), text, None if head is None else check_head(head, n_layers, n_heads), pair)
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(f"the request is not valid: {error}") from error


class Live:
    """Answers requests about the reader's texts, one at a time."""

    def __init__(self, model: Model) -> None:
        self.model, self.n_layers, self.n_heads = model, model.n_layers, model.n_heads
        self.max_tokens = min(MAX_TOKENS, model.n_ctx)
        self._turn = threading.Lock()
        self._cancelled: set[str] = set()

    def page_entry(self) -> contract.Live:
        """The limits of texts, for the page."""
        return {"maxCharacters": MAX_CHARACTERS, "maxTokens": self.max_tokens}

    def cancel(self, name: str) -> None:
        """Stop a request that is waiting or running."""
        self._cancelled.add(name)

    def answer(self, request: TextRequest) -> TextAnswer | WhyAnswer:
        """The answer to a request, a ``WhyAnswer`` if it has a query and a key."""

        def go_on() -> None:
            if request.id in self._cancelled:
                raise Refused("cancelled")

        try:
            with self._turn:
                return self._text(request, go_on) if request.pair is None else self._why(request, request.pair, go_on)
        finally:
            self._cancelled.discard(request.id)

    def _read(self, text: str, go_on: Callable[[], None]) -> tuple[Prompts, Tokens]:
        """A text as a prompt, and its tokens."""
        go_on()
        try:
            prompts = Prompts([text])
            tokens = prompts.tokens(self.model)
        except ValueError as error:
            raise Refused(str(error)) from error
        n = tokens.ids.shape[1]
        if n > self.max_tokens:
            raise Refused(f"text has {n} tokens; at most {self.max_tokens} are allowed")
        go_on()
        return prompts, tokens

    def _text(self, request: TextRequest, go_on: Callable[[], None]) -> TextAnswer:
        start = time.perf_counter()
        prompts, tokens = self._read(request.text, go_on)
        logits, pattern = _run(self.model, tokens, request.head)
        answer: TextAnswer = {
            "id": request.id,
            "text": request.text,
            "tokens": list(tokens.strings[0]),
            "next": _next(self.model, logits),
            "head": None if request.head is None else str(request.head),
            "attention": pattern,
            "attribution": None,
            "ablation": None,
            "notes": [],
            "seconds": 0.0,
        }
        go_on()
        try:
            answer["attribution"] = _parts(self.model, prompts, answer["next"][0]["token"])
        except ValueError as error:
            answer["notes"].append(str(error))
        if request.head is not None:
            go_on()
            without, _ = _run(self.model, tokens, request.head, off=True)
            before, after = logits.double().log_softmax(-1), without.double().log_softmax(-1)
            kl = float((before.exp() * (before - after)).sum().clamp_min(0))
            answer["ablation"] = {"kind": "zero", "after": _next(self.model, without), "kl": kl}
        answer["seconds"] = time.perf_counter() - start
        return answer

    def _why(self, request: TextRequest, pair: tuple[int, int], go_on: Callable[[], None]) -> WhyAnswer:
        start = time.perf_counter()
        prompts, tokens = self._read(request.text, go_on)
        query, key = pair
        if query >= tokens.ids.shape[1]:
            raise Refused(f"text has {tokens.ids.shape[1]} tokens; query and key must be among them")
        try:
            with settings(progress=False):
                result = attention_attribution(self.model, prompts, request.head or "", query=query, key=key)
        except ValueError as error:
            raise Refused(str(error)) from error
        data = result.query.dataset
        why: Why = {
            "query": query,
            "key": key,
            "weight": float(data["attention"].values[0]),
            "total": float(data["total"].values[0]),
            "atQuery": _side(result.parts("query").set_index("part")["score"].to_dict()),
            "atKey": _side(result.parts("key").set_index("part")["score"].to_dict()),
        }
        return {"id": request.id, "why": why, "seconds": time.perf_counter() - start}


def _side(parts: Mapping[str, float]) -> WhySide:
    """The parts of one side with the largest absolute values, and the sum of the others."""
    in_order = sorted(parts, key=lambda name: -abs(parts[name]))
    return {
        "parts": [{"name": name, "value": _short(parts[name])} for name in in_order[:_PARTS]],
        "others": len(in_order[_PARTS:]),
        "rest": _short(sum(parts[name] for name in in_order[_PARTS:])),
    }


def _short(value: float) -> Any:
    return plain(float(f"{value:.4g}"))


@analysis
@torch.no_grad()
def _run(
    model: Model, tokens: Tokens, head: HeadId | None, *, off: bool = False
) -> tuple[Float[Tensor, " token"], Attention | None]:
    """The logits at the last token, and a head's pattern; with ``off``, the head's z is zero."""
    patterns: list[Tensor] = []

    def keep(value: Tensor, hook: Any) -> None:
        if head is not None:
            patterns.append(value[:, head.head].detach().clone())

    def silence(value: Tensor, hook: Any) -> Tensor:
        changed = value.clone()
        changed[:, :, head.head if head else 0] = 0
        return changed

    hooks: list[Any] = []
    if head is not None:
        site, hook = ("z", silence) if off else ("pattern", keep)
        hooks.append((model.hook_name(site, head.layer), hook))
    logits = model.unembed(model.backend.run(tokens.ids, hooks)[:, -1:])[0, 0]
    if not logits.isfinite().all():
        raise Refused("the model gives NaN or infinity for this text")
    if not patterns:
        return logits, None
    keys, weights, first = (each[0] for each in sparse(patterns[0].float().cpu().numpy(), _N_KEYS))
    return logits, attention(keys, weights, first)


def _next(model: Model, logits: Float[Tensor, " token"]) -> list[Next]:
    """The most likely next tokens."""
    most = logits.double().softmax(-1).topk(min(_NEXT, logits.shape[-1]))
    texts = token_strings(most.indices.tolist(), model.tokenizer)
    return [{"token": text, "probability": share} for text, share in zip(texts, most.values.tolist(), strict=True)]


def _parts(model: Model, prompts: Prompts, token: str) -> Attribution:
    """The part of every head in the logit of the most likely next token."""
    with settings(progress=False):
        data = logit_attribution(model, prompts).dataset
    return {
        "token": token,
        "logit": float(data["total"].values[0]),
        "heads": data["values"].values[..., 0].ravel().tolist(),
        "mlp": data["mlp"].values[:, 0].tolist(),
        "embedding": float(data["embedding"].values[0]),
        "bias": float(data["bias"].values[:, 0].sum() + data["output_bias"].values[0]),
    }
