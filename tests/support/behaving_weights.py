"""The weights of a behaving model; ``behaving.py`` describes what they do."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.random import Generator

from mechheads.heads import HeadId
from support.planted_models import Matrix, unit, with_noise

Behaviour = Literal[
    "previous-token", "self", "sink", "duplicate-token", "induction", "delimiter", "primary", "backup", "negative"
]
DOES: dict[Behaviour, str] = {
    "previous-token": "attends to the word before; one such head of layer 0 writes it",
    "self": "attends to the word itself",
    "sink": "attends to the first token",
    "duplicate-token": "attends to earlier copies of the word",
    "induction": "attends to the word after an earlier copy of this one",
    "delimiter": "attends to delimiters",
    "primary": "attends as an induction head does, raises the logit of the word there, and writes a flag that it has",
    "backup": "as primary, but only if there is no flag; else it rests on the first token",
    "negative": "attends as an induction head does, and lowers the logit of the word there",
}
COPIED: dict[Behaviour | None, float] = {"primary": 4.0, "backup": 1.5, "negative": -1.0}
"""By how much these heads raise the logit of the token that they attend to."""
D_HEAD = 32
DELIMITERS = ".,:;?!"
_WORD, _FREQUENCIES = 24, 8
_STRENGTH = 12.0
"""How many nats a key that matches the query is above one that does not."""
_SILENCED = 1.5
"""How far above a key that matches the first token is, in matches, once a primary head has copied."""
_WRITTEN = 0.8
"""The norm of what other heads write, a random map of the word."""


class Writer:
    """Writes weights into a GPT-2 that is all zeros."""

    def __init__(self, gpt2: Any, tokenizer: Any, rng: Generator) -> None:
        self._weights = {name: parameter.detach().numpy() for name, parameter in gpt2.named_parameters()}
        config = gpt2.config
        self._d_model = config.n_embd
        sizes = {"word": _WORD, "before": _WORD, "position": 2 * _FREQUENCIES, "first": 1, "delimiter": 1, "copied": 1}
        names = [*sizes, "output", "one"]
        columns = np.column_stack([np.ones(self._d_model), rng.normal(size=(self._d_model, self._d_model - 1))])
        axes = np.linalg.qr(columns)[0][:, 1:].T  # all of mean 0, so that a LayerNorm only scales
        ends = np.cumsum([*sizes.values(), len(axes) - sum(sizes.values()) - 1])
        self._part = dict(zip(names, np.split(axes, ends), strict=True))
        self._frequencies = rng.uniform(0, np.pi, _FREQUENCIES)

        words = unit(rng.normal(size=(config.vocab_size, _WORD)))
        embedding = words @ self._part["word"] + np.sqrt(self._d_model) * self._part["one"]
        embedding[[tokenizer.vocab[f"▁{text}"] for text in DELIMITERS]] += self._part["delimiter"]
        angles = np.outer(np.arange(config.n_positions), self._frequencies)
        positions = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) / np.sqrt(_FREQUENCIES)
        self._weights["transformer.wte.weight"][:] = embedding
        self._weights["transformer.wpe.weight"][:] = positions @ self._part["position"]
        self._weights["transformer.wpe.weight"][0] += self._part["first"][0]
        self._weights["transformer.ln_f.weight"][:] = 1
        self._answers = rng.normal(size=(_WORD, len(self._part["output"]))) / np.sqrt(len(self._part["output"]))
        self._weights["lm_head.weight"][:] = unit(words @ self._answers) @ self._part["output"]
        for name in ("transformer.wte", "transformer.wpe", "lm_head"):
            self._weights[f"{name}.weight"][:] = _coarse(self._weights[f"{name}.weight"], 1 / 256)
        for layer in range(config.n_layer):
            self._weights[f"transformer.h.{layer}.ln_1.weight"][:] = 1
            self._weights[f"transformer.h.{layer}.ln_2.weight"][:] = 1

        # What queries and keys read. The constant is 1 in every token.
        read = ("word", "before", "position", "first", "delimiter", "copied")
        self._axes = np.concatenate([*(self._part[name] for name in read), self._part["one"] / np.sqrt(self._d_model)])
        at = np.cumsum([0, *(len(self._part[name]) for name in (*read, "one"))])
        self._at = {name: slice(at[i], at[i + 1]) for i, name in enumerate((*read, "one"))}

    def write(
        self, head: HeadId, behaviour: Behaviour | None, noise: float, rng: Generator, *, tells_previous: bool
    ) -> None:
        """Write the weights of one head.

        Args:
            tells_previous: whether it writes the word that it attends to where induction heads read it.
        """
        block = f"transformer.h.{head.layer}.attn"
        own = slice(head.head * D_HEAD, (head.head + 1) * D_HEAD)
        into = self._weights[f"{block}.c_attn.weight"]
        W_Q, W_K = self._random(rng) if behaviour is None else self._planted(behaviour)
        if behaviour is not None and noise:
            ones = np.ones_like(W_Q)
            W_Q, W_K_T = with_noise(W_Q, W_K.T, ones, ones.T, noise, rng)
            W_K = W_K_T.T
        for part, weight in enumerate((W_Q, W_K)):
            into[:, part * self._d_model : (part + 1) * self._d_model][:, own] = _rounded(self._axes.T @ weight)
        reads, W_V = self._part["word"], np.eye(_WORD, D_HEAD)
        if tells_previous:
            to, W_O = self._part["before"], np.eye(D_HEAD, _WORD)
        elif behaviour in COPIED:
            to, W_O = self._part["output"], np.eye(D_HEAD, _WORD) @ self._answers * COPIED[behaviour]
        else:
            to = self._part["output"]
            W_O = _WRITTEN * unit(rng.normal(size=(D_HEAD, _WORD))) @ self._answers
        if behaviour in COPIED and noise:
            W_V, W_O = with_noise(W_V, W_O, np.ones_like(W_V), np.ones_like(W_O), noise, rng)
        if behaviour == "primary":  # says that it copied: the constant, which is not at the first token
            reads = np.concatenate([reads, self._part["one"] / np.sqrt(self._d_model) - self._part["first"]])
            W_V = np.block([[W_V[:, :-1], np.zeros((_WORD, 1))], [np.eye(1, D_HEAD, D_HEAD - 1)]])
            to = np.concatenate([to, self._part["copied"]])
            W_O = np.block([[W_O[:-1], np.zeros((D_HEAD - 1, 1))], [np.eye(1, len(to), len(to) - 1)]])
        into[:, 2 * self._d_model :][:, own] = _rounded(reads.T @ W_V)
        self._weights[f"{block}.c_proj.weight"][own] = _rounded(W_O @ to)

    def _planted(self, behaviour: Behaviour) -> tuple[Matrix, Matrix]:
        """W_Q and W_K on the parts that heads read."""
        W_Q, W_K = (np.zeros((len(self._axes), D_HEAD)) for _ in range(2))
        strength = _STRENGTH * np.sqrt(D_HEAD)

        def match(query: str, key: str, start: int, scale: float = 1.0) -> None:
            size = self._at[query].stop - self._at[query].start
            W_Q[self._at[query], start : start + size] = np.eye(size) * strength * scale
            W_K[self._at[key], start : start + size] = np.eye(size)

        if behaviour in ("previous-token", "self"):
            match("position", "position", 0)
            if behaviour == "previous-token":
                cos, sin = np.diag(np.cos(self._frequencies)), np.diag(np.sin(self._frequencies))
                back = np.block([[cos, -sin], [sin, cos]])  # rows are read: (cos a, sin a) becomes that of a - w
                W_Q[self._at["position"], : 2 * _FREQUENCIES] = strength * back
        elif behaviour == "sink":
            match("one", "first", 0)
        elif behaviour == "delimiter":
            match("one", "delimiter", 0)
            match("one", "first", 1, 0.5)
        else:
            match("word", "word" if behaviour == "duplicate-token" else "before", 0)
            match("one", "first", _WORD, 0.6)
            if behaviour == "backup":
                match("copied", "first", _WORD + 1, _SILENCED)
            if behaviour == "duplicate-token":
                self._not_itself(W_Q, W_K, strength)
        return W_Q, W_K

    def _not_itself(self, W_Q: Matrix, W_K: Matrix, strength: float) -> None:
        """Lower the score of the query's own position, by as many frequencies as there is room for."""
        n = (D_HEAD - _WORD - 1) // 2
        first = self._at["position"].start
        rows = [first + i for i in range(n)] + [first + _FREQUENCIES + i for i in range(n)]
        columns = range(_WORD + 1, _WORD + 1 + 2 * n)
        W_Q[rows, columns] = -strength * _FREQUENCIES / n * 1.3
        W_K[rows, columns] = 1

    def _random(self, rng: Generator) -> tuple[Matrix, Matrix]:
        W_Q, W_K = (rng.normal(size=(len(self._axes), D_HEAD)) for _ in range(2))
        W_Q[self._at["one"]], W_K[self._at["one"]] = 0, 0
        size = np.linalg.norm(self._planted("induction")[0] @ self._planted("induction")[1].T)
        scale = np.sqrt(size / np.linalg.norm(W_Q @ W_K.T))
        return W_Q * scale, W_K * scale


def _rounded(weight: Matrix) -> Matrix:
    """Nearly the same, but in a file that is small."""
    return _coarse(weight, np.abs(weight).max() / 32)


def _coarse(values: Matrix, step: float) -> Matrix:
    """Values at most half a step off, a power of two, so that they take little room in a file."""
    step = 2.0 ** np.floor(np.log2(step))
    return np.round(values / step) * step
