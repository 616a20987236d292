"""What is on a model beside its weights, so that a test can ask whether it was left as it was."""

from __future__ import annotations

from collections import Counter

import torch

import mechheads as mh


def changes_on(model: mh.Model) -> Counter[str]:
    """Hooks, forwards of its own, and weights that want no gradient."""
    found: Counter[str] = Counter()
    for name, point in model.model.hook_dict.items():
        found[f"hook at {name}"] = len(point.fwd_hooks) + len(point.bwd_hooks)
    for name, module in model.model.named_modules():
        hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
        found[f"torch hook at {name}"] = sum(map(len, hooks))
        found[f"forward at {name}"] = "forward" in module.__dict__
    for name, weight in model.model.named_parameters():
        found[f"no gradient for {name}"] = not weight.requires_grad
    found["no gradients"] = not torch.is_grad_enabled()
    return +found
