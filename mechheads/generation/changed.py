"""A model that reads and writes with heads off, or with directions added, as hooks that hold for every new token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.job import intervention_for
from mechheads.heads import HeadId, HeadLike, check_heads
from mechheads.interventions.basic import (
    Context,
    Intervention,
    InterventionLike,
    Mean,
    MeanOf,
    PatternOfTokens,
    needs_of,
    site_of,
)
from mechheads.interventions.new_z import EVERYWHERE, HeadChange, change_hooks
from mechheads.limits import Limits, current
from mechheads.messages.arguments import did_you_mean
from mechheads.model.backend import Hook
from mechheads.model.model import Model
from mechheads.prompts.encoding import token_strings
from mechheads.prompts.prompts import Prompts
from mechheads.prompts.tokens import Tokens, shorten
from mechheads.runs.head_cache import HEAD_SITES, KEY_SITES, SITES, HeadCache

Off = Sequence[HeadLike] | HeadLike
Steer = Mapping[int, Float[Tensor, " d_model"]]
"""For each layer, what is added to the residual stream before it, at every position."""

Texts = Callable[[], list[tuple[list[int], list[int]]]]
"""Gives the tokens so far of each row of the current forward pass, and the positions of them that it computes."""

_IN_CONTEXT = 16
"""How many prompts an intervention finds in ``context.base``."""
_SITES = tuple(site for site in HEAD_SITES if site != "pattern")


@torch.no_grad()
def changed_by(
    model: Model, prompts: Prompts, off: Off, intervention: InterventionLike, steer: Steer
) -> Callable[[Texts], list[Hook]]:
    """Hooks that turn heads off and add directions, once it is known where the texts are that are written.

    ``mh.Mean()`` takes the mean over the prompts; ``steer`` has what is added to the residual stream before a layer.
    """
    if not isinstance(steer, Mapping):
        raise ValueError(f"steer is {shorten(steer)}; give a dict of a layer and a vector, such as {{12: direction}}")
    hooks = [(model.hook_name("resid_pre", layer), _adding(model, layer, steer[layer])) for layer in steer]
    rule, heads = intervention_for("intervention", intervention, prompts), heads_off(model, off)
    if isinstance(rule, PatternOfTokens) and site_of(rule) == "pattern":
        return lambda texts: [*hooks, *(_attending(model, head, rule, texts) for head in heads)]
    changes = changes_of(model, prompts.tokens(model), heads, rule) if heads else []
    hooks += change_hooks(model, [(change, EVERYWHERE) for change in changes])
    return lambda texts: hooks


@torch.no_grad()
def changes_of(model: Model, tokens: Tokens, heads: Sequence[HeadId], intervention: Intervention) -> list[HeadChange]:
    """What an intervention makes of heads in any text, token by token; a change for each head in the given order.

    One on k or v has a change for each key/value head; the base run in the context is one of the first prompt.
    """
    limits = current().limits
    if isinstance(intervention, Mean):
        changes = _means(model, tokens, heads, limits)
    elif isinstance(intervention, MeanOf):
        changes = [_constant(head, intervention.of(head)) for head in heads]
    else:
        changes = _by_intervention(model, tokens, heads, intervention, limits)
    for change in changes:
        check_change(change, "intervention", model)
    return changes


def heads_off(model: Model, off: Off) -> tuple[HeadId, ...]:
    if off is None:
        raise ValueError("off is None; give a list of heads, or leave it out to turn none off")
    if not isinstance(off, str) and isinstance(off, Sized) and not len(off):
        return ()
    try:
        return check_heads(off, model.n_layers, model.n_heads)
    except ValueError as error:
        raise ValueError(f"off: {error}") from error


def _adding(model: Model, layer: int, direction: Tensor) -> Any:
    if not isinstance(layer, int) or not 0 <= layer < model.n_layers:
        raise ValueError(f"steer names layer {layer!r}; this model has layers 0..{model.n_layers - 1}")
    if not isinstance(direction, Tensor) or direction.shape != (model.d_model,) or not direction.isfinite().all():
        got = f"shape {list(direction.shape)}" if isinstance(direction, Tensor) else type(direction).__name__
        raise ValueError(f"steer[{layer}] is {got}; give a tensor of {model.d_model} finite numbers, d_model")
    return lambda value, hook: value + direction.to(value)


def _attending(model: Model, head: HeadId, rule: PatternOfTokens, texts: Texts) -> Hook:
    """A hook that gives a head, for each new token, the last row of what the tokens so far say."""

    def put(value: Tensor, hook: Any) -> Tensor:
        value = value.clone()
        for row, (ids, at) in zip(value[:, head.head], texts(), strict=True):
            weights = rule.weights(token_strings(ids, model.tokenizer))[at].to(row)
            row[: len(at)] = torch.nn.functional.pad(weights, (0, row.shape[-1]))[:, : row.shape[-1]]
        return value

    return model.hook_name("pattern", head.layer), put


def _means(model: Model, tokens: Tokens, heads: Sequence[HeadId], limits: Limits) -> list[HeadChange]:
    """Changes of z to its mean over all tokens, some prompts at a time."""
    layers = sorted({head.layer for head in heads})
    sums = {layer: torch.zeros(model.n_heads, model.d_head, device=model.device) for layer in layers}
    step = max(1, limits.run_tokens // tokens.ids.shape[1])
    for start in range(0, len(tokens), step):
        some = tokens.rows(slice(start, start + step))

        def add(z: Tensor, hook: Any, layer: int, mask: Tensor = some.mask) -> None:
            sums[layer] += (z.float() * mask[..., None, None]).sum((0, 1))

        model.backend.run(some.ids, [(model.hook_name("z", layer), partial(add, layer=layer)) for layer in layers])
    count = int(tokens.lengths.sum())
    return [_constant(head, sums[head.layer][head.head] / count) for head in heads]


def _constant(head: HeadId, z: Float[Tensor, " d_head"]) -> HeadChange:
    return HeadChange(head.layer, head.head, "z", partial(_constantly, z=z))


def _constantly(value: Tensor, z: Tensor) -> Tensor:
    return z.to(value).expand_as(value)


def _by_intervention(
    model: Model, tokens: Tokens, heads: Sequence[HeadId], intervention: Intervention, limits: Limits
) -> list[HeadChange]:
    """Changes by an intervention; one for each key/value head if it changes k or v."""
    site, needs = site_of(intervention), needs_of(intervention)
    size = model.n_heads // model.n_kv_heads if site in KEY_SITES else 1
    firsts = dict.fromkeys(HeadId(head.layer, head.head - head.head % size) for head in heads)
    for first in firsts:
        group = [HeadId(first.layer, first.head + i) for i in range(size)]
        if on := [head for head in group if head not in heads]:
            shared, rest = (", ".join(map(str, some)) for some in (group, on))
            raise ValueError(
                f"intervention changes {site}, which {shared} share; turn off {rest} too, or give one on z or q"
            )
    base: Any = None
    if needs:
        base = HeadCache.run(model, tokens.rows(slice(_IN_CONTEXT)), sites=needs, limits=limits)
    put = partial(_put, intervention=intervention, base=base)
    return [HeadChange(first.layer, first.head // size, site, partial(put, head=first)) for first in firsts]


def _put(value: Tensor, intervention: Intervention, base: Any, head: HeadId) -> Tensor:
    every = torch.ones(value.shape[:2], dtype=torch.bool, device=value.device)
    return intervention(value, Context(head, base, None, every))


def check_change(change: HeadChange, where: str, model: Model) -> None:
    """Check a change of text that is written token by token."""
    if not isinstance(change, HeadChange):
        raise ValueError(f"{where} is {change!r}; a condition is a list of HeadChange")
    if change.site not in _SITES:
        known = [site for site in _SITES if site in SITES]
        meant = did_you_mean(change.site, known)
        raise ValueError(f"{where}: site is {change.site!r}; choose among {', '.join(known)}.{meant}")
    heads = model.n_kv_heads if change.site in KEY_SITES else model.n_heads
    if not (0 <= change.layer < model.n_layers and change.head is not None and 0 <= change.head < heads):
        kind = "key/value heads" if change.site in KEY_SITES else "heads"
        raise ValueError(
            f"{where}: there is no L{change.layer}H{change.head} at site {change.site!r}; this model has layers "
            f"0..{model.n_layers - 1} with {kind} 0..{heads - 1}"
        )
    value = torch.linspace(-1, 1, 6 * model.d_head).view(2, 3, -1).to(model.device, model.dtype)
    try:
        new = change.function(value.clone())
        apart, alone = (change.function(tokens.clone()) for tokens in (value.view(6, 1, -1), value[1:, 2:]))
    except (RuntimeError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{where}: {_ALONE}; on two rows of three tokens, or on one, it fails: {error}") from error
    if not isinstance(new, Tensor) or new.shape != value.shape or new.device != value.device:
        got = f"{list(new.shape)} on {new.device}" if isinstance(new, Tensor) else type(new).__name__
        raise ValueError(
            f"{where}: function gave {got}; it must give a tensor of the shape it is given, here {list(value.shape)} "
            f"on {value.device}"
        )
    if not all(
        one.shape == other.shape and torch.allclose(one.float(), other.float(), 1e-2, 1e-2, equal_nan=True)
        for one, other in ((new.reshape(6, 1, -1), apart), (new[1:, 2:], alone))
    ):
        raise ValueError(f"{where}: function gives a token another value when it comes alone; {_ALONE}")


_ALONE = "text is read and written token by token, so it must treat every row and every position on its own"
