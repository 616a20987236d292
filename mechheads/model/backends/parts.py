"""The parts of a model, and what the object that the user holds is and gives."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn


def parts_of(module: nn.Module) -> list[nn.Module]:
    """Every module of a model once; a bridge holds the transformers model outside its own submodules."""
    inner = getattr(module, "original_model", None)
    found = [module, inner] if isinstance(inner, nn.Module) else [module]
    met = set(map(id, found))
    for part in found:
        for child in part._modules.values():
            if child is not None and id(child) not in met:
                met.add(id(child))
                found.append(child)
    return found


def held_as(held: Any) -> tuple[list[Any], list[Any]]:
    """Which adapters of a model are on, and its weights: what was written into them too, if adapters are merged."""
    layers = [part for part in held.modules() if hasattr(part, "disable_adapters") and hasattr(part, "merged_adapters")]
    adapters = [(part.disable_adapters, [*part.active_adapters]) for part in layers]
    return adapters, [(id(weight), weight._version if layers else 0) for weight in held.parameters()]


def has_user_hooks(point: Any) -> bool:
    """Whether a hook point has hooks besides those by which TransformerLens 4 calls one hook point from another."""
    return any(
        not getattr(getattr(handle, "user_hook", None), "__qualname__", "").startswith("_wire_symbolic_hooks.")
        for handle in point.fwd_hooks
    )


def settings_of(configuration: Mapping[Any, Any]) -> list[str]:
    """The names of the settings that are given, also inside parts of a configuration."""
    inner = [name for value in configuration.values() if isinstance(value, Mapping) for name in settings_of(value)]
    return [*(str(name) for name, value in configuration.items() if value), *inner]


def logits_of(model: Any, ids: Int[Tensor, "batch pos"], at: Sequence[int] | None) -> Tensor:
    """The logits of a model of transformers, at some positions only if it can compute them alone."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    own_code = not type(inner).__module__.startswith("transformers.")
    with torch.no_grad():
        spread = hasattr(inner, "hf_device_map")  # an index would be on one of the devices
        if (
            at is not None
            and not own_code
            and not spread
            and "logits_to_keep" in inspect.signature(inner.forward).parameters
        ):
            places = torch.tensor([*at], device=ids.device)
            return model(input_ids=ids, use_cache=False, logits_to_keep=places).logits
        logits = model(input_ids=ids, use_cache=False).logits
    return logits if at is None else logits[:, [*at]]
