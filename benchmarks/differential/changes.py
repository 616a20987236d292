"""What happens to a model between loading and the analysis, and what surrounds the analysis."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import nn

Change = Callable[[Any], Any]
"""Changes a model of transformers, our own or the plain one; undone by what it returns, if that is a function."""

CHANGES: dict[str, tuple[Change | None, Literal["equal", "either"]]] = {"nothing": (None, "equal")}
"""Each change, and whether the analysis must be right ("equal") or may be refused as well ("either")."""


class NotThere(Exception):
    """The model has no such part, or transformers cannot change it so."""


def _change(name: str, must: Literal["equal", "either"] = "either") -> Callable[[Change], Change]:
    def keep(change: Change) -> Change:
        CHANGES[name] = (change, must)
        return change

    return keep


def _inner(module: Any) -> Any:
    """A module of transformers that TransformerLens may have wrapped."""
    return getattr(module, "original_component", None) or module


def _head(model: Any) -> Any:
    return model.get_output_embeddings()


def _body(model: Any) -> Any:
    return model.base_model.model if hasattr(model.base_model, "peft_config") else model.base_model


def _norm(model: Any) -> Any:
    """The norm before the head."""
    body = _body(model)
    for holder in (body, getattr(body, "decoder", None), getattr(body, "model", None)):
        for name in ("norm", "ln_f", "final_layer_norm", "final_layernorm", "norm_f"):
            if isinstance(found := getattr(holder, name, None), nn.Module):
                return found
    raise NotThere("no norm before the head")


def _block(model: Any) -> Any:
    lists = [each for each in model.modules() if isinstance(each, nn.ModuleList) and len(each) > 2]
    return lists[0][1]


def _out(model: Any) -> Any:
    """The last matrix of the second block's attention."""
    for path, module in _block(model).named_modules():
        last = path.rsplit(".", 1)[-1]
        if ("attn" in path or "attention" in path) and last in ("o_proj", "out_proj", "c_proj", "dense", "o"):
            return module
    raise NotThere("no output of the attention")


def _weight(module: Any) -> nn.Parameter:
    weight = getattr(_inner(module), "weight", None)
    if weight is None:
        raise NotThere("no weight")
    return weight


@_change("head.weight.mul_")
def _mul(model: Any) -> None:
    with torch.no_grad():
        _weight(_head(model)).mul_(-1)


@_change("head.weight.data.mul_")
def _data_mul(model: Any) -> None:
    _weight(_head(model)).data.mul_(-1)


@_change("head.weight.data =")
def _data(model: Any) -> None:
    weight = _weight(_head(model))
    weight.data = -weight.data


@_change("head.weight =")
def _parameter(model: Any) -> None:
    head = _inner(_head(model))
    head.weight = nn.Parameter(-head.weight.detach())


@_change("norm.weight.data.mul_")
def _norm_data(model: Any) -> None:
    _weight(_norm(model)).data.mul_(2)


@_change("norm.weight.data =")
def _norm_assigned(model: Any) -> None:
    weight = _weight(_norm(model))
    weight.data = weight.data * -2


@_change("output.weight.data.mul_")
def _out_data(model: Any) -> None:
    _weight(_out(model)).data.mul_(-2)


@_change("output.weight.data =")
def _out_assigned(model: Any) -> None:
    weight = _weight(_out(model))
    weight.data = weight.data.flip(0)


@_change("embedding.weight.data.mul_")
def _embedding(model: Any) -> None:
    _weight(model.get_input_embeddings()).data.mul_(-2)


@_change("load_state_dict")
def _state(model: Any) -> None:
    stored = model.state_dict()
    model.load_state_dict({name: each * -2 if name.endswith("weight") else each for name, each in stored.items()})


@_change("load_state_dict, assigned")
def _assigned(model: Any) -> None:
    stored = model.state_dict()
    new = {name: each * -2 if name.endswith("weight") else each for name, each in stored.items()}
    model.load_state_dict(new, assign=True)


@_change("a new head")
def _new_head(model: Any) -> None:
    old = _weight(_head(model))
    new = nn.Linear(old.shape[1], old.shape[0], bias=False, dtype=old.dtype)
    new.weight.data = -old.detach().clone()
    model.set_output_embeddings(new)


@_change("more embeddings")
def _resize(model: Any) -> None:
    n = len(_weight(model.get_input_embeddings()))
    with torch.random.fork_rng(devices=[]):
        model.resize_token_embeddings(n + 8, mean_resizing=False)
    for weight in (_weight(model.get_input_embeddings()), _weight(_head(model))):
        weight.data[n:] = weight.data[:8].flip(0)


@_change("hook on the head")
def _head_hook(model: Any) -> Any:
    return _inner(_head(model)).register_forward_hook(lambda module, given, out: -1.5 * out).remove


@_change("hook before the head")
def _head_pre_hook(model: Any) -> Any:
    return _inner(_head(model)).register_forward_pre_hook(lambda module, given: (given[0].flip(-1),)).remove


@_change("hook on the norm")
def _norm_hook(model: Any) -> Any:
    return _inner(_norm(model)).register_forward_hook(lambda module, given, out: out.flip(-1)).remove


@_change("hook on an output")
def _out_hook(model: Any) -> Any:
    return _inner(_out(model)).register_forward_hook(lambda module, given, out: -out).remove


@_change("hook on the embedding")
def _embedding_hook(model: Any) -> Any:
    return _inner(model.get_input_embeddings()).register_forward_hook(lambda module, given, out: -out).remove


@_change("hook on a block")
def _block_hook(model: Any) -> Any:
    def hook(module: Any, given: Any, out: Any) -> Any:
        return (out[0].flip(-1), *out[1:]) if isinstance(out, tuple) else out.flip(-1)

    return _inner(_block(model)).register_forward_hook(hook).remove


@_change("hook on all modules")
def _global_hook(model: Any) -> Any:
    def hook(module: Any, given: Any, out: Any) -> Any:
        return -out if type(module) is nn.Linear and module.out_features == module.in_features else None

    if model.training:
        raise NotThere
    if any(name.endswith(("query_key_value", "qkv_proj", "Wqkv", "c_attn")) for name, _ in model.named_modules()):
        raise NotThere("q, k and v are one matrix, which the bridge splits into such as are changed")
    return nn.modules.module.register_module_forward_hook(hook).remove


@_change("head.forward =")
def _head_forward(model: Any) -> Any:
    head = _inner(_head(model))
    own = head.forward
    head.forward = lambda *given, **named: -1.5 * own(*given, **named)
    return lambda: head.__dict__.pop("forward", None)


@_change("norm.forward =")
def _norm_forward(model: Any) -> Any:
    norm = _inner(_norm(model))
    own = norm.forward
    norm.forward = lambda *given, **named: own(*given, **named).flip(-1)
    return lambda: norm.__dict__.pop("forward", None)


@_change("function of the library")
def _function(model: Any) -> Any:
    module = _library(model)
    own = getattr(module, "apply_rotary_pos_emb", None)
    if own is None:
        raise NotThere("no rotation")

    def turned(q: Any, k: Any, cos: Any, sin: Any, *rest: Any, **named: Any) -> Any:
        return own(q, k, cos, -sin, *rest, **named)

    module.apply_rotary_pos_emb = turned  # pyright: ignore
    return lambda: setattr(module, "apply_rotary_pos_emb", own)


@_change("method of the library")
def _method(model: Any) -> Any:
    kind = type(_inner(_norm(model)))
    if kind.__module__.startswith("torch"):
        raise NotThere("a norm of torch")
    own = kind.forward
    kind.forward = lambda self, *given, **named: own(self, *given, **named).flip(-1)
    return lambda: setattr(kind, "forward", own)


def _library(model: Any) -> Any:
    return sys.modules[type(model).__module__]


@_change("train mode")
def _train(model: Any) -> None:
    if any(isinstance(each, nn.Dropout) and each.p for each in model.modules()):
        return  # random for the plain model, which stays as it is
    model.train()


@_change("no gradients", "equal")
def _frozen(model: Any) -> None:
    model.requires_grad_(False)


@_change("gradients of an earlier run", "equal")
def _gradients(model: Any) -> None:
    model(input_ids=torch.tensor([[5, 6, 7]]), use_cache=False).logits.sum().backward()


@_change("no cache by its config", "equal")
def _no_cache(model: Any) -> None:
    model.config.use_cache = False


@_change("outputs attentions", "equal")
def _attentions(model: Any) -> None:
    model.config.output_hidden_states = True


@_change("to half precision and back")
def _half(model: Any) -> None:
    model.to(torch.bfloat16)
    model.to(torch.float32)


Surrounding = Callable[[], AbstractContextManager[Any]]


@contextmanager
def _default_dtype() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


SURROUNDINGS: dict[str, Surrounding] = {
    "nothing": nullcontext,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "default dtype float64": _default_dtype,
    "default device meta": lambda: torch.device("meta"),
}
"""What the analysis runs in. The numbers are those without it."""
