"""Twins of models of other libraries, through which ``wrap`` reads a user's model without changing it.

A bridge replaces modules inside the model around which it is put. So it gets a twin: other modules, the same weights.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from mechheads.messages.notices import first_sentence
from mechheads.model.changes import check_evaluation
from mechheads.model.sources.reading import check_config, only_logits

MERGED = ("LORA", "LOHA", "LOKR", "IA3")
"""Adapters that change weights and nothing else; others add prompts, or name further adapters to fetch."""


def twin_of(model: Any, tokenizer: Any) -> tuple[Any, Any, str] | None:
    """A twin of a transformers model or a ``PeftModel``, its tokenizer and its name; None if it is something else."""
    adapted = any(kind.__name__ == "PeftModel" for kind in type(model).__mro__)
    if not adapted and not isinstance(model, transformers.PreTrainedModel):
        return None
    if not isinstance(tokenizer, transformers.PreTrainedTokenizerBase):
        what = "carries no tokenizer" if tokenizer is None else f"was given a {type(tokenizer).__name__} as tokenizer"
        raise TypeError(
            f"tokenizer: this {type(model).__name__} {what}; give its own, as in "
            "mh.wrap(model, AutoTokenizer.from_pretrained(...))"
        )
    base: Any = getattr(model, "get_base_model", lambda: model)()
    name = str(base.config.name_or_path or type(base).__name__)
    check_config(base.config, name)
    _check(model)
    twin: Any = without_adapters(model) if adapted else _twin(model)
    if len(dtypes := {weight.dtype for weight in twin.parameters()}) > 1:
        raise ValueError(
            f"model: its weights have several dtypes ({', '.join(sorted(map(str, dtypes)))}); convert a copy to one, "
            "such as with copy.deepcopy(model).float(), and wrap that"
        )
    vars(twin).pop("hf_device_map", None)
    only_logits(twin.config)
    twin.set_attn_implementation("eager")
    return twin.eval(), tokenizer, name


def _check(model: nn.Module) -> None:
    """Check that a twin can be made of a model, and that it is not in training mode."""
    if any(tensor.is_meta for tensor in model.parameters()):
        raise ValueError(
            "model: some of its weights are not in memory; load them first, or use mh.load with max_memory"
        )
    devices = sorted({str(tensor.device) for tensor in [*model.parameters(), *model.buffers()]})
    if len(devices) > 1 or any(hasattr(part, "_hf_hook") for part in model.modules()):
        raise ValueError(
            f"model: accelerate has spread it over devices ({', '.join(devices)}); load it with mh.load(..., "
            'device_map="auto"), or hold it on one device'
        )
    if getattr(model, "is_quantized", False) or any(not weight.is_floating_point() for weight in model.parameters()):
        raise ValueError("model: its weights are quantised; load it with float weights, and wrap or mh.load that")
    check_evaluation(model)


def _twin(model: nn.Module, own: Iterable[Tensor] = ()) -> Any:
    """A copy of the modules around the same weights and buffers, except those that it gets of its ``own``."""
    copied = {id(tensor) for tensor in own}
    tensors = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors if id(tensor) not in copied})


def without_adapters(model: Any) -> Any:
    """A twin of the model inside a ``PeftModel``, with the active adapters in its weights, if they are on."""
    from peft.tuners.tuners_utils import BaseTunerLayer  # pyright: ignore[reportMissingImports]

    kinds = sorted({str(getattr(config.peft_type, "value", config.peft_type)) for config in model.peft_config.values()})
    if unknown := [kind for kind in kinds if kind not in MERGED]:
        raise ValueError(
            f"model: its adapter is of the kind {unknown[0]}; mh.wrap reads adapters of the kinds {', '.join(MERGED)}, "
            "which change weights and nothing else"
        )
    if any(getattr(config, "layer_replication", None) for config in model.peft_config.values()):
        raise ValueError(
            "model: its adapter repeats layers of the base (layer_replication), whose weights then cannot hold the "
            "changes of each; merge it with peft, save the model with save_pretrained, and load that"
        )
    layers = [part for part in model.modules() if isinstance(part, BaseTunerLayer)]
    changed = [weight for layer in layers for weight in layer.get_base_layer().parameters()]
    twin = _twin(model, changed)
    ends = twin.get_input_embeddings(), twin.get_output_embeddings()
    inner = [getattr(end, "base_layer", end) for end in ends]
    adapted = any(part is not end for part, end in zip(inner, ends, strict=True))
    if adapted and inner[0].weight is inner[1].weight:  # merged, an adapter of one would change both
        inner[1].weight = nn.Parameter(inner[1].weight.detach().clone(), requires_grad=False)
        twin.config.tie_word_embeddings = False
    off = {layer.disable_adapters for layer in layers}
    if len(off) > 1:
        raise ValueError("model: its adapters are on in some layers and off in others; turn all on, or all off")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All adapters are already merged|Already unmerged|Model with `tie_word_emb")
        if off == {True}:
            twin.base_model.unmerge_adapter()
            return twin.unload()
        try:
            return twin.merge_and_unload(safe_merge=True)
        except (ValueError, RuntimeError, NotImplementedError) as error:
            raise ValueError(
                f"model: its adapter does more than change weights, so it cannot be merged: {first_sentence(error)}"
            ) from error
