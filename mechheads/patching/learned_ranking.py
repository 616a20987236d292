"""A ranking of heads that is learned: each node has a logit, and circuits of every size are made better at once.

In each update, a size k and some prompts are drawn. The circuit of the k largest logits is run, with all other nodes
ablated, as ``mh.patching.circuit_curve`` does it. Its edge is soft: the output of each node is mixed with the one that
replaces it, and the share of its own is the gate g_i = s((t_i - c) / T). Here t_i is the logit, s the sigmoid, and c
lies between the logits in the circuit and those outside. From the faithfulness f and its gradient for the gates comes
the gradient for the logits:

    d f / d t_i  =  w_i (d f / d g_i  -  mean of d f / d g, weighted by w),    w_i = g_i (1 - g_i) / T.

The mean keeps the size of the circuit. ``"cpr"`` makes f larger, and ``"cmd"`` makes the distance of f from 1 smaller.

While a node passes a soft edge, its gate takes all values from 0 to 1, so the gradients add up to its whole effect.
The gradients at 0 and 1 alone can say nothing about it, or have the wrong sign: without the first MLP of the default
model nothing works, but a bit of it is no better than none. T falls from update to update. At first, circuits move all
nodes. At last they are almost those that are measured, and move only nodes near their edge.

Gates between 0 and 1 are from Louizos et al. 2018, "Learning Sparse Neural Networks through L0 Regularization" (arXiv
1712.01312). Masks that are learned for one size each are known as edge pruning (Bhaskar et al. 2024, arXiv 2406.16778).
Here one ranking serves all sizes, because sizes change from update to update.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.special import expit
from torch import Tensor

from mechheads.engine.cached_runs import AnyPrompts, CachedRuns
from mechheads.engine.head_sets import SetRuns
from mechheads.engine.job import Job, Spec, given
from mechheads.engine.report import describe_intervention
from mechheads.engine.run import new_output
from mechheads.heads import Nodes
from mechheads.interventions.basic import InterventionLike, Patch
from mechheads.limits import current
from mechheads.messages.arguments import check_at_least, check_known
from mechheads.messages.interrupted import until_interrupted
from mechheads.metrics.base import Metric, MetricContext, name_of, read_positions
from mechheads.metrics.basic import logit_diff
from mechheads.model.analysis import analysis
from mechheads.model.backends.base import Hook
from mechheads.model.backends.state import with_gradient
from mechheads.model.model import Model
from mechheads.patching.attribution import estimate
from mechheads.patching.block_by_block import BlockByBlock
from mechheads.patching.circuits import CircuitRuns, circuit_spec
from mechheads.patching.gradients import Size, check_gradient
from mechheads.progress import Bar
from mechheads.results.mlps import with_mlp_scores
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.runs.head_cache import states_at

_START_STEPS = 5
_SPREAD = 2.0
"""The first logits lie between minus and plus this number."""
_EDGE = 1.0, 0.05
"""How soft the edge of a circuit is, T, in the first update and the last."""
_MOMENTA = 0.9, 0.99
_LONGEST = 1.0
"""The largest norm of the gradient of one update."""

Measure = Literal["cpr", "cmd"]


@analysis
@torch.inference_mode(False)
def learn_ranking(
    model: Model | Job,
    prompts: AnyPrompts | Job | None = None,
    *,
    measure: Measure = "cpr",
    metric: Metric | str = logit_diff,
    ablation: InterventionLike = "patch",
    nodes: Nodes = "heads",
    updates: int = 150,
    batch: int = 8,
    lr: float = 0.1,
) -> HeadScores:
    """A ranking of all heads, learned so that its circuits are good at every size.

    It starts from attribution patching and is then improved by gradient descent. A ranking fits the prompts that it was
    learned on, so measure it on others.

    Args:
        prompts, metric, ablation, nodes: as in ``mh.patching.circuit_curve``. The metric needs a gradient.
        measure: ``"cpr"`` for circuits that do the task as well as possible, or ``"cmd"`` for circuits that do what the
            whole model does, no more and no less.
        updates: the number of updates; each takes a forward and a backward pass of ``batch`` prompts.
        batch: prompts of each update.
        lr: the learning rate of Adam at the start; it falls to 0.

    Returns:
        The logit of each head, and with ``nodes="all"`` of each MLP: their order is what was learned. They have no
        intervals; run other seeds to see how far the order depends on chance. After Ctrl-C it is the ranking so far.

    Raises:
        ValueError: if an argument is not valid, the metric has no gradient, or it is the same with all heads and with
            none.

    Mueller et al. 2025, "MIB" (arXiv 2504.13151), section 3, for the two measures.

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> mh.patching.learn_ranking(model, pairs, updates=2).heads(1)
    (HeadId(layer=23, head=4),)
    """
    seed = current().seed
    model, asked, cached = given(model, prompts)
    check_known("measure", measure, Measure)
    check_at_least(1, updates=updates, batch=batch)
    if not 0 < lr < np.inf:
        raise ValueError(f"lr is {lr!r}; give a learning rate above 0, such as 0.1")
    spec = circuit_spec(asked, metric, ablation, current().limits.in_one_process, nodes)
    runs = CachedRuns(model, asked) if cached is None else cached
    check_gradient(spec.metric, runs.sides("clean")[0], model.d_vocab)
    whole = CircuitRuns(model, spec, runs)
    whole.share(whole.full)
    gated = _Gated(whole.runs)
    scale = _Scale(float(whole.empty.mean()), float(whole.full.mean()), measure)
    descent = _Descent(gated, scale, updates, batch, lr, seed)
    logits, reached = _start(model, spec, runs), list[float]()
    with until_interrupted() as interrupts, Bar(total=updates, desc="ranking", leave=False) as bar:
        for state in descent.run(logits):
            logits = state[0]
            reached.append(state[1])
            bar.set_postfix_str(f"faithfulness {np.mean(reached[-20:]):.2f}", refresh=False)
            bar.update()
    interrupts.stop_unless(reached)
    interrupts.warn(f"{len(reached)} of {updates} updates", "this is the ranking so far")
    about = make_provenance(
        whole,
        ablation=describe_intervention(spec.intervention),
        interrupted=interrupts.interrupted,
        faithfulness=reached,
    )
    n, name = model.n_layers * model.n_heads, f"learned ranking for {measure.upper()}, {name_of(spec.metric)}"
    of_heads, of_mlps = logits[:n].reshape(model.n_layers, model.n_heads), logits[n:]
    scores = HeadScores.from_scores(of_heads, name=name, kind="learned_ranking", provenance=about)
    return HeadScores(with_mlp_scores(scores.dataset, of_mlps)) if len(of_mlps) else scores


def _start(model: Model, spec: Spec, runs: CachedRuns) -> Float[np.ndarray, " node"]:
    """Logits in the order of what attribution says of each node, evenly spread."""
    steps = _START_STEPS if isinstance(spec.intervention, Patch) else None
    found = estimate(model, spec, runs=runs, steps=steps)
    fall = -found.values[:, :, 0].mean(-1).ravel()
    if found.mlps is not None:
        fall = np.concatenate([fall, -found.mlps[:, 0].mean(-1)])
    return _SPREAD * (2 * fall.argsort().argsort() / (len(fall) - 1) - 1)


@dataclass(frozen=True)
class _Scale:
    """Faithfulness, from the metric without any node and with all, and what an update makes of it."""

    empty: float
    full: float
    measure: Measure

    def share(self, value: float) -> float:
        return (value - self.empty) / (self.full - self.empty)

    def slope(self, share: float) -> float:
        """The derivative of what is made smaller, with respect to the metric."""
        of_share = -1.0 if self.measure == "cpr" else float(np.clip(share - 1, -1, 1))
        return of_share / (self.full - self.empty)


class _Gated:
    """The model with a gate for each node: 1 leaves it as it is, 0 replaces its output as in circuits without it."""

    def __init__(self, runs: SetRuns) -> None:
        job = self.job = runs.job
        self._z = runs.z
        self._mask = read_positions(job.spec.metric, job.tokens)[1]
        self._size = Size.of(job, job.model.n_layers)

    def __call__(
        self, gates: Float[Tensor, " node"], rows: Int[Tensor, " row"]
    ) -> tuple[float, Float[Tensor, " node"]]:
        """The mean metric on some prompts, and its gradient with respect to the gates."""
        total, slope = 0.0, torch.zeros_like(gates)
        for part in rows.split(self._size.rows):
            leaf = gates.clone().requires_grad_()
            value, each = (self._by_block if self._size.by_block else self._at_once)(leaf, part)
            slope += each / len(rows)
            total += value / len(rows)
        return total, slope

    def _at_once(self, leaf: Float[Tensor, " node"], rows: Int[Tensor, " row"]) -> tuple[float, Float[Tensor, " node"]]:
        """The sum of the metric over prompts, and its gradient."""
        ids = self.job.tokens.rows(rows).ids
        with with_gradient():
            value = self._value(self.job.model.backend.run(ids, self._hooks(leaf, rows), grad=True), rows)
            return float(value.detach()), torch.autograd.grad(value, leaf)[0]

    def _by_block(
        self, leaf: Float[Tensor, " node"], rows: Int[Tensor, " row"]
    ) -> tuple[float, Float[Tensor, " node"]]:
        """The same with one block's graph in memory at a time."""
        model, ids = self.job.model, self.job.tokens.rows(rows).ids
        with with_gradient():
            run = BlockByBlock.run(model, ids, self._hooks(leaf, rows))
        value, slope = run.measured(partial(self._value, rows=rows))
        found = run.back(slope, range(model.n_layers), leaf=leaf)
        return value, torch.zeros_like(leaf) if found.leaf is None else found.leaf

    def _value(self, final: Float[Tensor, "row pos d_model"], rows: Int[Tensor, " row"]) -> Float[Tensor, ""]:
        job = self.job
        logits = job.model.unembed(states_at(final, job.at[rows]))
        base = job.model.unembed(job.base.final_at(job.at)[rows])
        return job.spec.metric(logits, MetricContext(base, job.tokens.rows(rows), self._mask[rows])).sum()

    def _hooks(self, gates: Float[Tensor, " node"], rows: Int[Tensor, " row"]) -> list[Hook]:
        job, model = self.job, self.job.model
        heads = gates[: model.n_layers * model.n_heads].view(model.n_layers, 1, model.n_heads, 1)

        def of_heads(z: Float[Tensor, "row pos head d_head"], hook: Any, layer: int) -> Tensor:
            return torch.lerp(self._z[layer][rows].transpose(1, 2).to(z), z, heads[layer].to(z))

        def of_mlp(output: Float[Tensor, "row pos d_model"], hook: Any, layer: int) -> Tensor:
            gate = gates[heads.numel() + layer]
            return torch.lerp(new_output(job, layer, 0)[rows].to(output), output, gate.to(output))

        hooks: list[Hook] = []
        for layer in range(model.n_layers):
            hooks.append((model.hook_name("z", layer), partial(of_heads, layer=layer)))
            if job.spec.nodes == "all":
                hooks.append((model.hook_name("mlp_out", layer), partial(of_mlp, layer=layer)))
        return hooks


@dataclass(frozen=True)
class _Descent:
    """Gradient descent on the logits of nodes."""

    gated: _Gated
    scale: _Scale
    updates: int
    batch: int
    lr: float
    seed: int

    def run(self, logits: Float[np.ndarray, " node"]) -> Iterator[tuple[Float[np.ndarray, " node"], float]]:
        """The logits after each update, and the faithfulness of the circuit that was run for it."""
        rng, prompts = np.random.default_rng(self.seed), len(self.gated.job.tokens)
        first, second, order = np.zeros_like(logits), np.zeros_like(logits), np.zeros(0, dtype=int)
        for update in range(1, self.updates + 1):
            if len(order) < min(self.batch, prompts):
                order = rng.permutation(prompts)
            rows, order = order[: self.batch], order[self.batch :]
            k = max(1, round((len(logits) - 1) * rng.uniform() ** 2))
            share, slope = self._slope(logits, k, rows, float(np.geomspace(*_EDGE, max(2, self.updates))[update - 1]))
            slope /= max(1.0, float(np.linalg.norm(slope)) / _LONGEST)
            keep, keep_square = _MOMENTA
            first = keep * first + (1 - keep) * slope
            second = keep_square * second + (1 - keep_square) * slope**2
            step = first / (1 - keep**update) / (np.sqrt(second / (1 - keep_square**update)) + 1e-8)
            logits = logits - self.lr * (1 - (update - 1) / self.updates) * step
            yield logits, share

    def _slope(
        self, logits: Float[np.ndarray, " node"], k: int, rows: Int[np.ndarray, " row"], edge: float
    ) -> tuple[float, Float[np.ndarray, " node"]]:
        """The faithfulness of the circuit of k nodes with so soft an edge, and the gradient for the logits."""
        falling = np.sort(logits)[::-1]
        gates = expit((logits - (falling[k - 1] + falling[k]) / 2) / edge)
        device = self.gated.job.at.device
        value, of_gates = self.gated(
            torch.from_numpy(gates).to(device, torch.float32), torch.from_numpy(rows).to(device)
        )
        share = self.scale.share(value)
        near = gates * (1 - gates) / edge
        of_gates = of_gates.double().cpu().numpy() * self.scale.slope(share)
        mean = (near * of_gates).sum() / max(near.sum(), np.finfo(float).tiny)
        return share, near * (of_gates - mean)
