"""What every head does on ordinary text: one pass over a corpus, window by window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.behaviour.measure import BEHAVIOURS, FITS, MEASURES, measure
from mechheads.behaviour.programs import PROGRAMS
from mechheads.behaviour.windows import Texts, Windows, check_window, read_windows, windows_of
from mechheads.engine.memory import keep_freed_memory
from mechheads.heads import HeadId, HeadLike, Heads, check_head, named_heads
from mechheads.ledger.key import Store
from mechheads.ledger.ledger import StoredProgress, check_progress
from mechheads.limits import current
from mechheads.messages.arguments import Within, check_known
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.progress import Bar
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.shown import Rows, chosen
from mechheads.results.stats import clustered_interval, family_p, mean_over_prompts, q_values, rounding_of, sign_flip_p

PROFILED = (*BEHAVIOURS, "position")
NAMES = {
    "first": "sink",
    "self": "self",
    "previous": "previous-token",
    "duplicate": "duplicate-token",
    "induction": "induction",
    "delimiter": "delimiter",
    "position": "positional",
}
"""The name of a head with a behaviour."""
LEAST = {
    "first": 0.5,
    "self": 0.3,
    "previous": 0.3,
    "duplicate": 0.1,
    "induction": 0.1,
    "delimiter": 0.3,
    "position": 0.5,
}
"""The excess over its null that a behaviour must have, at the lower end of the interval, to give a name."""
LEAST_ELSEWHERE = 0.1
"""The share of attention that a positional head must give to tokens other than the first and the query itself."""
FDR = 0.05
_QUANTILES = (0.1, 0.5, 0.9)


class HeadProfile(HeadScores):
    """What every head does on ordinary text, from ``mh.profile_heads``.

    ``score`` over (layer, head, behaviour) is the share of a head's attention that goes to the keys of a behaviour,
    averaged over queries that have such keys and over windows; for ``position`` it is the share of the variance of
    attention that the distance explains. Further variables over the same dimensions: ``null``, the same for permuted
    keys; ``excess``, the difference, with ``excess_low`` and ``excess_high``, to which ``p_value`` and ``q_value``
    belong; ``moved``, the score with attention weighted by the norm of v W_O, and ``moved_excess``; ``named``.
    Over (layer, head): ``entropy`` of attention in nats, ``distance`` in tokens with ``distance_10``, ``distance_50``
    and ``distance_90``, ``norm`` of the head's output relative to the residual stream, and ``copying``, each with
    ``_low`` and ``_high`` where it is a mean over windows. Over (layer, head, program): ``fit``, how well each program
    of ``mh.behaviour.test_program`` fits.
    """

    KIND = "profile"

    @classmethod
    def of(
        cls,
        values: Float[np.ndarray, "measure layer head window"],
        at_distance: Float[np.ndarray, "layer head distance"],
        provenance: Mapping[str, Any],
    ) -> HeadProfile:
        """The profile, from measures of windows or of blocks of windows."""
        measured = dict(zip(MEASURES, values, strict=True))

        def stacked(ending: str = "") -> Float[np.ndarray, "layer head behaviour window"]:
            nothing = np.full_like(values[0], np.nan)
            return np.stack([measured.get(f"{name}{ending}", nothing) for name in PROFILED], axis=2)

        score, null = stacked(), stacked("_null")
        moved, moved_null = stacked("_moved"), stacked("_moved_null")
        cluster, dims, heads = range(values.shape[-1]), ("layer", "head", "behaviour"), ("layer", "head")
        variables: dict[str, Any] = {
            "moved": (dims, mean_over_prompts(moved)),
            "moved_excess": (dims, mean_over_prompts(moved - moved_null)),
        }
        for name in ("entropy", "distance", "norm", "copying"):
            ends = clustered_interval(measured[name], cluster)
            variables |= {name: (heads, mean_over_prompts(measured[name]))}
            variables |= {f"{name}_{end}": (heads, each) for end, each in zip(("low", "high"), ends, strict=True)}
        for share, distance in zip(_QUANTILES, _quantiles(at_distance), strict=True):
            variables[f"distance_{share * 100:.0f}"] = (heads, distance)
        fits = mean_over_prompts(np.stack([measured[name] for name in FITS], axis=2))
        variables |= {"fit": ((*heads, "program"), fits), "program": ("program", list(PROGRAMS))}
        variables |= _above(score, null, cluster)
        data = HeadScores.from_values(
            score,
            cluster=cluster,
            name="profile on text",
            kind="profile",
            extra={"behaviour": PROFILED},
            provenance=provenance,
        ).dataset.assign(variables)
        least = np.array([LEAST[name] for name in PROFILED])
        named = (data["q_value"].values <= FDR) & (data["excess_low"].values >= least)
        means = dict(zip(PROFILED, np.moveaxis(data["score"].values, -1, 0), strict=True))
        named[..., PROFILED.index("position")] &= means["first"] + means["self"] <= 1 - LEAST_ELSEWHERE
        return cls(data.assign(named=(dims, named)))

    def names(self, head: HeadLike) -> tuple[str, ...]:
        """The names of one head, such as ``("previous-token", "positional")``; empty if it has none.

        A name needs a q value of at most 0.05, and an excess over the null of at least 0.5 (``sink``, ``positional``),
        0.3 (``self``, ``previous-token``, ``delimiter``) or 0.1 (``duplicate-token``, ``induction``), at the lower end
        of its interval. A positional head must also give a tenth of its attention to tokens other than the first and
        the query itself.
        """
        at = check_head(head, self.n_layers, self.n_heads)
        named = self.dataset["named"].values[at.layer, at.head]
        return tuple(NAMES[name] for name, has in zip(PROFILED, named, strict=True) if has)

    def named(self, name: str) -> tuple[HeadId, ...]:
        """The heads with a name, those with the largest excess first."""
        check_known("name", name, tuple(NAMES.values()))
        at = list(NAMES.values()).index(name)
        named, excess = (self.dataset[each].values[..., at] for each in ("named", "excess"))
        heads = [HeadId(int(layer), int(head)) for layer, head in np.argwhere(named)]
        return tuple(sorted(heads, key=lambda head: -excess[head.layer, head.head]))

    def table(self, columns: Sequence[str] | None = None) -> Rows:
        """One row for each head that was measured: its names, the program that fits best and its J, and all measures.

        Args:
            columns: the columns to return, in this order; by default all, of which at most eight are shown.
        """
        data = self.dataset
        heads = [HeadId(layer, head) for layer in range(self.n_layers) for head in range(self.n_heads)]
        measures: dict[str, Any] = {
            "head": map(str, heads),
            "layer": [head.layer for head in heads],
            "index": [head.head for head in heads],
            "names": [", ".join(self.names(head)) for head in heads],
            "program": np.array(PROGRAMS)[data["fit"].fillna(0).argmax("program").values.ravel()],
            "fit": data["fit"].max("program").values.ravel(),
        }
        for at, behaviour in enumerate(PROFILED):
            for name, column in ((behaviour, "score"), (f"{behaviour}_null", "null"), (f"{behaviour}_q", "q_value")):
                measures[name] = data[column].values[..., at].ravel()
        others = ("entropy", "distance", "distance_10", "distance_50", "distance_90", "norm", "copying")
        table = pd.DataFrame(measures | {name: data[name].values.ravel() for name in others})
        table = table.dropna(subset="fit").reset_index(drop=True)
        table.attrs["first"] = ("head", "names", "program", "fit", *PROFILED)
        return chosen(table, columns)


def _above(
    score: Float[np.ndarray, "layer head behaviour window"],
    null: Float[np.ndarray, "layer head behaviour window"],
    cluster: Sequence[object],
) -> dict[str, Any]:
    """The null, and the excess of the scores over it with its interval and p values, as variables of a dataset."""
    excess, seed, rounding = score - null, current().seed, rounding_of(score, null)
    low, high = clustered_interval(excess, cluster)
    p = sign_flip_p(excess, cluster, seed=seed, rounding=rounding)
    columns = {
        "null": mean_over_prompts(null),
        "excess": mean_over_prompts(excess),
        "excess_low": low,
        "excess_high": high,
        "p_value": p,
        "q_value": q_values(p),
        "p_family": family_p(excess, cluster, seed=seed, rounding=rounding),
    }
    return {name: (("layer", "head", "behaviour"), values) for name, values in columns.items()}


def _quantiles(at_distance: Float[np.ndarray, "layer head distance"]) -> list[Float[np.ndarray, "layer head"]]:
    """The distances below which 10%, 50% and 90% of attention lie."""
    mass = at_distance.cumsum(-1)
    with np.errstate(invalid="ignore"):
        share = mass / mass[..., -1:]
    return [np.where(np.isnan(share[..., -1]), np.nan, (share < at).sum(-1).astype(float)) for at in _QUANTILES]


USUAL_WINDOW = 256
"""The usual length of a window."""
_BLOCKS = 256


@dataclass(frozen=True, eq=False)
class Totals:
    """Sums over windows, in at most 256 blocks of ``width`` windows. When all are full, they are merged two by two."""

    sums: Float[Tensor, "measure layer head block"]
    counts: Float[Tensor, "measure block"]
    at_distance: Float[Tensor, "layer head distance"]
    width: int = 1
    batches: int = 0
    windows: int = 0
    tokens: int = 0

    @classmethod
    def none(cls, model: Model, window: int) -> Totals:
        """The totals of no windows."""
        shape = len(MEASURES), model.n_layers, model.n_heads
        sizes = (*shape, _BLOCKS), (len(MEASURES), _BLOCKS), (*shape[1:], window)
        sums, counts, at_distance = (torch.zeros(size, dtype=torch.float64) for size in sizes)
        return cls(sums, counts, at_distance)

    def plus(self, windows: Windows, measures: Tensor, at_distance: Tensor) -> Totals:
        """New totals with a batch of windows added; these stay as they are, so an interrupt leaves them whole."""
        sums, counts, width = self.sums.clone(), self.counts.clone(), self.width
        for number, values in enumerate(measures.unbind(-1), self.windows):
            if number == _BLOCKS * width:
                sums, counts, width = _merged(sums), _merged(counts), 2 * width
            sums[..., number // width] += values.nan_to_num(0)
            counts[:, number // width] += values.isfinite().flatten(1).any(1)
        at_every = self.at_distance.clone()
        at_every[..., : at_distance.shape[-1]] += at_distance
        return Totals(
            sums,
            counts,
            at_every,
            width,
            self.batches + 1,
            self.windows + len(windows.ids),
            self.tokens + windows.ids.numel(),
        )

    @property
    def values(self) -> Float[Tensor, "measure layer head block"]:
        """The mean over the windows of each block; NaN if none of them has the measure."""
        return (self.sums / self.counts[:, None, None])[..., : -(-self.windows // self.width)]


def _merged(blocks: Float[Tensor, "*of block"]) -> Float[Tensor, "*of block"]:
    """Neighbouring blocks added, followed by empty ones."""
    return torch.cat([blocks[..., 0::2] + blocks[..., 1::2], torch.zeros_like(blocks[..., 0::2])], dim=-1)


@analysis
def profile_heads(
    model: Model,
    texts: Texts = None,
    *,
    window: int | None = None,
    n_tokens: Annotated[int, Within(least=16)] | None = 20000,
    heads: Heads | None = None,
) -> HeadProfile:
    """The share of every head's attention on ordinary text that each of seven behaviours explains.

    The texts are cut into windows, and the model runs once on each. Only means over windows are stored (over at
    most 256 blocks of windows if there are more), so memory does not grow with the texts. With ``mh.settings(store=)``,
    the same call continues after an interrupt or a kill; all texts are then read before the first is measured.

    For each head, the result has the share of its attention that goes to

    - ``first``: the first token (a sink); ``self``: the token itself; ``previous``: the token before it;
    - ``duplicate``: earlier copies of the token; ``induction``: tokens that follow an earlier copy of it;
    - ``delimiter``: earlier punctuation and line ends;

    and, as ``position``, the share of the variance of attention that the distance alone explains. Each has a null: the
    same attention, with the keys of each query permuted. ``HeadProfile`` lists the other measures. ``copying`` is
    how often the head raises the logit of the token it attends to most above another token's (0.5 by chance).

    Args:
        texts: a file (texts with an empty line between them), or a list of texts or of token ids; by
            default, prose of the package and the help texts of Python.
        window: the length of a window in tokens; by default 256, or the model's context if that is shorter.
        n_tokens: how many tokens to read; ``None`` for all.
        heads: the heads to measure, as in ``mh.sweep``; every head if left out. The others are NaN.

    Returns:
        Shares [layer, head, behaviour] with intervals over windows, and q values of the excess over the null. After
        Ctrl-C, they are means over the windows measured until then.

    Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; Olsson et al. 2022, "In-context Learning
    and Induction Heads" (arXiv 2209.11895); Kobayashi et al. 2020 (arXiv 2004.10102).

    >>> profile = mh.profile_heads(model, n_tokens=1024)
    >>> [str(head) for head in profile.select(behaviour="previous").heads(1)]
    ['L16H0']
    """
    window = check_window(model, window, USUAL_WINDOW)
    named, names = named_heads(heads, model.n_layers, model.n_heads)
    layers = np.flatnonzero(named.any(1)).tolist()
    check_progress()
    keep_freed_memory()
    batches = windows_of(model, texts, window, n_tokens)
    with Store(current().store, analysis="profile_heads") as store:
        ledger = None
        if current().store is not None:
            every = list(batches)
            ids = [windows.ids.cpu() for windows in every]
            ledger, batches = store.open(model, {}, texts=ids, window=window, layers=layers), iter(every)
        progress = StoredProgress(ledger)
        totals = progress.state("totals", Totals.none(model, window))
        bar = Bar(total=n_tokens, initial=totals.tokens, desc="profile", unit="token")

        def see(windows: Windows, measures: tuple[Tensor, Tensor]) -> None:
            nonlocal totals
            totals = totals.plus(windows, *measures)
            progress.see("totals", totals, totals.batches)

        left, done = islice(batches, totals.batches, None), (totals.windows, totals.tokens)
        with progress:
            metadata = read_windows(model, left, partial(measure, layers=layers), see, bar, done)
    source = "of the package" if texts is None else "own"
    provenance = make_provenance(model, metadata, texts=source, window=window, heads=names)
    values, at_distance = totals.values.numpy(), totals.at_distance.numpy()
    values[:, ~named], at_distance[~named] = np.nan, 0
    return HeadProfile.of(values, at_distance, provenance)
