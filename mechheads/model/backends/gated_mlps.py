"""MLPs that multiply two functions of their input: act(x W_gate) * (x W_in), and then W_out."""

from __future__ import annotations

from typing import Any

from torch import nn

from mechheads.model.backends.base import Backend

_ROUTED = ("expert", "router")
"""Parts of the names of modules that weigh several MLPs by what a router says of each token."""


def gated_mlps(backend: Backend) -> list[nn.Module]:
    """The gated MLPs of a model, by layer; none if its MLPs are not gated, or if it has no MLPs.

    Raises:
        ValueError: if an MLP has another form, such as a mixture of experts.
    """
    if backend.module.cfg.attn_only:
        return []
    found = []
    for layer, block in enumerate(backend.module.blocks):
        mlp: Any = getattr(block, "mlp", None)
        parts = [] if mlp is None else [name for name, _ in mlp.named_modules()]
        if f"blocks.{layer}.mlp.hook_pre" not in backend.hook_points or any(
            word in name.lower() for name in parts for word in _ROUTED
        ):
            raise ValueError(
                f"{backend.about} has no MLP of the form act(x W_in) W_out or (act(x W_gate) * x W_in) W_out in layer "
                f"{layer}; it may have experts"
            )
        if f"blocks.{layer}.mlp.hook_pre_linear" in backend.hook_points:
            found.append(mlp)
    return found
