"""Models whose heads attend as they were made to: to the previous token, to an earlier copy, to what followed it.

``behaving_model`` builds a GPT-2 whose weights are computed. The residual stream of a token has mutually orthogonal
parts: its word, its position (as sines and cosines of 16 frequencies), flags for the first position and for delimiters,
a constant, and, written by one head of layer 0, the word before. With x and y for the query's and the key's parts:

| behaviour | attention score |
|---|---|
| ``previous-token`` | position of y = position of x, turned back by one |
| ``self`` | position of y = position of x |
| ``sink`` | y is first |
| ``duplicate-token`` | word of y = word of x, and not the same position; otherwise y is first |
| ``induction`` | word before y = word of x; otherwise y is first |
| ``delimiter`` | y is a delimiter; otherwise y is first |

Each is a product W_Q W_K^T of rank d_head. Without noise, most attention goes where it should.
**Noise** is Gaussian, on W_Q and W_K, scaled so that W_Q W_K^T is off by ``noise`` times its Frobenius norm. A head
with nothing planted has Gaussian W_Q and W_K with the same Frobenius norm. It reads no constant, so that where it
attends depends on both tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.random import Generator, default_rng

from mechheads.heads import HeadId, check_head
from mechheads.messages.arguments import check_at_least, check_known
from mechheads.model.load import from_transformers
from mechheads.model.model import Model
from mechheads.testing.planting import Matrix, blank_gpt2, make_language, unit, with_noise

Behaviour = Literal["previous-token", "self", "sink", "duplicate-token", "induction", "delimiter"]
_D_HEAD, _WORD, _FREQUENCIES = 64, 40, 16
_STRENGTH = 12.0
"""How many nats a key that matches the query is above one that does not."""
_DELIMITERS = ".,:;?!"
_PIECE = 3
_WRITTEN = 0.3
"""The norm of what heads write for the unembedding."""


@dataclass(frozen=True, eq=False, repr=False)
class BehavingModel:
    """A model, and how each of its heads attends; made by ``behaving_model``.

    Attributes:
        model: the model, in float32 on the CPU.
        heads: what is planted in which head. Every other head attends at random.
        noise, seed: the arguments of ``behaving_model``.
    """

    model: Model
    heads: dict[HeadId, Behaviour]
    noise: float
    seed: int

    def texts(self, n: int = 24, length: int = 100) -> list[list[int]]:
        """Rows of random words with delimiters, in which pieces of three tokens come again.

        >>> made = mh.testing.behaving_model(noise=0)
        >>> profile = mh.profile_heads(made.model, made.texts(), window=100, progress=False)
        >>> set(profile.named("sink")) == {head for head, behaviour in made.heads.items() if behaviour == "sink"}
        True
        """
        rng, tokenizer = default_rng([self.seed, 2]), self.model.tokenizer
        marks = [tokenizer.vocab[f"▁{text}"] for text in _DELIMITERS]
        rows = []
        for _ in range(n):
            row, some = [tokenizer.bos_token_id], rng.integers(len(tokenizer.all_special_ids), len(tokenizer), 30)
            while len(row) < length:
                kind = rng.choice(3, p=(0.12, 0.22, 0.66)) if len(row) > _PIECE + 1 else 2
                start = rng.integers(1, max(2, len(row) - _PIECE))
                row += [[rng.choice(marks)], row[start : start + _PIECE], [rng.choice(some)]][kind]
            rows.append([int(token) for token in row[:length]])
        return rows

    def __repr__(self) -> str:
        planted = " ".join(f"{head}={behaviour}" for head, behaviour in self.heads.items())
        return f"<BehavingModel, seed {self.seed}: {planted or 'nothing planted'}>"


def behaving_model(
    *,
    seed: int = 0,
    n_layers: int = 4,
    n_heads: int = 8,
    noise: float = 0.5,
    plant: Mapping[Any, Behaviour] | None = None,
) -> BehavingModel:
    """A small transformer whose heads attend in known ways, for testing what says how heads behave.

    Its words are those of ``planted_model``. ``help(mh.testing.behaving)`` describes the weights.

    Args:
        seed: for heads and weights.
        n_layers, n_heads: the number of layers, and of heads in each. Each head has 64 dimensions.
        noise: the error of W_Q W_K^T of a planted head, as a share of its Frobenius norm.
        plant: which head behaves how, as in ``{"L0H1": "previous-token"}``; ``{}`` plants nothing. By default, two
            random heads have each behaviour. Induction needs a previous-token head in layer 0 and is in a later layer.

    Raises:
        ValueError: if an argument is not valid, or a head does not exist.

    >>> made = mh.testing.behaving_model(plant={"L0H1": "previous-token", "L2H3": "induction"})
    >>> profile = mh.profile_heads(made.model, made.texts(), window=100, progress=False)
    >>> profile.named("induction")
    (HeadId(layer=2, head=3),)
    """
    check_at_least(0, seed=seed)
    check_at_least(1, n_layers=n_layers, n_heads=n_heads)
    if not 0 <= noise < np.inf:
        raise ValueError(f"noise is {noise}; it must be a share of the planted weights, 0 or more")
    rng = default_rng([seed, 0])
    heads = _draw(n_layers, n_heads, rng) if plant is None else _read(plant, n_layers, n_heads)
    _, tokenizer = make_language()
    with torch.random.fork_rng(devices=[]):
        gpt2 = blank_gpt2(n_layers, n_heads, n_heads * _D_HEAD)
    writer = _Writer(gpt2, tokenizer, rng)
    tells = min((head for head, each in heads.items() if each == "previous-token" and head.layer == 0), default=None)
    for layer, number in np.ndindex(n_layers, n_heads):
        head = HeadId(layer, number)
        own = default_rng([seed, 1, layer, number])
        writer.write(head, heads.get(head), noise, own, tells_previous=head == tells)
    with torch.random.fork_rng(devices=[]):
        model = from_transformers(gpt2, tokenizer, f"behaving-{seed}")
    return BehavingModel(model, heads, noise, seed)


def _read(plant: Mapping[Any, Behaviour], n_layers: int, n_heads: int) -> dict[HeadId, Behaviour]:
    heads: dict[HeadId, Behaviour] = {}
    for where, behaviour in plant.items():
        check_known(f"plant[{where!r}]", behaviour, get_args(Behaviour))
        head = check_head(where, n_layers, n_heads)
        if head in heads:
            raise ValueError(f"plant names {head} twice; name it once")
        heads[head] = behaviour
    induction = [head for head, behaviour in heads.items() if behaviour == "induction"]
    first = any(head.layer == 0 and behaviour == "previous-token" for head, behaviour in heads.items())
    if induction and (not first or min(induction).layer == 0):
        raise ValueError(
            f"plant has induction in {min(induction)}, which needs a previous-token head in layer 0, and a later layer "
            "for itself"
        )
    return dict(sorted(heads.items()))


def _draw(n_layers: int, n_heads: int, rng: Generator) -> dict[HeadId, Behaviour]:
    """Two heads of each behaviour."""
    kinds = 2 * get_args(Behaviour)
    if n_layers < 2 or n_layers * n_heads < len(kinds) + 2:
        raise ValueError(
            f"the default plant needs {len(kinds) + 2} heads in 2 or more layers; n_layers={n_layers} with "
            f"n_heads={n_heads} has too few. Choose what to plant with plant=, or use a larger model"
        )
    later = [HeadId(layer, head) for layer in range(1, n_layers) for head in range(n_heads)]
    heads: dict[HeadId, Behaviour] = {HeadId(0, int(rng.integers(n_heads))): "previous-token"}
    heads |= {later[i]: "induction" for i in rng.choice(len(later), 2, replace=False)}
    free = [HeadId(layer, head) for layer in range(n_layers) for head in range(n_heads)]
    free = [head for head in free if head not in heads]
    left = [kind for kind in kinds if kind != "induction"][1:]
    heads |= {free[i]: kind for i, kind in zip(rng.permutation(len(free)), left, strict=False)}
    return dict(sorted(heads.items()))


class _Writer:
    """Writes weights into a GPT-2 that is all zeros."""

    def __init__(self, gpt2: Any, tokenizer: Any, rng: Generator) -> None:
        self._weights = {name: parameter.detach().numpy() for name, parameter in gpt2.named_parameters()}
        config = gpt2.config
        self._d_model = config.n_embd
        sizes = {"word": _WORD, "before": _WORD, "position": 2 * _FREQUENCIES, "first": 1, "delimiter": 1}
        names = [*sizes, "output", "one"]
        columns = np.column_stack([np.ones(self._d_model), rng.normal(size=(self._d_model, self._d_model - 1))])
        axes = np.linalg.qr(columns)[0][:, 1:].T  # all of mean 0, so that a LayerNorm only scales
        ends = np.cumsum([*sizes.values(), len(axes) - sum(sizes.values()) - 1])
        self._part = dict(zip(names, np.split(axes, ends), strict=True))
        self._frequencies = rng.uniform(0, np.pi, _FREQUENCIES)

        words = unit(rng.normal(size=(config.vocab_size, _WORD)))
        embedding = words @ self._part["word"] + np.sqrt(self._d_model) * self._part["one"]
        embedding[[tokenizer.vocab[f"▁{text}"] for text in _DELIMITERS]] += self._part["delimiter"]
        angles = np.outer(np.arange(config.n_positions), self._frequencies)
        positions = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) / np.sqrt(_FREQUENCIES)
        self._weights["transformer.wte.weight"][:] = embedding
        self._weights["transformer.wpe.weight"][:] = positions @ self._part["position"]
        self._weights["transformer.wpe.weight"][0] += self._part["first"][0]
        self._weights["transformer.ln_f.weight"][:] = 1
        self._weights["lm_head.weight"][:] = (
            unit(rng.normal(size=(len(words), len(self._part["output"])))) @ (self._part["output"])
        )
        for layer in range(config.n_layer):
            self._weights[f"transformer.h.{layer}.ln_1.weight"][:] = 1
            self._weights[f"transformer.h.{layer}.ln_2.weight"][:] = 1

        # What queries and keys read. The constant is 1 in every token.
        read = ("word", "before", "position", "first", "delimiter")
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
        own = slice(head.head * _D_HEAD, (head.head + 1) * _D_HEAD)
        into = self._weights[f"{block}.c_attn.weight"]
        W_Q, W_K = self._random(rng) if behaviour is None else self._planted(behaviour)
        if behaviour is not None and noise:
            ones = np.ones_like(W_Q)
            W_Q, W_K_T = with_noise(W_Q, W_K.T, ones, ones.T, noise, rng)
            W_K = W_K_T.T
        for part, weight in enumerate((W_Q, W_K)):
            into[:, part * self._d_model : (part + 1) * self._d_model][:, own] = self._axes.T @ weight
        to = self._part["before" if tells_previous else "output"]
        W_V = np.eye(_WORD, _D_HEAD)
        W_O = np.eye(_D_HEAD, _WORD) if tells_previous else _WRITTEN * unit(rng.normal(size=(_D_HEAD, len(to))))
        into[:, 2 * self._d_model :][:, own] = self._part["word"].T @ W_V
        self._weights[f"{block}.c_proj.weight"][own] = W_O @ to

    def _planted(self, behaviour: Behaviour) -> tuple[Matrix, Matrix]:
        """W_Q and W_K on the parts that heads read."""
        W_Q, W_K = (np.zeros((len(self._axes), _D_HEAD)) for _ in range(2))
        strength = _STRENGTH * np.sqrt(_D_HEAD)

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
            if behaviour == "duplicate-token":
                self._not_itself(W_Q, W_K, strength)
        return W_Q, W_K

    def _not_itself(self, W_Q: Matrix, W_K: Matrix, strength: float) -> None:
        """Lower the score of the query's own position, by as many frequencies as there is room for."""
        n = (_D_HEAD - _WORD - 1) // 2
        first = self._at["position"].start
        rows = [first + i for i in range(n)] + [first + _FREQUENCIES + i for i in range(n)]
        columns = range(_WORD + 1, _WORD + 1 + 2 * n)
        W_Q[rows, columns] = -strength * _FREQUENCIES / n * 1.3
        W_K[rows, columns] = 1

    def _random(self, rng: Generator) -> tuple[Matrix, Matrix]:
        W_Q, W_K = (rng.normal(size=(len(self._axes), _D_HEAD)) for _ in range(2))
        W_Q[self._at["one"]], W_K[self._at["one"]] = 0, 0
        size = np.linalg.norm(self._planted("induction")[0] @ self._planted("induction")[1].T)
        scale = np.sqrt(size / np.linalg.norm(W_Q @ W_K.T))
        return W_Q * scale, W_K * scale
