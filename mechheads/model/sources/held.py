"""Models of other libraries that somebody holds already: how ``wrap`` reads them without changing them.

A bridge replaces modules inside the model that it is put around. So it gets a twin: modules of its own, around the same
weight tensors, which takes no memory. What is written into a weight is seen by both.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from mechheads.model.reference import first_sentence
from mechheads.model.sources.load import MERGED
from mechheads.model.sources.reading import check_config, only_logits

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Where a torch module keeps its hooks."""
_SHARES = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")
_FRESH = "the transformers model, loaded by itself, as in mh.wrap(AutoModelForCausalLM.from_pretrained(...), tokenizer)"
_AROUND = (
    ("OptimizedModule", "torch", "the model that was compiled: mh.wrap(model._orig_mod, tokenizer)"),
    ("LanguageModel", "nnsight", _FRESH),
    ("TransformersModel", "nnsight", _FRESH),
)
"""Models around a transformers model: class, library, and what to give instead."""


def held_model(held: Any, tokenizer: Any) -> tuple[Any, Any, str] | None:
    """A twin of a transformers model or a ``PeftModel``, its tokenizer and its name; None if it is something else."""
    for name, library, instead in _AROUND:
        if _is(held, name, library):
            raise TypeError(f"model is of the class {name} of {library}; give {instead}")
    whole: Any = held
    adapted = _is(held, "PeftModel", "peft")
    if not adapted and not isinstance(held, transformers.PreTrainedModel):
        return None
    if not isinstance(tokenizer, transformers.PreTrainedTokenizerBase):
        what = "carries no tokenizer" if tokenizer is None else f"was given a {type(tokenizer).__name__} as tokenizer"
        raise TypeError(
            f"tokenizer: this {type(held).__name__} {what}; give its own, as in "
            "mh.wrap(model, AutoTokenizer.from_pretrained(...))"
        )
    base: Any = whole.get_base_model() if adapted else whole
    name = str(base.config.name_or_path or type(base).__name__)
    check_config(base.config, name)
    _check(held)
    twin: Any = _without_adapters(held) if adapted else _twin(held)
    if len(dtypes := {weight.dtype for weight in twin.parameters()}) > 1:
        raise ValueError(
            f"model: its weights have several dtypes ({', '.join(sorted(map(str, dtypes)))}); convert a copy to one, "
            "such as with copy.deepcopy(model).float(), and wrap that"
        )
    vars(twin).pop("hf_device_map", None)
    only_logits(twin.config)
    twin.set_attn_implementation("eager")
    return twin.eval(), tokenizer, name


def _is(thing: Any, name: str, library: str) -> bool:
    return any(kind.__name__ == name and kind.__module__.split(".")[0] == library for kind in type(thing).__mro__)


def _check(held: nn.Module) -> None:
    """Check that the numbers of a twin are those of the model."""
    tensors = [*held.parameters(), *held.buffers()]
    if any(tensor.is_meta for tensor in held.parameters()):
        raise ValueError(
            "model: some of its weights are not in memory; load them first, or use mh.load with max_memory"
        )
    devices = sorted({str(tensor.device) for tensor in tensors})
    if len(devices) > 1 or any(hasattr(part, "_hf_hook") for part in held.modules()):
        raise ValueError(
            f"model: accelerate has spread it over devices ({', '.join(devices)}); load it with mh.load(..., "
            'device_map="auto"), or hold it on one device'
        )
    if getattr(held, "is_quantized", False) or any(not weight.is_floating_point() for weight in held.parameters()):
        raise ValueError("model: its weights are quantised; load it with float weights, and wrap or mh.load that")
    for name, part in held.named_modules():
        at = name or type(part).__name__
        if hooks := [hook for kind in _HOOKS for hook in getattr(part, kind).values()]:
            remove = "remove it"
            called = getattr(hooks[0], "__qualname__", type(hooks[0]).__qualname__)
            if "require_grads" in called:  # gradient checkpointing leaves it there
                remove = "call model.disable_input_require_grads()"
            raise ValueError(f"model: {at} carries a torch hook ({called}), which would not run here; {remove} first")
        if vars(part).get("forward") is not None:
            raise ValueError(f"model: the forward of {at} was replaced, which is not read here; restore it first")
        if part.training and _is_random(part):
            raise ValueError(
                f"model is in training mode ({at}), in which dropout makes its numbers random; call its eval() first"
            )


def _is_random(part: nn.Module) -> bool:
    """Whether a part gives other numbers in training mode; one whose dropout has the rate 0 does not."""
    if isinstance(part, nn.modules.batchnorm._BatchNorm):
        return True
    rates = [part.p] if isinstance(part, nn.modules.dropout._DropoutNd) else [vars(part).get(name) for name in _SHARES]
    return any(isinstance(rate, float) and rate > 0 for rate in rates)


def _twin(held: nn.Module, own: Iterable[Tensor] = ()) -> Any:
    """A copy of the modules around the same weights and buffers, except those that it gets of its ``own``."""
    copied = {id(tensor) for tensor in own}
    tensors = [*held.parameters(), *held.buffers()]
    return copy.deepcopy(held, {id(tensor): tensor for tensor in tensors if id(tensor) not in copied})


def _without_adapters(held: Any) -> Any:
    """A twin of the model inside a ``PeftModel``, with the active adapters in its weights, if they are on."""
    from peft.tuners.tuners_utils import BaseTunerLayer  # pyright: ignore[reportMissingImports]

    kinds = sorted({str(getattr(config.peft_type, "value", config.peft_type)) for config in held.peft_config.values()})
    if unknown := [kind for kind in kinds if kind not in MERGED]:
        raise ValueError(
            f"model: its adapter is of the kind {unknown[0]}; mh.wrap reads adapters of the kinds {', '.join(MERGED)}, "
            "which change weights and nothing else"
        )
    if any(getattr(config, "layer_replication", None) for config in held.peft_config.values()):
        raise ValueError(
            "model: its adapter repeats layers of the base (layer_replication), whose weights then cannot hold the "
            "changes of each; merge it with peft, save the model with save_pretrained, and load that"
        )
    layers = [part for part in held.modules() if isinstance(part, BaseTunerLayer)]
    changed = [weight for layer in layers for weight in layer.get_base_layer().parameters()]
    twin = _twin(held, changed)
    off = {layer.disable_adapters for layer in layers}
    if len(off) > 1:
        raise ValueError("model: its adapters are on in some layers and off in others; turn all on, or all off")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All adapters are already merged|Already unmerged")
        if off == {True}:
            twin.base_model.unmerge_adapter()
            return twin.unload()
        try:
            return twin.merge_and_unload(safe_merge=True)
        except (ValueError, RuntimeError, NotImplementedError) as error:
            raise ValueError(
                f"model: its adapter does more than change weights, so it cannot be merged: {first_sentence(error)}"
            ) from error
