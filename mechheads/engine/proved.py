"""One changed head of a sweep's first wave, claimed to be what one plain forward pass with hooks gives.

It is the unit and the prompt with the largest change, in the row in which the sweep computed it: if only some rows are
wrong, their change is mostly large. If even this change is too small to show anything, the same head's z set to zero is
proved in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.frozen_heads import MLPs, Receiver
from mechheads.engine.job import Job
from mechheads.heads import HeadId, Node, kv_head
from mechheads.interventions.basic import Patch, Zero
from mechheads.metrics import read_positions
from mechheads.model.model import Model
from mechheads.model.proof import Claim, PlainHook
from mechheads.runs.head_cache import KEY_SITES, HeadCache


@runtime_checkable
class Provable(Protocol):
    """Runs units, and knows the plain forward pass that gives what it computes."""

    def edits(self, unit: Any, prompt: int, entry: int) -> Sequence[PlainHook]:
        """The hooks of the plain forward pass of a prompt."""
        ...

    def zeroed(self) -> Provable:
        """The same with z set to zero as the intervention."""
        ...

    def __call__(self, units: Sequence[Any]) -> list[Float[Tensor, "unit prompt position d"]]: ...


def prove_wave(
    job: Job, run: Any, units: Sequence[Any], finals: Sequence[Float[Tensor, "unit prompt position d"]]
) -> None:
    """Prove what an analysis has claimed, and one unit of its first wave."""
    proofs = job.model.backend.proofs
    if not isinstance(run, Provable) or job.model.backend.changes.any_made:
        proofs.prove()
        return
    size = torch.stack([(each - job.evaluator.base_states).flatten(2).float().norm(dim=-1) for each in finals])
    size = size.nan_to_num(0)
    entry, unit, prompt = (int(i) for i in torch.unravel_index(size.argmax(), size.shape))
    claims = [claim_of(job, run, units[unit], prompt, entry, finals[entry][unit, prompt])]
    beside = job.base.claims_of(prompt, claims[0].at if claims[0].reads is None else None)
    beside += [] if job.source is None else job.source.claims_of(prompt)
    patched = isinstance(job.intervention, Patch) and isinstance(units[unit], tuple) and not job.base.ablated
    if job.source is not None and patched:
        claims.append(_of_site(job.source, job.site, units[unit][0], prompt))
    if not proofs.prove(claims, beside):
        zeroed = run.zeroed()
        proofs.prove([claim_of(job, zeroed, units[unit], prompt, entry, zeroed([units[unit]])[entry][0, prompt])])


def claim_of(job: Job, run: Provable, unit: Any, prompt: int, entry: int, states: Tensor) -> Claim:
    """The claim that a changed unit gives these states of a prompt at the positions that the metric reads."""
    edits = run.edits(unit, prompt, entry)
    n, reads, activation = int(job.tokens.on_cpu.lengths[prompt]), None, job.reading.activation
    at, mask = read_positions(job.spec.metric, job.tokens.on_cpu)
    read = mask[prompt].to(states.device)
    changed, unchanged = states[read], job.evaluator.base_states[prompt][read]
    if activation is not None:
        reads = (
            job.model.hook_name(activation.site, activation.head.layer),
            _reader_of(activation.site, activation.head.head),
        )
        changed = changed[:, :n] if activation.site == "pattern" else changed
        unchanged = unchanged[:, :n] if activation.site == "pattern" else unchanged
    ablations = [edit(job.model, "z", head, job.base.z[head][prompt, :n]) for head in job.base.ablated]
    ids = tuple(job.tokens.on_cpu.ids[prompt, :n].tolist())
    named = str(unit[0]) if isinstance(unit, tuple) else f"{len(unit)} heads"
    what = f"what the engine gives for prompt {prompt} with {named} changed"
    places = tuple(at[prompt][mask[prompt]].tolist())
    return Claim(what, ids, places, changed, [*ablations, *edits], reads, unchanged)


def _of_site(run: HeadCache, site: str, head: HeadId, prompt: int) -> Claim:
    """The claim that a head's values in the source run equal a plain forward pass of the prompt."""
    model, n = run.need_model(), int(run.tokens.on_cpu.lengths[prompt])
    ids = tuple(run.tokens.on_cpu.ids[prompt, :n].tolist())
    index = kv_head(head.head, model.n_heads, model.n_kv_heads) if site in KEY_SITES else head.head
    reads = (model.hook_name(site, head.layer), _reader_of(site, index))
    value = run.site(site)[head][prompt, :n]
    value = value[:, :n] if site == "pattern" else value
    return Claim(f"{site} of {head} in the source run of prompt {prompt}", ids, tuple(range(n)), value, (), reads)


def _reader_of(site: str, head: int) -> Callable[[Tensor], Tensor]:
    """A function that selects a head from the values of one prompt."""
    return lambda value: value[0, head] if site == "pattern" else value[0, :, head]


def _put(value: Tensor, site: str, head: int, new: Tensor, at: Tensor | None) -> Tensor:
    value, n = value.clone(), len(new)
    own = value[0, head, :n, :n] if site == "pattern" else value[0, :n, head]
    own.copy_(new.to(own) if at is None else torch.where(at[:, None], new.to(own), own))
    return value


def edit(model: Model, site: str, head: HeadId, new: Tensor, at: Tensor | None = None) -> PlainHook:
    """The hook that gives a head a new activation in one prompt, at some positions or all."""
    index = kv_head(head.head, model.n_heads, model.n_kv_heads) if site in KEY_SITES else head.head
    return model.hook_name(site, head.layer), partial(_put, site=site, head=index, new=new, at=at)


def zero_of(job: Job) -> Job:
    """The same job with z set to zero."""
    return replace(job, spec=replace(job.spec, intervention=Zero()))


def edits_of_path(
    job: Job, sender: Sequence[PlainHook], group: Sequence[Receiver] | None, mlps: MLPs, prompt: int
) -> list[PlainHook]:
    """The hooks of a path's plain forward pass: the other heads, and frozen MLPs, keep their base values.
    Receivers are ``group``, None for the logits; ``sender`` are the hooks that change the sender."""
    model, n = job.model, int(job.tokens.on_cpu.lengths[prompt])
    ids = job.tokens.ids[prompt : prompt + 1, :n]
    ablations = [edit(job.model, "z", head, job.base.z[head][prompt, :n]) for head in job.base.ablated]
    sites = ("z", "mlp_out") if mlps == "frozen" else ("z",)
    names = [model.hook_name(site, layer) for layer in range(model.n_layers) for site in sites]
    base = _recorded(job, ids, ablations, names)
    frozen = [(name, partial(_give, new=value)) for name, value in base.items()]
    if group is None:
        return [*frozen, *sender]
    of_receivers = {receiver: model.hook_name(receiver.site, receiver.layer) for receiver in group}
    arrived = _recorded(job, ids, [*frozen, *sender], list(of_receivers.values()), before=True)
    edits: list[PlainHook] = []
    by_node: dict[Node, list[Receiver]] = {}
    for receiver in sorted(group, key=lambda receiver: receiver.layer):
        by_node.setdefault(receiver.node, []).append(receiver)
    for node, receivers in by_node.items():
        own: list[PlainHook] = []
        for receiver in receivers:
            value = arrived[of_receivers[receiver]]
            if isinstance(node, HeadId):
                index = kv_head(node.head, model.n_heads, model.n_kv_heads) if receiver.site in KEY_SITES else node.head
                own.append(edit(model, receiver.site, node, value[0, :, index]))
            else:
                own.append((of_receivers[receiver], partial(_give, new=value)))
        grouped = model.n_kv_heads < model.n_heads and any(receiver.site in KEY_SITES for receiver in receivers)
        grouped = grouped and (job.reading.activation is None or job.reading.activation.head != node)
        if isinstance(node, HeadId) and grouped:
            name = model.hook_name("z", node.layer)
            z = _recorded(job, ids, [*ablations, *edits, *own], [name])[name]
            own = [edit(model, "z", node, z[0, :, node.head])]
        edits += own
    return edits


def _give(value: Tensor, new: Tensor) -> Tensor:
    value = value.clone()
    value[:, : new.shape[1]] = new.to(value)
    return value


def _recorded(
    job: Job, ids: Tensor, edits: Sequence[PlainHook], names: Sequence[str], *, before: bool = False
) -> dict[str, Tensor]:
    """The values of some hooks in a plain forward pass of one prompt."""
    seen: dict[str, Tensor] = {}

    def note(value: Tensor, hook: Any, name: str) -> None:
        seen[name] = value.clone()

    def change(value: Tensor, hook: Any, new: Any) -> Tensor:
        return new(value).to(value.dtype)

    changes = [(name, partial(change, new=new)) for name, new in edits]
    notes = [(name, partial(note, name=name)) for name in dict.fromkeys(names)]
    job.model.backend.plain_logits(ids, [*notes, *changes] if before else [*changes, *notes], [ids.shape[1] - 1])
    return seen
