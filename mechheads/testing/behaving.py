"""Models whose heads behave as they were made to: attend to an earlier copy, copy it, suppress it, stand in.

``behaving_model`` builds a GPT-2 whose weights are computed. The residual stream of a token has mutually orthogonal
parts: its word, its position (as sines and cosines of 16 frequencies), flags for the first position and for delimiters,
a constant, and, written by heads, the word before and a flag that a head has copied. With x and y for the query's and
the key's parts:

| behaviour | attention score |
|---|---|
| ``previous-token`` | position of y = position of x, turned back by one |
| ``self`` | position of y = position of x |
| ``sink`` | y is first |
| ``duplicate-token`` | word of y = word of x, and not the same position; otherwise y is first |
| ``induction`` | word before y = word of x; otherwise y is first |
| ``delimiter`` | y is a delimiter; otherwise y is first |
| ``primary``, ``negative`` | as ``induction`` |
| ``backup`` | as ``induction``, but y is first if the flag of x says that a head has copied |

Each is a product W_Q W_K^T of rank d_head. Without noise, most attention goes where it should.

What heads write is a random map of the word that they attend to, with three exceptions. A ``primary`` head raises the
logit of this word by about 4, and sets the flag of x. A ``backup`` head raises it by 1.5: only if the primary head has
not copied, for example because it is ablated. A ``negative`` head lowers it by 1.

**Noise** is Gaussian, on W_Q and W_K, scaled so that W_Q W_K^T is off by ``noise`` times its Frobenius norm; in the
three exceptions also on W_V and W_O. A head with nothing planted has Gaussian W_Q and W_K with the same Frobenius norm.
It reads no constant, so that where it attends depends on both tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from numpy.random import Generator, default_rng

from mechheads.heads import HeadId, check_head
from mechheads.messages.arguments import check_at_least, check_known
from mechheads.model.load import from_transformers
from mechheads.model.model import Model
from mechheads.prompts.prompts import PromptPairs
from mechheads.testing.behaving_weights import D_HEAD, DELIMITERS, Behaviour, Writer
from mechheads.testing.planting import blank_gpt2, make_language

_PIECE = 3
_TWICE: tuple[Behaviour, ...] = (
    "previous-token",
    "self",
    "sink",
    "duplicate-token",
    "induction",
    "delimiter",
    "negative",
    "backup",
)
"""The behaviours of two heads each in the default plant. One more head is primary."""
_AFTER: tuple[Behaviour, ...] = ("induction", "negative", "primary", "backup")
"""They attend to the token after an earlier copy, so they need a previous-token head in layer 0."""


@dataclass(frozen=True, eq=False, repr=False)
class BehavingModel:
    """A model, and how each of its heads attends; made by ``behaving_model``.

    Attributes:
        model: the model, in float32 on the CPU.
        heads: what is planted in which head. Every other head attends and writes at random.
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
        >>> set(profile.named("sink")) == {head for head, name in made.attends.items() if name == "sink"}
        True
        """
        rng, tokenizer = default_rng([self.seed, 2]), self.model.tokenizer
        marks = [tokenizer.vocab[f"▁{text}"] for text in DELIMITERS]
        rows = []
        for _ in range(n):
            row, some = [tokenizer.bos_token_id], rng.integers(len(tokenizer.all_special_ids), len(tokenizer), 30)
            while len(row) < length:
                kind = rng.choice(3, p=(0.12, 0.22, 0.66)) if len(row) > _PIECE + 1 else 2
                start = rng.integers(1, max(2, len(row) - _PIECE))
                row += [[rng.choice(marks)], row[start : start + _PIECE], [rng.choice(some)]][kind]
            rows.append([int(token) for token in row[:length]])
        return rows

    @property
    def attends(self) -> dict[HeadId, str]:
        """What a profile on ``texts`` should call the attention of each planted head.

        Heads that copy or suppress attend as induction heads do. A backup head rests on the first token, because the
        primary head has copied.

        >>> plant = {"L0H1": "previous-token", "L1H3": "primary", "L2H0": "backup"}
        >>> [*mh.testing.behaving_model(plant=plant).attends.values()]
        ['previous-token', 'induction', 'sink']
        """
        names = {"negative": "induction", "primary": "induction", "backup": "sink"}
        return {head: names.get(behaviour, behaviour) for head, behaviour in self.heads.items()}

    def pairs(self, n: int = 24, length: int = 40) -> PromptPairs:
        """Prompts that end with a copy of an earlier token, and the token that followed it as the answer.

        In the corrupted prompt, the last token has no copy. The wrong answer is another token of the prompt.

        >>> plant = {"L0H1": "previous-token", "L1H3": "primary", "L2H0": "backup"}
        >>> made = mh.testing.behaving_model(plant=plant)
        >>> repair = mh.patching.self_repair(made.model, made.pairs(), progress=False)
        >>> repair.select(effect="repair").top(1).index[0]
        'L1H3'
        """
        rng, tokenizer = default_rng([self.seed, 3]), self.model.tokenizer
        words = np.setdiff1d(
            np.arange(len(tokenizer.all_special_ids), len(tokenizer)),
            [tokenizer.vocab[f"▁{text}"] for text in DELIMITERS],
        )
        columns: tuple[list[Any], ...] = [], [], [], []
        for _ in range(n):
            row = rng.choice(words, length, replace=False).tolist()
            first, other = rng.choice(np.arange(1, length - 3), 2, replace=False)
            clean, corrupted = ([tokenizer.bos_token_id, *row[:-2], last] for last in (row[first], row[-1]))
            other = other if other != first + 1 else 0
            for column, value in zip(columns, (clean, corrupted, row[first + 1], row[other]), strict=True):
                column.append(value)
        return PromptPairs(*columns)

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
            random heads have each behaviour but ``primary``, which one has. Induction, primary, negative and backup
            need a previous-token head in layer 0 and are in later layers; backup is in a later layer than primary.

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
        gpt2 = blank_gpt2(n_layers, n_heads, n_heads * D_HEAD)
    writer = Writer(gpt2, tokenizer, rng)
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
    after = {head: behaviour for head, behaviour in heads.items() if behaviour in _AFTER}
    first = any(head.layer == 0 and behaviour == "previous-token" for head, behaviour in heads.items())
    if after and (not first or min(after).layer == 0):
        raise ValueError(
            f"plant has {after[min(after)]} in {min(after)}, which needs a previous-token head in layer 0, and a later "
            "layer for itself"
        )
    copied = min((head.layer for head, behaviour in heads.items() if behaviour == "primary"), default=n_layers)
    backups = [head for head, behaviour in heads.items() if behaviour == "backup"]
    if backups and min(backups).layer <= copied:
        raise ValueError(
            f"plant has backup in {min(backups)}, which needs a primary head in an earlier layer to stand in for"
        )
    return dict(sorted(heads.items()))


def _draw(n_layers: int, n_heads: int, rng: Generator) -> dict[HeadId, Behaviour]:
    """Two heads of each behaviour, and one that is primary."""
    needed = 2 * len(_TWICE) + 1
    if n_layers < 3 or n_heads < 2 or n_layers * n_heads < needed + 2:
        raise ValueError(
            f"the default plant needs {needed + 2} heads in 3 or more layers of 2 or more; n_layers={n_layers} with "
            f"n_heads={n_heads} has too few. Choose what to plant with plant=, or use a larger model"
        )
    heads: dict[HeadId, Behaviour] = {HeadId(0, int(rng.integers(n_heads))): "previous-token"}

    def draw(kinds: Sequence[Behaviour], first: int) -> None:
        """Plant behaviours in free heads from a layer on."""
        every = [HeadId(layer, head) for layer in range(first, n_layers) for head in range(n_heads)]
        free = [head for head in every if head not in heads]
        heads.update({free[i]: kind for i, kind in zip(rng.permutation(len(free)), kinds, strict=False)})

    heads[HeadId(int(rng.integers(1, n_layers - 1)), int(rng.integers(n_heads)))] = "primary"
    backups: list[Behaviour] = ["backup", "backup"]
    others: list[Behaviour] = ["induction", "negative", "induction", "negative"]
    rest: list[Behaviour] = [kind for kind in (*_TWICE, *_TWICE) if kind not in _AFTER]
    draw(backups, 1 + next(head.layer for head, kind in heads.items() if kind == "primary"))
    draw(others, 1)
    draw(rest[1:], 0)
    return dict(sorted(heads.items()))
