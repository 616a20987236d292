"""The smallest circuit that still does what the model does, by removing heads one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float

from mechheads.engine.cached_runs import AnyPrompts
from mechheads.engine.head_sets import head_set, set_bar
from mechheads.engine.job import Job, given
from mechheads.heads import HeadId, HeadLike
from mechheads.interventions.base import Intervention
from mechheads.limits import Budget
from mechheads.messages.interrupted import until_interrupted
from mechheads.messages.progress import Bar
from mechheads.metrics.base import Metric
from mechheads.metrics.basic import logit_diff
from mechheads.model.backends.temporary_changes import alone
from mechheads.model.model import Model
from mechheads.patching.circuits import CircuitRuns, Faithfulness, circuit_spec
from mechheads.patching.head_sets import PATCH
from mechheads.results.kinds import KINDS
from mechheads.results.tables import TableResult


@dataclass(frozen=True, eq=False)
class Circuit(TableResult):
    """A small set of heads that does what the model does, as ``minimal_circuit`` found it.

    Attributes:
        heads: the set.
        faithfulness: of the set, on the prompts it was chosen by, and so a little flattered.
        trace: one row a trial: the head, the faithfulness without it, whether it was ``removed``, n_heads left.
        interrupted: whether the search was stopped; then more heads might go.
        provenance: what it takes to repeat it.
    """

    KIND = "minimal_circuit"
    name, unit = "minimal circuit", KINDS[KIND].unit

    heads: tuple[HeadId, ...]
    faithfulness: Faithfulness
    trace: pd.DataFrame
    provenance: dict[str, Any]

    @property
    def table(self) -> pd.DataFrame:
        """The trace of the search."""
        return self.trace

    def __repr__(self) -> str:
        removed = sum(self.trace["removed"])
        stopped = ", interrupted" if self.interrupted else ""
        shown = " ".join(map(str, self.heads[:12])) + (" ..." if len(self.heads) > 12 else "")
        return (
            f"<Circuit of {len(self.heads)} heads after {removed} were removed{stopped}, faithfulness "
            f"{self.faithfulness.score:.3g}: {shown}>"
        )


@alone
def minimal_circuit(
    model: Model | Job,
    prompts: AnyPrompts | Job | None = None,
    heads: Iterable[HeadLike] | None = None,
    *,
    threshold: float = 0.9,
    order: Literal["once", "each"] = "once",
    metric: Metric | str = logit_diff,
    ablation: Intervention = PATCH,
    budget: Budget = None,
    progress: bool = True,
) -> Circuit:
    """Remove head after head as long as what is left does what the model does.

    A head may go if faithfulness then lies within 1 - ``threshold`` of 1, on either side: a circuit that
    does better than the model because the heads against the answer are gone is not what the model does.

    Args:
        heads: where to start; left out, all heads.
        threshold: the share of faithfulness to keep, between 0 and 1.
        order: ``"once"``: every head is tried once, in the order of what its removal alone changes, as ACDC
            goes through a graph once: about 2 n runs for n heads. A head that had to stay is not tried again,
            though it might go later. ``"each"``: in each round the head whose removal leaves faithfulness
            closest to 1 goes, and all are tried anew, until none can go: up to n (n + 1) / 2 runs.
        prompts, metric, ablation, budget, progress: as in ``mh.patching.faithfulness``.

    Returns:
        The set with the trace of its search; interrupted by Ctrl-C, what is left by then. To know how well it
        stands for the model, try it on other prompts with ``mh.patching.faithfulness``.

    Raises:
        ValueError: if an argument does not fit, or the heads to start from do not reach the threshold.

    Faithfulness as in Wang et al. 2022 (arXiv 2211.00593); the one pass as in Conmy et al. 2023 (ACDC, arXiv
    2304.14997), over heads in place of edges.

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> start = [(layer, head) for layer in (23, 29) for head in range(9)]
    >>> mh.patching.minimal_circuit(model, pairs, start, threshold=0.75, progress=False).heads
    (HeadId(layer=23, head=4),)
    """
    if not 0 < threshold < 1:
        raise ValueError(f"threshold is {threshold}; give the share of faithfulness to keep, between 0 and 1")
    if order not in ("once", "each"):
        raise ValueError(f'order is {order!r}; choose "once" or "each"')
    model, asked, cached = given(model, prompts)
    start = None if heads is None else head_set(heads, model, "heads")
    if start == ():
        raise ValueError("heads is empty; name the heads to start from, or leave it out for every head")
    runs = CircuitRuns(model, circuit_spec(asked, metric, ablation, budget), cached, progress)
    kept = set(runs.all if start is None else start)
    values = runs.values([kept])[0]

    def fits(without: Float[np.ndarray, " prompt"]) -> bool:
        return bool(abs(1 - runs.share(without)) <= 1 - threshold)

    if not fits(values):
        raise ValueError(
            f"heads: their faithfulness is {runs.share(values):.3g}, at the start already further than "
            f"{1 - threshold:.3g} from 1; start from more heads or lower the threshold"
        )
    search, n = (_once, 2 * len(kept)) if order == "once" else (_each, len(kept) * (len(kept) + 1) // 2)
    trace: list[dict[str, Any]] = []
    with until_interrupted() as work, set_bar(n, f"a circuit among {len(kept)} heads", progress) as bar:
        for head, without in search(runs, frozenset(kept), fits, bar):
            if removed := fits(without):
                kept.remove(head)
                values = without
            share = float(runs.share(without))
            trace.append({"head": str(head), "faithfulness": share, "removed": removed, "n_heads": len(kept)})
    work.warn(f"{len(trace)} trials", "more heads might go")
    circuit = tuple(sorted(kept))
    found = runs.faithfulness(circuit, values)
    about = {
        "start": "all" if start is None else [str(head) for head in start],
        "threshold": threshold,
        "order": order,
        "interrupted": work.interrupted,
    }
    columns = ["head", "faithfulness", "removed", "n_heads"]
    return Circuit(circuit, found, pd.DataFrame(trace, columns=columns), found.provenance | about)


Trial = tuple[HeadId, Float[np.ndarray, " prompt"]]
"""A head and the metric without it."""
Fits = Callable[[Float[np.ndarray, " prompt"]], bool]


def _once(runs: CircuitRuns, start: frozenset[HeadId], fits: Fits, bar: Bar) -> Iterator[Trial]:
    """Every head once, those first whose removal alone changes the least.

    While heads can go, the next few are tried ahead, each together with those before it: what comes before
    the first that cannot go is as if tried one by one.
    """
    heads = sorted(start)
    whole = runs.share(runs.values([start])[0])
    change = np.abs(runs.share(runs.values([start - {head} for head in heads], bar.update)) - whole)
    queue, kept, ahead = [heads[i] for i in np.argsort(change, kind="stable")], start, 1
    while queue:
        tried = [kept.difference(queue[: i + 1]) for i in range(min(ahead, len(queue)))]
        ahead = min(2 * ahead, runs.at_once)
        for circuit, without in zip(tried, runs.values(tried), strict=True):
            yield queue.pop(0), without
            bar.update(1)
            if not fits(without):
                ahead = 1
                break
            kept = circuit


def _each(runs: CircuitRuns, start: frozenset[HeadId], fits: Fits, bar: Bar) -> Iterator[Trial]:
    """In each round the head whose removal leaves faithfulness closest to 1, until none can go."""
    kept = start
    while kept:
        heads = sorted(kept)
        values = runs.values([kept - {head} for head in heads], bar.update)
        best = int(np.argmin(np.nan_to_num(np.abs(1 - runs.share(values)), nan=np.inf)))
        yield heads[best], values[best]
        if not fits(values[best]):
            return
        kept = kept - {heads[best]}
