"""Find the hooks at which q and k of each layer can be read and changed, by watching one run.

TransformerLens' ``hook_q`` comes before a norm of q. If the norm spans all heads, changing one head's q there changes
what the other heads' attention sees, so ``q`` is read after the norm. ``scored_q`` is the q that is multiplied with k:
the last hook that fires before the scores. Some of these hooks have heads before positions, or all heads in one axis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

from torch import Tensor

Form = Literal["positions first", "heads first", "side by side"]
_NORMED = ("attn.hook_{}_normed", "attn.{}_norm.hook_out")
_ROTATED = "attn.hook_rot_{}"


@runtime_checkable
class _HeadCounts(Protocol):
    @property
    def n_layers(self) -> int: ...
    @property
    def n_heads(self) -> int: ...
    @property
    def n_kv_heads(self) -> int: ...


@runtime_checkable
class Runner(Protocol):
    """What finding the hooks needs from a backend."""

    @property
    def sizes(self) -> _HeadCounts: ...
    @property
    def module(self) -> Any: ...
    @property
    def hook_points(self) -> Any: ...
    def trial_tokens(self, rows: int, pos: int) -> Tensor: ...
    def run(self, ids: Tensor, hooks: Any = ...) -> Any: ...


@dataclass(frozen=True)
class Point:
    """A hook and the shape of its value: [row, pos, head, d_head], [row, head, pos, d_head] or [row, pos, d]."""

    name: str
    form: Form = "positions first"

    def adapt(self, hook: Callable[..., Any], heads: int) -> Callable[..., Any]:
        """The hook function, called with [row, pos, head, d_head] for every shape."""
        if self.form == "positions first":
            return hook
        return partial(self._call, given=hook, heads=heads)

    def _call(self, value: Tensor, hook: Any, given: Callable[..., Any], heads: int) -> Tensor | None:
        if self.form == "heads first":
            new = given(value.transpose(1, 2), hook=hook)
            return None if new is None else new.transpose(1, 2)
        new = given(value.unflatten(-1, (heads, -1)), hook=hook)
        return None if new is None else new.flatten(-2)


def find_points(backend: Runner) -> dict[tuple[str, int], Point]:
    """The hooks of the sites q, k, scored_q and scored_k, in the layers whose q or k is normed."""
    normed = [
        layer
        for layer in range(backend.sizes.n_layers)
        if getattr(backend.module.blocks[layer].attn, "q_norm", None) is not None
    ]
    fired: dict[str, tuple[int, ...]] = {}

    def note(value: Tensor, hook: Any, name: str) -> None:
        fired[name] = tuple(value.shape)

    names = {
        (kind, layer): [f"blocks.{layer}.{each.format(kind)}" for each in (*_NORMED, _ROTATED)]
        for kind in ("q", "k")
        for layer in normed
    }
    watched = [name for of_layer in names.values() for name in of_layer if name in backend.hook_points]
    if not watched:
        return {}
    ids = backend.trial_tokens(1, trial_length(backend))
    backend.run(ids, [(name, partial(note, name=name)) for name in watched])
    found = {}
    for (kind, layer), candidates in names.items():
        heads = backend.sizes.n_heads if kind == "q" else backend.sizes.n_kv_heads
        order = [name for name in fired if name in candidates]
        across = [name for name in order if len(fired[name]) == 3]
        if across:
            found[kind, layer] = Point(across[0], "side by side")
        if order:
            found[f"scored_{kind}", layer] = Point(order[-1], _form(fired[order[-1]], heads))
    return found


def trial_length(backend: Runner) -> int:
    """A number of tokens that differs from every number of heads, so that shapes cannot be confused."""
    return next(n for n in range(5, 9) if n not in (backend.sizes.n_heads, backend.sizes.n_kv_heads))


def _form(shape: tuple[int, ...], heads: int) -> Form:
    if len(shape) == 3:
        return "side by side"
    return "heads first" if shape[1] == heads else "positions first"


def has_user_hooks(point: Any) -> bool:
    """Whether a hook point has hooks besides those by which TransformerLens 4 calls one hook point from another."""
    return any(
        not getattr(getattr(handle, "user_hook", None), "__qualname__", "").startswith("_wire_symbolic_hooks.")
        for handle in point.fwd_hooks
    )
