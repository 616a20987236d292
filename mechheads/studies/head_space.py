"""``HeadSpace``: where tokens lie in the space of every head: the plane in which its q, k and z vary most."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from mechheads.behaviour.examples import activity_of
from mechheads.behaviour.measure import each_layer
from mechheads.behaviour.windows import Texts, windows_of
from mechheads.heads import HeadLike, check_head
from mechheads.limits import current
from mechheads.messages.arguments import Positive, check_at_least
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.prompts.encoding import token_strings
from mechheads.results.kinds import KINDS
from mechheads.results.provenance import make_provenance
from mechheads.results.tables import TableResult

SPACES = ("q", "k", "z")
Space = Literal["q", "k", "z"]
AXES = 2
"""Components that are kept."""
WINDOW = 64
"""Tokens of a window; a shorter context makes it shorter."""
_DRAWN_FROM = 8
"""Windows are drawn from so many times as much text as is read."""


@dataclass(frozen=True, eq=False, repr=False)
class HeadSpace(TableResult):
    """Where tokens of text lie in the space of every head, from ``mh.studies.head_space``.

    The arrays over spaces are of q, k and z, in this order. Heads that share keys have the same k.

    Attributes:
        table: a row for each token that is shown: its ``window`` (a row of ``tokens``), its ``position`` in it, and the
            ``token`` itself.
        words: the texts of all tokens.
        tokens: the windows, as numbers of words.
        points: the coordinates of the shown tokens, in 255ths of the way between ``ends``.
        ends: the lowest and the highest coordinate.
        shares: the share of the variance of all tokens that each component holds.
        held: the share of the variance that the two components hold in windows that they were not found in.
        activity: of the head at each token, as in ``mh.behaviour.head_examples``, in 255ths of ``most_active``.
        most_active: the largest activity at a token that is shown.
        provenance: what is needed to repeat it.
    """

    KIND = "head_space"
    name, unit = "space of heads", KINDS[KIND].unit

    table: pd.DataFrame
    words: tuple[str, ...]
    tokens: Int[np.ndarray, "window pos"]
    points: UInt8[np.ndarray, "space layer head axis token"]
    ends: Float[np.ndarray, "space layer head axis end"]
    shares: Float[np.ndarray, "space layer head axis"]
    held: Float[np.ndarray, "space layer head"]
    activity: UInt8[np.ndarray, "layer head token"]
    most_active: Float[np.ndarray, "layer head"]
    provenance: dict[str, Any]

    @property
    def chance(self) -> float:
        """The share of the variance that two directions hold on average if they are drawn at random: 2 / d_head."""
        return AXES / self.provenance["d_head"]

    def coordinates(self, head: HeadLike, space: Space) -> Float[np.ndarray, "token axis"]:
        """The coordinates of the shown tokens, to 1/255 of their range; 0 is the mean of all tokens.

        Raises:
            ValueError: if there is no such head or space.
        """
        if space not in SPACES:
            raise ValueError(f"space is {space!r}; give one of {', '.join(SPACES)}")
        found = check_head(head, *self.activity.shape[:2])
        at = SPACES.index(space), found.layer, found.head
        low, high = np.moveaxis(self.ends[at], -1, 0)
        return low + (high - low) * self.points[at].T / 255

    def of(self, head: HeadLike) -> pd.DataFrame:
        """The tokens as one head sees them: ``table`` with ``activity`` and the coordinates, ``q_1`` to ``z_2``.

        Raises:
            ValueError: if there is no such head.
        """
        found = check_head(head, *self.activity.shape[:2])
        at = found.layer, found.head
        columns = {
            f"{space}_{axis + 1}": self.coordinates(found, space)[:, axis] for space in SPACES for axis in range(AXES)
        }
        return self.table.assign(activity=self.most_active[at] * self.activity[at] / 255, **columns)


@analysis
@torch.no_grad()
def head_space(model: Model, texts: Texts = None, *, n_tokens: int = 1024, shown: Positive = 96) -> HeadSpace:
    """Find the plane in which each head's q, k and z vary most over tokens of text, and where tokens lie in it.

    A head may do one thing for some tokens and another for others. If so, its q, k or z often form groups. This is a
    principal component analysis of each head's

    - q and k: before rotation, so that the positions of tokens do not mix in, and after the model's norm of q and k, if
      it has one (but before it in a HookedTransformer, which has no hook between the norm and the rotation);
    - z: the head's output before W_O.

    The first token of a window is left out: its states are unlike all others, and would be the first component of most
    heads. A component's sign is chosen so that its entry with the largest absolute value is positive.

    How much of the variance two components hold says little alone: with few tokens or few dimensions it is always
    large. So the windows are divided into two halves, the components are found in one, and ``held`` is the share of the
    variance that they hold in the other (the mean of both ways). Two directions drawn at random hold ``chance``, which
    is 2 / d_head on average.

    Args:
        texts: a file (texts with an empty line between them), a list or an iterator of texts or of token ids; by
            default, prose of the package and the help texts of Python.
        n_tokens: how many tokens to read, in windows of 64 that are drawn from the first ``8 * n_tokens`` tokens.
        shown: of how many tokens, drawn at random, the coordinates are kept. They are the same for all heads.

    Raises:
        ValueError: if an argument is not valid, heads have fewer than two dimensions, or the texts have fewer than two
            windows.

    >>> space = mh.studies.head_space(model)
    >>> space.of("L0H0").columns.tolist()
    ['window', 'position', 'token', 'activity', 'q_1', 'q_2', 'k_1', 'k_2', 'z_1', 'z_2']
    >>> bool((space.shares.sum(-1) <= 1).all()), space.chance
    (True, 0.03125)
    """
    window = min(WINDOW, model.n_ctx)
    check_at_least(2 * window, n_tokens=n_tokens)
    if model.d_head < AXES:
        raise ValueError(f"heads of {model.name!r} have {model.d_head} dimension; a plane needs two")
    rng = np.random.default_rng(current().seed)
    ids = _drawn_windows(model, texts, window, n_tokens, rng)
    n, pos = ids.shape
    places = np.sort(rng.choice(n * (pos - 1), min(shown, n * (pos - 1)), replace=False))
    seen = _Spaces(model, n, places)
    each_layer(model, ids, ("resid_pre", "normed_q", "normed_k", "v", "pattern", "z"), seen.see)
    known, tokens = np.unique(ids.cpu().numpy(), return_inverse=True)
    words, tokens = tuple(token_strings(known.tolist(), model.tokenizer)), tokens.reshape(n, pos)
    at, position = places // (pos - 1), 1 + places % (pos - 1)
    table = pd.DataFrame({"window": at, "position": position, "token": [words[i] for i in tokens[at, position]]})
    provenance = make_provenance(
        model,
        texts="of the package" if texts is None else "given",
        window=pos,
        n_tokens=n * (pos - 1),
        d_head=model.d_head,
    )
    return HeadSpace(table, words, tokens.astype(np.int32), **seen.arrays(), provenance=provenance)


def _drawn_windows(
    model: Model, texts: Texts, window: int, n_tokens: int, rng: np.random.Generator
) -> Int[Tensor, "window pos"]:
    """Whole windows, drawn at random from the beginning of the texts."""
    whole = [
        each.ids for each in windows_of(model, texts, window, _DRAWN_FROM * n_tokens) if each.ids.shape[1] == window
    ]
    n = sum(len(each) for each in whole)
    if n < 2:
        raise ValueError(f"texts have fewer than two windows of {window} tokens; give longer texts")
    return torch.cat(whole)[np.sort(rng.choice(n, min(n, n_tokens // window), replace=False))]


class _Spaces:
    """What is kept of each layer: a few numbers of each head.

    Args:
        places: the shown tokens, counted over all windows without their first tokens.
    """

    def __init__(self, model: Model, n: int, places: Int[np.ndarray, " token"]) -> None:
        self._model, self._places = model, places
        self._first_half = torch.arange(n) % 2 == 0
        self._kept: list[dict[str, np.ndarray]] = []

    def see(
        self,
        layer: int,
        resid_pre: Tensor,
        normed_q: Tensor,
        normed_k: Tensor,
        v: Tensor,
        pattern: Tensor,
        z: Tensor,
    ) -> None:
        """Analyse a layer."""
        _, _, moved = activity_of(self._model, layer, resid_pre, v, pattern)
        activity = np.concatenate([*moved[..., 1:].cpu().numpy()], axis=-1)[:, self._places].astype(float)
        most = activity.max(-1)
        kept = {"activity": in_255ths(activity, np.zeros_like(most), most), "most_active": most}
        spaces = []
        for states in (normed_q, normed_k, z):
            with _one_thread():
                parts = self._planes(states[:, 1:].double().cpu())
            times = self._model.n_heads // states.shape[2]
            spaces.append({name: part.repeat(times, axis=0) for name, part in parts.items()})
        self._kept.append(kept | {name: np.stack([each[name] for each in spaces]) for name in spaces[0]})

    def _planes(self, states: Float[Tensor, "window pos head d_head"]) -> dict[str, np.ndarray]:
        """The plane of each head: its share, and the shown tokens in it."""
        whole = _by_head(states)
        halves = [covariance(_by_head(states[half])) for half in (self._first_half, ~self._first_half)]
        shares, components = principal(covariance(whole))
        held = [share_of(halves[1 - i], principal(halves[i])[1]) for i in range(2)]
        at = (whole[:, self._places] - whole.mean(1, keepdim=True)) @ components
        points = at.mT.numpy()
        low, high = points.min(-1), points.max(-1)
        return {
            "points": in_255ths(points, low, high),
            "ends": np.stack([low, high], axis=-1),
            "shares": shares.numpy(),
            "held": np.mean(held, axis=0),
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of ``HeadSpace``, by name."""
        stacked = {name: np.stack([each[name] for each in self._kept]) for name in self._kept[0]}
        of_heads = ("activity", "most_active")
        return {name: each if name in of_heads else each.swapaxes(0, 1) for name, each in stacked.items()}


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one thread: matrices are so small that several wait for each other most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _by_head(states: Float[Tensor, "window pos head d_head"]) -> Float[Tensor, "head token d_head"]:
    return states.flatten(0, 1).transpose(0, 1).contiguous()


def covariance(states: Float[Tensor, "head token d_head"]) -> Float[Tensor, "head d_head d_head"]:
    """The covariance of each head's states over tokens."""
    centred = states - states.mean(1, keepdim=True)
    return centred.mT @ centred / states.shape[1]


def principal(
    covariance: Float[Tensor, "head d_head d_head"],
) -> tuple[Float[Tensor, "head axis"], Float[Tensor, "head d_head axis"]]:
    """The first two components of each head, and their shares of the variance; NaN if there is none.

    The sign of a component: its entry with the largest absolute value is positive.
    """
    values, vectors = torch.linalg.eigh(covariance)
    values, vectors = values.flip(-1).clamp_min(0), vectors.flip(-1)[..., :AXES]
    largest = vectors.gather(1, vectors.abs().argmax(1, keepdim=True))
    return values[:, :AXES] / values.sum(1, keepdim=True), vectors * torch.where(largest < 0, -1, 1)


def share_of(
    covariance: Float[Tensor, "head d_head d_head"], components: Float[Tensor, "head d_head axis"]
) -> Float[Tensor, " head"]:
    """The share of a variance that lies in the span of orthogonal components; NaN if there is none."""
    within = ((covariance @ components) * components).sum((1, 2))
    return within / covariance.diagonal(dim1=1, dim2=2).sum(-1)


def in_255ths(
    values: Float[np.ndarray, "*any token"], low: Float[np.ndarray, "*any"], high: Float[np.ndarray, "*any"]
) -> UInt8[np.ndarray, "*any token"]:
    """Where values lie between two ends, from 0 to 255; 0 if the ends are the same."""
    width = (high - low)[..., None]
    share = np.divide(values - low[..., None], width, out=np.zeros_like(values), where=width > 0)
    return np.rint(255 * share).astype(np.uint8)
