"""Slow and plain: what the engine computes, one full forward pass of one prompt for each head.

Nothing here pads, stacks or resumes; only TransformerLens' own ``run_with_hooks`` is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import mechheads as mh

Activations = dict[str, Tensor]


def ids_of(tokens: Any, prompt: int) -> Tensor:
    """One prompt without its padding, [1, pos]."""
    return tokens.ids[prompt : prompt + 1, : int(tokens.lengths[prompt])]


def forward(model: mh.Model, ids: Tensor, hooks: list[tuple[str, Callable]] | None = None) -> Tensor:
    """Logits [1, pos, d_vocab] of a full forward pass through TransformerLens."""
    with torch.no_grad():
        return model.model.run_with_hooks(ids, fwd_hooks=hooks or [])


def turns(model: mh.Model, prompts: int) -> np.ndarray:
    """The heads to compute for each prompt [layer, head, prompt]: each head once, and some of each layer every time."""
    return np.add.outer(range(model.n_layers), range(model.n_heads))[..., None] % prompts == np.arange(prompts)


def name(layer: int, site: str) -> str:
    return f"blocks.{layer}.attn.hook_{site}"


def activations(model: mh.Model, ids: Tensor) -> Activations:
    """q, k, v, pattern and z of every layer and what its MLP gives, by hook name."""
    kept: Activations = {}
    names = [name(layer, site) for layer in range(model.n_layers) for site in ("q", "k", "v", "pattern", "z")]
    names += [mlp(layer) for layer in range(model.n_layers) if mlp(layer) in model.model.hook_dict]
    forward(model, ids, [(at, partial(_keep, kept=kept, at=at)) for at in names])
    return kept


def with_z(model: mh.Model, ids: Tensor, layer: int, head: int, z: Tensor) -> Tensor:
    """Logits when one head's z is ``z`` [pos, d_head]."""
    return forward(model, ids, z_hooks({(layer, head): z}))


def z_hooks(new: Mapping[tuple[int, int], Tensor | float]) -> list[tuple[str, Callable]]:
    """Hooks that give heads, by layer and number, a new z [pos, d_head]."""
    return [(name(layer, "z"), partial(_set_head, head=head, value=z)) for (layer, head), z in new.items()]


def z_when(model: mh.Model, ids: Tensor, layer: int, head: int, site: str, value: Tensor) -> Tensor:
    """The head's z [pos, d_head] when its layer's q, k, v or pattern is ``value``."""
    seen: list[Tensor] = []

    def replace(_: Tensor, hook: Any) -> Tensor:
        return value

    def see(z: Tensor, hook: Any) -> None:
        seen.append(z[0, :, head].clone())

    forward(model, ids, [(name(layer, site), replace), (name(layer, "z"), see)])
    return seen[0]


def blend(old: Tensor, new: Tensor, at: int | None) -> Tensor:
    """``new``, or ``old`` with only position ``at`` of it new; positions on the first axis."""
    if at is None:
        return new
    mixed = old.clone()
    mixed[at] = new[at]
    return mixed


def patched_z(
    model: mh.Model,
    base: Tensor,
    here: Activations,
    there: Activations,
    layer: int,
    head: int,
    site: str,
    at: int | None = None,
) -> Tensor:
    """The z [pos, d_head] of a head when its site is patched at one position or all, from two ``activations``."""
    old, new = here[name(layer, site)], there[name(layer, site)]
    old_z = here[name(layer, "z")][0, :, head]
    if site == "z":
        return blend(old_z, new[0, :, head], at)
    if site == "q":
        return blend(old_z, z_when(model, base, layer, head, "q", new), at)
    if site == "pattern":
        rows = blend(old[0].transpose(0, 1), new[0].transpose(0, 1), at).transpose(0, 1)[None]
        return z_when(model, base, layer, head, "pattern", rows)
    return z_when(model, base, layer, head, site, blend(old[0], new[0], at)[None])


def patched_logits(
    model: mh.Model, base: Tensor, here: Activations, there: Activations, layer: int, head: int, *where: Any
) -> Tensor:
    """Logits [pos, d_vocab] when a head has its ``patched_z``."""
    return with_z(model, base, layer, head, patched_z(model, base, here, there, layer, head, *where))[0]


def path_first_run(
    model: mh.Model,
    base: Tensor,
    here: Activations,
    there: Activations,
    sender: tuple[int, int],
    mlps: str = "recomputed",
    at: int | None = None,
) -> tuple[Tensor, Activations]:
    """The first run of path patching: its logits [pos, d_vocab], and what each receiver sees in it."""
    layer, head = sender
    hooks: list[tuple[str, Callable]] = []
    for each in range(model.n_layers):
        z = here[name(each, "z")].clone()
        if each == layer:
            z[0, :, head] = blend(z[0, :, head], there[name(each, "z")][0, :, head], at)
        hooks.append((name(each, "z"), _give(z)))
    seen: Activations = {}
    for each in range(model.n_layers):
        hooks += [(name(each, site), partial(_keep, kept=seen, at=name(each, site))) for site in ("q", "k", "v")]
        hooks.append((mlp(each), partial(_keep, kept=seen, at=mlp(each))))
        if mlps == "frozen":
            hooks.append((mlp(each), _give(here[mlp(each)])))
    return forward(model, base, hooks)[0], seen


def path_second_run(model: mh.Model, base: Tensor, seen: Activations, receivers: list[str]) -> Tensor:
    """The second run of path patching, in full forward passes: logits [pos, d_vocab]; not for the receiver "final"."""
    second: list[tuple[str, Callable]] = []
    for each in range(model.n_layers):
        if f"L{each}.mlp" in receivers:
            second.append((mlp(each), _give(seen[mlp(each)])))
        for h in range(model.n_heads):
            sites = [site for site in ("q", "k", "v") if f"L{each}H{h}.{site}" in receivers]
            if not sites:
                continue
            own: list[Tensor] = []
            given = [(name(each, site), _give(seen[name(each, site)])) for site in sites]
            forward(model, base, [*second, *given, (name(each, "z"), lambda z, hook, own=own: own.append(z.clone()))])
            second.append((name(each, "z"), partial(_set_head, head=h, value=own[0][0, :, h])))
    return forward(model, base, second)[0]


def direct_paths(model: mh.Model, pairs: mh.PromptPairs, sender: tuple[int, int], site: str) -> Tensor:
    """What TransformerLens 4 gives for the direct paths from a head to every q, k or v [layer, head], denoising.

    Its runs take no mask, so the pairs must have one length.
    """
    from transformer_lens import patching

    clean, corrupted = pairs.tokens(model)
    (_, clean_cache), (_, corrupted_cache) = (model.model.run_with_cache(tokens.ids) for tokens in (clean, corrupted))
    metric = partial(mean_logit_diff, tokens=clean)
    with torch.no_grad():
        patched = patching.get_act_patch_direct_path(
            model.model, corrupted.ids, clean_cache, corrupted_cache, metric, *sender, component=site, verbose=False
        )
        return patched - metric(model.model(corrupted.ids))


def mlp(layer: int) -> str:
    return f"blocks.{layer}.hook_mlp_out"


def _give(value: Tensor) -> Callable:
    return lambda _, hook: value


def _keep(value: Tensor, hook: Any, kept: Activations, at: str) -> None:
    kept[at] = value.clone()


def _set_head(z: Tensor, hook: Any, head: int, value: Tensor | float) -> Tensor:
    z = z.clone()
    z[0, :, head] = value
    return z


def mean_z_hooks(model: mh.Model, rows: Sequence[Tensor], heads: Iterable[mh.HeadId]) -> list[tuple[str, Callable]]:
    """Hooks that put the mean of a head's z over all tokens of unpadded rows in place of its z."""
    seen = [activations(model, ids) for ids in rows]

    def hook(head: mh.HeadId) -> tuple[str, Callable]:
        mean = torch.cat([each[name(head.layer, "z")][0, :, head.head] for each in seen]).mean(0)
        return name(head.layer, "z"), partial(_set_head, head=head.head, value=mean)

    return [hook(head) for head in heads]


def logit_diff(logits: Tensor, tokens: Any, prompt: int) -> float:
    return float(logits[-1, tokens.answer[prompt]] - logits[-1, tokens.wrong[prompt]])


def mean_logit_diff(logits: Tensor, tokens: Any) -> Tensor:
    """The mean over prompts [prompt, pos, d_vocab] of one length."""
    row = torch.arange(len(logits))
    return (logits[row, -1, tokens.answer] - logits[row, -1, tokens.wrong]).mean()


def kl(base: Tensor, other: Tensor) -> float:
    """KL(base || other) of the last position, in float64."""
    p, q = base[-1].double().log_softmax(-1), other[-1].double().log_softmax(-1)
    return float((p.exp() * (p - q)).sum())


def ablated_z(
    kind: str, runs: Sequence[Activations], prompt: int, head: tuple[int, int], n_heads: int, seed: int = 0
) -> Tensor:
    """The z [pos, d_head] that an ablation gives a head in a prompt, from ``activations`` of all prompts."""
    layer, number = head
    every = [run[name(layer, "z")][0, :, number] for run in runs]
    own = every[prompt]
    if kind in ("zero", "scaled", "patch"):
        return {"zero": 0.0, "scaled": 0.4, "patch": 1.0}[kind] * own
    if kind == "mean":
        return torch.cat(every).mean(0).expand_as(own)
    if kind == "uniform":
        v = runs[prompt][name(layer, "v")][0]
        return causal_mean(v[:, number * v.shape[1] // n_heads])
    order = torch.randperm(len(runs), generator=torch.Generator().manual_seed(seed)).tolist()
    donor = every[{order[i]: order[i - 1] for i in range(len(order))}[prompt]]
    return torch.stack([donor[min(i, len(donor) - 1)] for i in range(len(own))])


def causal_mean(v: Tensor) -> Tensor:
    """Row i is the mean of the first i rows of v [pos, d_head]."""
    return torch.stack([v[: i + 1].mean(0) for i in range(len(v))])
