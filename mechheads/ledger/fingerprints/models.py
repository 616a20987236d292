"""The fingerprint of a model in its present state: its weights and its modules. A model with hooks is an error."""

from __future__ import annotations

import functools
import json
import types
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mechheads.ledger.fingerprints.walk import Walk, home, is_walked, release_of

if TYPE_CHECKING:
    import torch

_BOOTED_BY = {"torch", "transformers", "transformer_lens", "accelerate", "mechheads.model.backends.on_disk"}
"""Libraries and modules whose hooks and forwards belong to a model as they load it or read its weights."""
_HOOKS = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
_WHERE = {
    *("_name_or_path", "name_or_path", "model_name", "tokenizer_name", "transformers_version"),
    *("device", "n_devices", "hf_device_map", "_old_forward"),
}
"""Settings that only say where a model came from and where it is; accelerate keeps methods that it replaces."""
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial)


def model_fingerprint(module: torch.nn.Module, what: str) -> str:
    """A hash of everything in a model that decides what it computes, as far as this can be seen: 64 hexadecimal digits.

    It covers every bit of each weight; the class of every module, the code of classes that do not belong to a library,
    and methods replaced in a library's class; the numbers, texts and functions that modules store beyond weights.

    Args:
        what: the argument that needs the fingerprint, for messages, such as ``"store"``.

    Raises:
        ValueError: if the model carries hooks or a replaced ``forward``, which may compute anything, or a module's
            code cannot be fingerprinted.

    >>> from mechheads.ledger.fingerprints import model_fingerprint
    >>> len(model_fingerprint(model.model, "store"))
    64
    """
    if found := carried_hooks(module):
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise ValueError(
            f"{what}: the model carries {found[0]}{more}, which may change its numbers in any way, so results with and "
            f"without it could not be distinguished. Remove it (model.model.reset_hooks() for hooks of "
            f"TransformerLens, handle.remove() for torch hooks, del module.forward), or leave {what} out"
        )
    walk = Walk(f"{what}: the model")
    walk.add((weights_fingerprint(module), structure_fingerprint(module, what)))
    return walk.hash.hexdigest()


def weights_fingerprint(module: torch.nn.Module) -> str:
    """A hash of a model's weights: 64 hexadecimal digits.

    It covers the name, shape and dtype of each parameter and buffer, and a checksum of all its values.

    >>> from mechheads.ledger.fingerprints import weights_fingerprint
    >>> len(weights_fingerprint(model.model))
    64
    """
    from mechheads.model.backends.on_disk import stored_weight

    walk = Walk("weights")
    weights = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    sums: dict[int, tuple[object, ...]] = {}
    for name, weight in sorted(weights.items()):
        if id(weight) not in sums:
            values = walk.bytes_of(stored_weight(module, weight))
            sums[id(weight)] = str(weight.dtype), tuple(weight.shape), zlib.crc32(values)  # at the speed of memory
        walk.add((name, *sums[id(weight)]))
    return walk.hash.hexdigest()


def structure_fingerprint(module: torch.nn.Module, what: str) -> str:
    """A hash of a model's modules and their settings, without weights and hooks: 64 hexadecimal digits.

    Args:
        what: as in ``model_fingerprint``.

    Raises:
        ValueError: if a module's code cannot be fingerprinted.
    """
    import torch

    walk, usual = Walk(f"{what}: the model"), set(vars(torch.nn.Module())) - {"training"}
    numbers: dict[int, int] = {}
    classes: set[type] = set()
    for name, part, new in _modules_of(module):
        walk.add((name, numbers.setdefault(id(part), len(numbers)), _name_of(type(part))))
        if not new:
            continue
        own = is_walked(type(part).__module__)
        if type(part) not in classes:
            classes.add(type(part))
            walk.add(type(part) if own else _replaced_in(type(part)), name)
        kept = {} if hasattr(part, "fwd_hooks") else vars(part)  # a hook point without hooks does nothing
        for key, value in sorted(kept.items()):
            is_part = key in usual or key in _WHERE or isinstance(value, torch.nn.Module)
            moves = home(_inner(value)).startswith("accelerate.")
            if not is_part and not moves and (own or _is_setting(key, value)):
                walk.add((key, _mark(walk, value, f"{name}.{key}", own)))
    return walk.hash.hexdigest()


def _replaced_in(cls: type) -> list[tuple[str, str, types.FunctionType]]:
    """The functions that others have put into a library's class."""
    return [
        (base.__qualname__, key, function)
        for base in cls.__mro__
        for key, value in sorted(vars(base).items())
        for function in (value, *(getattr(value, name, None) for name in ("__func__", "fget", "func")))
        if isinstance(function, types.FunctionType) and is_walked(home(function))
    ]


def _is_setting(key: str, value: Any) -> bool:
    """Whether an attribute of a library's module counts; in private ones, the library may keep its own state."""
    known = type(value) in (int, float, str) or isinstance(value, _FUNCTIONS) or hasattr(value, "to_dict")
    return known or not key.startswith("_") or is_walked(home(value))


def _mark(walk: Walk, value: Any, step: str, own: bool) -> object:
    """What counts of a value that a module stores: of a library's object in a library's module, its class."""
    import torch

    if callable(getattr(value, "to_dict", None)):
        known = {key: part for key, part in value.to_dict().items() if key not in _WHERE}
        known["_attn_implementation"] = getattr(value, "_attn_implementation", None)
        return json.dumps(known, sort_keys=True, default=lambda part: _name_of(type(part)))
    if isinstance(value, (torch.nn.Module, torch.Tensor)) and not own:  # it counts among the modules or weights
        return None
    if isinstance(value, (list, tuple, dict)):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return [(str(key), _mark(walk, part, f"{step}[{key}]", own)) for key, part in parts]
    try:
        return walk.apart(value, step)
    except ValueError:
        inner = _inner(value)
        if own or is_walked(home(inner)):
            raise
        return _name_of(inner if isinstance(inner, _FUNCTIONS) else type(inner))


def _name_of(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__} {release_of(thing.__module__)}"


def _modules_of(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, bool]]:
    """Every module inside a module under each of its names, and whether it occurs for the first time.

    Attributes are followed too, because a bridge holds the model that it wraps outside its own submodules.
    """
    import torch

    met: set[int] = set()
    left = [("the model", module)]
    while left:
        name, module = left.pop()
        new = id(module) not in met
        yield name, module, new
        if new:
            met.add(id(module))
            inside = {key: value for key, value in vars(module).items() if isinstance(value, torch.nn.Module)}
            left += [(f"{name}.{key}", part) for key, part in (inside | module._modules).items() if part is not None]


def carried_hooks(module: torch.nn.Module) -> list[str]:
    """The hooks and replaced forwards that a model carries, besides those of the libraries that load it, in words."""
    from torch.nn.modules import module as everywhere

    shared = [hook for kind in _HOOKS for hook in getattr(everywhere, f"_global_{kind}").values()]
    found = [f"a torch hook on every module ({_called(hook)})" for hook in shared if not _is_booted(hook)]
    for name, part in [(name.removeprefix("the model."), part) for name, part, new in _modules_of(module) if new]:
        is_point = hasattr(part, "fwd_hooks")
        hooks = [hook for kind in _HOOKS for hook in getattr(part, f"_{kind}").values()]
        if is_point and (part.fwd_hooks or part.bwd_hooks):
            found.append(f"a TransformerLens hook on {part.name or name}")
        else:
            found += [f"a torch hook on {name} ({_called(hook)})" for hook in hooks if is_point or not _is_booted(hook)]
        if not all(value is None or _is_booted(value) for value in map(vars(part).get, ("forward", "_hf_hook"))):
            found.append(f"a replaced forward in {name}")
    return found


def _is_booted(thing: Any) -> bool:
    """Whether a function belongs to a library that loads models, judged by the module that defines it."""
    written = home(_inner(thing))
    return not _BOOTED_BY.isdisjoint({written, written.partition(".")[0]})


def _called(thing: Any) -> str:
    thing = _inner(thing)
    return getattr(thing, "__qualname__", type(thing).__qualname__)


def _inner(thing: Any) -> Any:
    """The function inside partials and bound methods."""
    while isinstance(thing, (functools.partial, types.MethodType)):
        thing = thing.func if isinstance(thing, functools.partial) else thing.__func__
    return thing
