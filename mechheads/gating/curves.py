"""Ablation curves: what becomes of a task as the top heads of a role are gated off, against the same gated on.

    change(k) = log p(target | top k gated 0) - log p(target | the same k gated 1),   all other gates at G+

Where roles say what they should, facilitation's curve falls below 0 and interference's rises above it, while
irrelevance's stays where random orders are (Nam et al. 2025, arXiv 2505.13737).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int

from mechheads.backends.changes import alone
from mechheads.bars import Bar
from mechheads.gating.arguments import Reduce, check_reduce
from mechheads.gating.fitted import Gates
from mechheads.gating.gates import under_gates
from mechheads.gating.roles import ROLES, Roles, head_roles
from mechheads.gating.task import Task, TaskTokens
from mechheads.heads import HeadId
from mechheads.model import Model
from mechheads.notices import warn
from mechheads.shown import html_result
from mechheads.stats import clustered_interval, mean_over_prompts

Over = Literal["items", "seeds"]


@dataclass(frozen=True, eq=False)
class RoleCurves:
    """The curve of each role, and of heads in random order.

    Attributes:
        table: one row for each line and number ``k`` of heads: ``which`` (a role, or "random 1" and so on), ``change``
            in nats with ci_low and ci_high.
        values: of each row of the table, one for each item, or each seed; NaN where a stopped run did not come.
        heads: of each line the heads in the order they are gated; for ``over="seeds"`` those of the first seed.
        name: of the task; ``model``: of the model.
        provenance: what it takes to repeat it.
    """

    table: pd.DataFrame
    values: Float[np.ndarray, "row each"]
    heads: dict[str, tuple[HeadId, ...]]
    name: str
    model: str
    provenance: dict[str, Any]

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it, so that a part is NaN."""
        return bool(self.provenance["interrupted"])

    @property
    def band(self) -> pd.DataFrame:
        """What random orders give at each ``k``: their ``mean``, and ``low`` and ``high``, the least and the most."""
        random = self.table[self.table["which"].str.startswith("random ")]
        return random.groupby("k")["change"].agg(mean="mean", low="min", high="max").reset_index()

    def __repr__(self) -> str:
        last = self.table[self.table["k"] == self.table["k"].max()].set_index("which")["change"]
        said = ", ".join(f"{role} {last[role]:+.2f}" for role in ROLES)
        return f"<RoleCurves of {self.name!r} with {self.table['k'].max()} heads gated off: {said} nats>"

    def _repr_html_(self) -> str:
        return html_result(self, self.table.pivot(index="k", columns="which", values="change"))


@alone
def role_curve(
    model: Model,
    task: Task,
    gates: Gates,
    roles: Roles | None = None,
    *,
    most: int = 50,
    counts: Sequence[int] | None = None,
    over: Over = "items",
    draws: int = 5,
    reduce: Reduce = "mean",
    seed: int = 0,
    budget: int | str | None = None,
    progress: bool = True,
) -> RoleCurves:
    """Gate off the top heads of each role, more and more of them, and see what the targets lose.

    Args:
        task: what is measured: items that the gates were not fitted to tell more.
        gates: of ``fit_gates``; all other heads stay at their gates of the fit "keep".
        roles: what heads are ordered by; left out, ``head_roles(gates)``.
        most: heads to gate off at most; no more than there are.
        counts: the numbers of heads to try; left out, each up to 10, then every fifth up to ``most``.
        over: ``"items"``: gates and roles are averaged over seeds, and intervals are over items, by clusters.
            ``"seeds"``: each seed has its own gates and order, and intervals are over seeds.
        draws: random orders of heads to compare with.
        reduce: over the tokens of a target.
        seed: of the random orders.
        budget: memory, bytes or "2 GB" (default 4 GB).
        progress: show a bar.

    Returns:
        The curves. After Ctrl-C what was done; the rest is NaN.

    Raises:
        ValueError: if an argument does not fit, or the gates are another model's or not fitted to the end.

    >>> task = mh.Task(["The capital of France is", "The capital of Italy is"], [" Paris", " Rome"])
    >>> gates = mh.fit_gates(model, task, seeds=2, updates=1, progress=False)
    >>> curves = mh.role_curve(model, task, gates, counts=[0, 3], draws=1, progress=False)
    >>> curves.table[["which", "k"]].values.tolist()[:4]
    [['facilitation', 0], ['facilitation', 3], ['interference', 0], ['interference', 3]]
    """
    roles = head_roles(gates) if roles is None else roles
    steps = _check(model, gates, roles, most, counts, over, draws)
    check_reduce(reduce)
    tokens = task.tokens(model)
    keep = gates["keep"].mean(0, keepdims=True) if over == "items" else gates["keep"]
    orders = {role: _ranked(roles, role, over) for role in ROLES}
    rng = np.random.default_rng(seed)
    n_heads = model.n_layers * model.n_heads
    for draw in range(draws):
        orders[f"random {draw + 1}"] = np.stack([rng.permutation(n_heads) for _ in keep])
    found = {which: np.full((len(keep), len(steps), len(tokens)), np.nan) for which in orders}
    pairs = 2 * sum(k > 0 for k in steps) * len(keep) * len(orders)
    interrupted = False
    with Bar(total=pairs * len(tokens), desc="role curves", disable=not progress, leave=False) as bar:
        try:
            for which, order in orders.items():
                for base, gate in enumerate(keep):
                    found[which][base] = _changes(model, tokens, gate, order[base], steps, reduce, budget, bar)
        except KeyboardInterrupt:
            interrupted = True
            warn("interrupted; what was not reached is NaN")
    values = np.concatenate([line[0] if over == "items" else line.mean(-1).T for line in found.values()])
    labels = tokens.cluster if over == "items" else [str(number) for number in gates.seeds]
    low, high = clustered_interval(values, labels)
    table = pd.DataFrame(
        {
            "which": np.repeat(list(found), len(steps)),
            "k": np.tile(steps, len(found)),
            "change": mean_over_prompts(values),
            "ci_low": low,
            "ci_high": high,
        }
    )
    heads = {
        which: tuple(HeadId(*divmod(int(flat), model.n_heads)) for flat in order[0][: max(steps)])
        for which, order in orders.items()
    }
    about = {
        "task": task.name, "items": tokens.fingerprint(), "n_items": len(tokens), "counts": steps, "over": over,
        "draws": draws, "reduce": reduce, "seed": seed, "interrupted": interrupted, "gates": gates.provenance,
    }  # fmt: skip
    return RoleCurves(table, values, heads, task.name, model.name, model.provenance() | about)


def _check(
    model: Model, gates: Gates, roles: Roles, most: int, counts: Sequence[int] | None, over: str, draws: int
) -> list[int]:
    """The numbers of heads to gate off, once the arguments are known to fit.

    Raises:
        ValueError: naming the first that does not.
    """
    shape = model.n_layers, model.n_heads
    for name, found in (("gates", gates["keep"].shape[1:]), ("roles", roles["facilitation"].scores.shape)):
        if found != shape:
            raise ValueError(f"{name} are of a model of {found} layers and heads; this one has {shape}")
    if gates.interrupted:
        raise ValueError("gates were not fitted to the end; repeat mh.fit_gates with the same checkpoint")
    if over not in ("items", "seeds"):
        raise ValueError(f'over is {over!r}; choose "items" or "seeds"')
    if over == "seeds" and roles["facilitation"].dataset.sizes.get("prompt") != len(gates.seeds):
        raise ValueError(f'over="seeds" needs roles of the {len(gates.seeds)} seeds of the gates')
    if draws < 0:
        raise ValueError(f"draws is {draws}; give a number of random orders, 0 or more")
    n_heads = model.n_layers * model.n_heads
    if counts is None:
        if most < 1:
            raise ValueError(f"most is {most}; give a number of heads, at least 1")
        last = min(most, n_heads)
        return sorted({*range(min(last, 10) + 1), *range(10, last + 1, 5), last})
    steps = sorted(set(map(int, counts)))
    if not steps or steps[0] < 0 or steps[-1] > n_heads or steps[-1] == 0:
        raise ValueError(f"counts are {list(counts)}; give numbers of heads, from 0 to the {n_heads} there are")
    return steps


def _ranked(roles: Roles, role: str, over: str) -> Int[np.ndarray, "base rank"]:
    """Flat numbers of the heads from the highest score down; equal ones in the order of layer and head."""
    values = roles[role].scores.values[..., None] if over == "items" else roles[role].dataset["values"].values
    return np.argsort(-values.reshape(-1, values.shape[-1]).T, axis=1, kind="stable")


def _changes(
    model: Model,
    tokens: TaskTokens,
    keep: Float[np.ndarray, "layer head"],
    order: Int[np.ndarray, " rank"],
    steps: Sequence[int],
    reduce: Reduce,
    budget: int | str | None,
    bar: Bar,
) -> Float[np.ndarray, "step item"]:
    """log p with the first k heads of an order gated off less that with them gated on; 0 for no heads."""
    tried = [k for k in steps if k > 0]
    sets = np.tile(keep.reshape(-1), (2, len(tried), 1))
    for row, k in enumerate(tried):
        sets[0, row, order[:k]], sets[1, row, order[:k]] = 0, 1
    gates = torch.tensor(sets.reshape(-1, *keep.shape), dtype=torch.float32)
    off, on = np.split(under_gates(model, tokens, gates, reduce=reduce, budget=budget, bar=bar), 2)
    changes = np.zeros((len(steps), len(tokens)))
    changes[len(steps) - len(tried) :] = off - on
    return changes
