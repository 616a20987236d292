"""A minimal circuit that does what the model does, found by removing one head after another."""

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
from mechheads.heads import HeadId, HeadLike, check_heads
from mechheads.interventions.basic import InterventionLike
from mechheads.limits import current
from mechheads.messages.interrupted import until_interrupted
from mechheads.metrics.base import Metric
from mechheads.metrics.basic import logit_diff
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.patching.circuits import CircuitRuns, Faithfulness, circuit_spec
from mechheads.progress import Bar
from mechheads.results.kinds import KINDS
from mechheads.results.provenance import make_provenance
from mechheads.results.tables import TableResult

Order = Literal["once", "each"]


@dataclass(frozen=True, eq=False)
class Circuit(TableResult):
    """A small set of heads that does what the model does, found by ``minimal_circuit``.

    Attributes:
        heads: the circuit.
        faithfulness: its faithfulness on the prompts that it was selected on, so slightly too optimistic.
        trace: one row per trial: the head, the faithfulness without it, whether it was ``removed``, and n_heads, the
            heads left.
        interrupted: whether the search was stopped by Ctrl-C; then it may be possible to remove more heads.
        provenance: what is needed to repeat it.
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


@analysis
def minimal_circuit(
    model: Model | Job,
    prompts: AnyPrompts | Job | None = None,
    heads: Iterable[HeadLike] | None = None,
    *,
    threshold: float = 0.9,
    order: Order = "once",
    metric: Metric | str = logit_diff,
    intervention: InterventionLike = "patch",
) -> Circuit:
    """Remove one head after another as long as the remaining circuit does what the model does.

    A head is removed if the faithfulness without it is within 1 - ``threshold`` of 1, on either side. A circuit that
    beats the model, because the heads that oppose the answer are gone, does not do what the model does either.

    Args:
        heads: the heads to start from; all heads by default.
        threshold: the share of faithfulness to keep, between 0 and 1.
        order: ``"once"`` tries every head once, beginning with those whose removal alone changes least: about 2 n
            runs for n heads. A head that has to stay is not tried again, even if it could be removed later.
            ``"each"`` tries all heads in each round and removes the one that leaves faithfulness closest to 1, until
            none can be removed: up to n (n + 1) / 2 runs.
        prompts, metric, intervention: as in ``mh.patching.faithfulness``.

    Returns:
        The circuit with the trace of the search; after Ctrl-C, the heads left by then. To find out how well the
        circuit generalizes, run ``mh.patching.faithfulness`` on other prompts.

    Raises:
        ValueError: if an argument is not valid, or the heads to start from do not reach the threshold.

    Faithfulness as in Wang et al. 2022 (arXiv 2211.00593). The single pass is the one of Conmy et al. 2023 (ACDC,
    arXiv 2304.14997), over heads instead of edges.

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> start = [(layer, head) for layer in (23, 29) for head in range(9)]
    >>> mh.patching.minimal_circuit(model, pairs, start, threshold=0.75).heads
    (HeadId(layer=23, head=4),)
    """
    if not 0 < threshold < 1:
        raise ValueError(f"threshold is {threshold}; give the share of faithfulness to keep, between 0 and 1")
    model, asked, cached = given(model, prompts)
    start = None if heads is None else head_set(heads, model, "heads")
    if start == ():
        raise ValueError("heads is empty; name the heads to start from, or leave it out for every head")
    runs = CircuitRuns(model, circuit_spec(asked, metric, intervention, current().limits), cached)
    kept = set(check_heads(start, model.n_layers, model.n_heads))
    values = runs.values([kept])[0]

    def fits(without: Float[np.ndarray, " prompt"]) -> bool:
        return bool(abs(1 - runs.share(without)) <= 1 - threshold)

    if not fits(values):
        raise ValueError(
            f"the heads to start from have faithfulness {runs.share(values):.3g}, further than {1 - threshold:.3g} "
            "from 1; give more heads, or a lower threshold"
        )
    search, n = (_once, 2 * len(kept)) if order == "once" else (_each, len(kept) * (len(kept) + 1) // 2)
    trace: list[dict[str, Any]] = []
    with until_interrupted() as interrupts, set_bar(n, f"a circuit among {len(kept)} heads") as bar:
        for head, without in search(runs, frozenset(kept), fits, bar):
            if removed := fits(without):
                kept.remove(head)
                values = without
            share = float(runs.share(without))
            trace.append({"head": str(head), "faithfulness": share, "removed": removed, "n_heads": len(kept)})
    interrupts.warn(f"{len(trace)} trials", "it may be possible to remove more heads")
    circuit = tuple(sorted(kept))
    found = runs.faithfulness(circuit, values)
    about = make_provenance(
        found.provenance,
        start="all" if start is None else start,
        interrupted=interrupts.interrupted,
    )
    columns = ["head", "faithfulness", "removed", "n_heads"]
    return Circuit(circuit, found, pd.DataFrame(trace, columns=columns), about)


Trial = tuple[HeadId, Float[np.ndarray, " prompt"]]
"""A head and the metric without it."""
Fits = Callable[[Float[np.ndarray, " prompt"]], bool]


def _once(runs: CircuitRuns, start: frozenset[HeadId], fits: Fits, bar: Bar) -> Iterator[Trial]:
    """Try every head once, beginning with those whose removal alone changes least.

    As long as heads can be removed, the next few removals are tried in one batch, each on top of the ones before it.
    Trials up to the first head that has to stay count; the heads after it are tried again.
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
    """Try in each round the head whose removal leaves faithfulness closest to 1, until none can be removed."""
    kept = start
    while kept:
        heads = sorted(kept)
        values = runs.values([kept - {head} for head in heads], bar.update)
        best = int(np.argmin(np.nan_to_num(np.abs(1 - runs.share(values)), nan=np.inf)))
        yield heads[best], values[best]
        if not fits(values[best]):
            return
        kept = kept - {heads[best]}
