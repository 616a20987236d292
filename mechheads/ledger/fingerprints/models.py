"""The fingerprint of a model in its present state: its weights and its modules. A model with hooks is an error."""

from __future__ import annotations

import functools
import json
import sys
import types
import zlib
from typing import TYPE_CHECKING, Any

from mechheads.ledger.fingerprints.walk import Walk, is_walked, release_of
from mechheads.model.backends.carried import carried_hooks, home, inner, modules_of

if TYPE_CHECKING:
    import torch

_WHERE = {
    *("_name_or_path", "name_or_path", "model_name", "tokenizer_name", "transformers_version"),
    *("device", "n_devices", "hf_device_map", "_old_forward"),
}
"""Settings that only say where a model came from and where it is; accelerate keeps methods that it replaces."""
_THEIR_OWN = {"torch", "transformers", "transformer_lens", "accelerate", "mechheads"}
"""Libraries that import functions of each other."""
_ONLY_THEIR_OWN = ("transformers.models.", "transformers.AttentionInterface", "torch.nn.functional")
"""Files and tables in which no other library has functions, unless it put them there."""
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
    for name, part, new in modules_of(module):
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
            moves = home(inner(value)).startswith("accelerate.")
            if not is_part and not moves and (own or _is_setting(key, value)):
                walk.add((key, _mark(walk, value, f"{name}.{key}", own)))
    for where, key, function in _replaced_beside(module):
        walk.add((where, key, function), f"{where}.{key}")
    return walk.hash.hexdigest()


def _replaced_beside(module: torch.nn.Module) -> list[tuple[str, str, Any]]:
    """The functions that others have put into the files of libraries that a model's classes come from."""
    from mechheads.model.backends.structure import namespaces_of, parts_of

    found = []
    for where, space in sorted(namespaces_of(parts_of(module)).items()):
        if not isinstance(space, dict) or where.partition(".")[0] not in _THEIR_OWN - {"mechheads"}:
            continue
        for key, value in sorted(space.items()):
            function = inner(value)
            if not isinstance(function, types.FunctionType) or _is_as_loaded(written := home(function)):
                continue
            if is_walked(written):
                found.append((where, key, value))
            elif where.startswith(_ONLY_THEIR_OWN):
                found.append((where, key, _name_of(function)))
    return found


def _is_as_loaded(module: str) -> bool:
    top = module.partition(".")[0]
    return top in _THEIR_OWN or (top in sys.stdlib_module_names and top != "__main__")


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
        inside = inner(value)
        if own or is_walked(home(inside)):
            raise
        return _name_of(inside if isinstance(inside, _FUNCTIONS) else type(inside))


def _name_of(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__} {release_of(thing.__module__)}"
