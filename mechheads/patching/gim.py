"""GIM: a gradient for which neither softmax, norms nor products hide what a head does.

GIM (Gradient Interaction Modifications; Edin et al. 2025, arXiv 2505.17630) changes the backward pass in three ways.
The forward pass is as usual.

- **Softmax.** If attention moves from a token to others that give the same, the gradient at each of them is small,
  although they matter together. A pattern p = softmax(s) passes on the gradient p' (g - p' . g) with
  p' = softmax(s / 2), instead of p (g - p . g).
- **Norms.** Their scale is constant, also that of norms of q and k and of the final norm.
- **Products.** A gradient counts a product once for each factor. It is divided by the number of factors: by 2 for v (of
  pattern and v), by 4 for q and k (of pattern and v, and of q and k), and by 2 for both factors of a gated MLP.

The factors and the softmax are those of the authors' code (github.com/JoakimEdin/gim, ``src/gim``, and
github.com/corticph/gim).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mechheads.model.backends.base import Backend, Hook
from mechheads.model.backends.frozen_norms import Norm, find_norms
from mechheads.model.backends.gated_mlps import gated_mlps
from mechheads.model.backends.gradient import with_other_gradient
from mechheads.model.backends.temporary_changes import Change, Forward
from mechheads.model.core import ModelCore
from mechheads.patching.gradients import AtBase, Watched

TEMPERATURE = 2.0
"""By which scores are divided in the gradient of softmax."""
SHARES = {"q": 1 / 4, "k": 1 / 4, "v": 1 / 2}
"""The share of the gradient that passes to each site."""
GATED = 1 / 2
"""The share of the gradient that passes to the input of a gated MLP: half to each of the two factors."""


@dataclass(frozen=True, eq=False)
class Gim(AtBase):
    """The gradient at the base run, changed as GIM does.

    Attributes:
        norms: the norms of the model.
        gated: its gated MLPs.
    """

    norms: Sequence[Norm]
    gated: Sequence[nn.Module]

    @classmethod
    def of(cls, model: ModelCore) -> Gim:
        """For a model.

        Raises:
            ValueError: if the model has a part for which GIM is not defined: experts, attention sinks, or a gate on z.
        """
        try:
            gated = gated_mlps(model.backend)
            if not model.backend.carries_hooks:
                _check_attention(model.backend)
            return cls(find_norms(model.backend), gated)
        except ValueError as error:
            raise ValueError(f"gim: {error}; GIM is not defined for it, so leave gim out") from error

    def gradients(self, watched: Watched, rows: slice) -> Iterator[Sequence[Float[Tensor, "prompt pos ..."]]]:
        backend, watch = watched.model.backend, watched.watch
        first = 0 if watch.mlps else watch.layers[0]
        hooks = [
            hook for layer in range(first + 1, watched.model.n_layers) for hook in _attention_hooks(backend, layer)
        ]
        changes: list[Change] = [norm.frozen() for norm in self.norms]
        changes += [Forward(mlp, partial(_with_share, mlp.forward)) for mlp in self.gated]
        yield backend.changes.during(changes, lambda: watched.slopes(hooks=hooks))


def tempered(pattern: Float[Tensor, "*rows key"], slope: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows key"]:
    """The gradient to give to a softmax in place of ``slope``, so that it passes on the gradient at ``TEMPERATURE``.

    A softmax that gave p passes on p (h - p . h) for a gradient h. With p' = softmax(scores / TEMPERATURE) =
    p^(1 / TEMPERATURE) / sum, and h = (g - p' . g) p' / p, this is p' (g - p' . g), because p . h = 0.

    Args:
        pattern: p; 0 where a key is masked.
        slope: g.
    """
    wide = torch.promote_types(pattern.dtype, torch.float32)
    p, g = pattern.detach().to(wide), slope.to(wide)
    flat = p.pow(1 / TEMPERATURE)
    flat = flat / flat.sum(-1, keepdim=True).clamp_min(torch.finfo(wide).tiny)
    ratio = torch.where(p > 0, flat / p, 0)
    return ((g - (flat * g).sum(-1, keepdim=True)) * ratio).to(slope.dtype)


def _attention_hooks(backend: Backend, layer: int) -> list[Hook]:
    def divide(value: Tensor, hook: Any, share: float) -> Tensor:
        return with_other_gradient(value, lambda slope: slope * share)

    def temper(value: Tensor, hook: Any) -> Tensor:
        return with_other_gradient(value, partial(tempered, value.detach()))

    hooks: list[Hook] = [(backend.hook_name(site, layer), partial(divide, share=of)) for site, of in SHARES.items()]
    return [*hooks, (backend.hook_name("pattern", layer), temper)]


def _with_share(own: Callable[..., Any], x: Float[Tensor, "*rows d_model"], *args: Any, **kwargs: Any) -> Any:
    return own(with_other_gradient(x, lambda slope: slope * GATED), *args, **kwargs)


def _check_attention(backend: Backend) -> None:
    """Check that each head's z is its pattern times v, and that its pattern is a softmax over the tokens alone."""
    if "pattern" in backend.read_only:
        raise ValueError(f"the patterns of {backend.about} can be read but not changed")
    seen: dict[str, Tensor] = {}

    def note(value: Tensor, hook: Any, site: str) -> None:
        seen[site] = value.float()

    def compare(z: Tensor, hook: Any, layer: int) -> None:
        note(z, hook, "z")
        _check_one(seen, backend, layer)

    hooks: list[Hook] = []
    for layer in range(backend.sizes.n_layers):
        hooks += [(backend.hook_name(site, layer), partial(note, site=site)) for site in ("v", "pattern")]
        hooks.append((backend.hook_name("z", layer), partial(compare, layer=layer)))
    backend.run(backend.trial_tokens(1, 5), hooks)


def _check_one(seen: dict[str, Tensor], backend: Backend, layer: int) -> None:
    pattern, z = seen["pattern"], seen["z"]
    v = seen["v"].repeat_interleave(backend.sizes.n_heads // backend.sizes.n_kv_heads, dim=2)
    off = (torch.einsum("bhqk,bkhd->bqhd", pattern, v) - z).abs().max() / z.std()
    if off > backend.tolerance:
        raise ValueError(f"in layer {layer} of {backend.about}, z is not the pattern times v; there may be a gate")
    if (pattern.sum(-1) - 1).abs().max() > min(backend.tolerance, 0.05):
        raise ValueError(f"in layer {layer} of {backend.about}, patterns do not sum to 1; there may be attention sinks")
