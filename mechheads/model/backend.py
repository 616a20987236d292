"""``Backend``: what an adapter to a TransformerLens model provides to the rest of the package.

The hooks at which q and k of each layer are read and changed are found by watching one run. TransformerLens' ``hook_q``
comes before a norm of q, which may span all heads, so ``q`` is read after it. ``scored_q`` is the q that is multiplied
with k: the last hook before the scores. Some of these hooks have heads before positions, or all heads in one axis.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, TypeVar

import einops
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mechheads.model.changes import HookOn, Setting, changes_of
from mechheads.model.on_disk import in_memory, on_disk_of
from mechheads.model.parts import (
    Blocks,
    Devices,
    HookAtHome,
    Keys,
    adapters_and_weights,
    devices_of,
    has_user_hooks,
    moved,
    parts_of,
    rotations_of,
    trial_tokens,
)

Hook = tuple[str, Callable[..., Any]]
R = TypeVar("R")
Weight = Literal["Q", "K", "V", "O"]
Layout = Literal["queries", "rows", "whole"]
"""How changed copies of a run are stacked; see ``Plan.layout``."""

SITES = {
    "resid_pre": "hook_resid_pre",
    "q": "attn.hook_q",
    "k": "attn.hook_k",
    "v": "attn.hook_v",
    "pattern": "attn.hook_pattern",
    "z": "attn.hook_z",
    "mlp_out": "hook_mlp_out",
}
"""The name of an activation -> the name of its hook inside a block, the same in both adapters; see also ``Point``."""
Form = Literal["positions first", "heads first", "side by side"]
_NORMED = ("attn.hook_{}_normed", "attn.{}_norm.hook_out")
_ROTATED = "attn.hook_rot_{}"
_HOOK_LISTS = {"_forward_hooks": OrderedDict, "fwd_hooks": list}
"""The attributes in which a hook point has its hooks, for torch and for TransformerLens."""
_Q_AND_K = tuple(f"{which}{kind}" for which in ("", "normed_", "scored_") for kind in "qk")
"""``normed_q`` is q after a norm of q and before rotation; without such a norm it is ``q``."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_model: int
    d_vocab: int
    n_ctx: int


@dataclass(frozen=True)
class Point:
    """A hook and the shape of its value: [row, pos, head, d_head], [row, head, pos, d_head] or [row, pos, d]."""

    name: str
    form: Form = "positions first"

    def adapt(self, hook: Callable[..., Any], heads: int) -> Callable[..., Any]:
        """The hook function, called with [row, pos, head, d_head] for every shape."""
        if self.form == "positions first":
            return hook
        return partial(self._call, function=hook, heads=heads)

    def _call(self, value: Tensor, hook: Any, function: Callable[..., Any], heads: int) -> Tensor | None:
        if self.form == "heads first":
            new = function(value.transpose(1, 2), hook=hook)
            return None if new is None else new.transpose(1, 2)
        new = function(value.unflatten(-1, (heads, -1)), hook=hook)
        return None if new is None else new.flatten(-2)


class Backend(ABC):
    """One TransformerLens model. The model is never changed: hooks are removed again, also after an exception."""

    layouts: tuple[Layout, ...]
    """The layouts that this adapter offers, the cheapest first."""
    instead: str = ""
    """Advice for messages if this adapter gives other logits than transformers."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.changes = changes_of(module)
        self.on_disk = on_disk_of(module)
        if self.on_disk is not None:
            self.changes.at_end = self.on_disk.drop
        self.layout: Layout = "whole"  # until loading has found a cheaper one
        self._ignored: dict[str, bool] = {}
        self.wrapped: Any = None  # the user's model of another library, from which this one was made
        self.wrapped_as: tuple[list[Any], list[Any]] = [], []  # its adapters and weights when it was wrapped
        self.rounding = 0.0  # how far a prompt alone is from the same one in a batch; see ``proof``
        self.loaded: list[tuple[int, int]] | None = None  # the version counters of the weights when it was loaded
        self.proofs: Any = None  # the claims of an analysis; see ``proof``
        cfg = module.cfg
        if not getattr(cfg, "n_heads", 0) or getattr(cfg, "attn_only", None) is None:
            raise ValueError(f"model: {cfg.model_name!r} has no attention heads; load a transformer")
        if getattr(cfg, "attention_dir", "causal") != "causal":
            raise ValueError(f"model: {cfg.model_name!r} is not causal; mechheads reads causal decoders")
        if getattr(cfg, "ungroup_grouped_query_attention", False):
            raise ValueError(
                f"model: {cfg.model_name!r} expands keys and values to one for each query head; call "
                "model.set_ungroup_grouped_query_attention(False) first"
            )
        kv_heads = getattr(cfg, "n_key_value_heads", None) or cfg.n_heads
        self.sizes = Sizes(cfg.n_layers, cfg.n_heads, kv_heads, cfg.d_head, cfg.d_model, cfg.d_vocab, cfg.n_ctx)

    def check(self) -> None:
        """Check before an analysis that the model still has the parts that are read."""
        if self.wrapped is not None and self.wrapped_as != (now := adapters_and_weights(self.wrapped)):
            what = "adapters were switched" if self.wrapped_as[0] != now[0] else "weights were replaced or changed"
            raise ValueError(f"model: its {what} after it was wrapped, so it is another model now; wrap it again")

    def note_wrapped(self, wrapped: Any) -> None:
        """Note the user's model, whose weights this model has."""
        self.wrapped, self.wrapped_as = wrapped, adapters_and_weights(wrapped)

    def hook_name(self, site: str, layer: int) -> str:
        """The full name of a hook, such as ``blocks.9.attn.hook_z``."""
        if site in _Q_AND_K:
            if (point := self._qk_points.get((site, layer))) is not None:
                return point.name
            site = site[-1]
        return f"blocks.{layer}.{SITES[site]}"

    @cached_property
    def _qk_points(self) -> dict[tuple[str, int], Point]:
        """The hooks of the sites of q and k, in the layers whose q or k is normed."""
        return self.changes.alone(self._find_points)

    def _find_points(self) -> dict[tuple[str, int], Point]:
        normed = [
            layer
            for layer in range(self.sizes.n_layers)
            if getattr(self.module.blocks[layer].attn, "q_norm", None) is not None
        ]
        fired: dict[str, tuple[int, ...]] = {}

        def note(value: Tensor, hook: Any, name: str) -> None:
            fired[name] = tuple(value.shape)

        names = {
            (kind, layer): [f"blocks.{layer}.{each.format(kind)}" for each in (*_NORMED, _ROTATED)]
            for kind in ("q", "k")
            for layer in normed
        }
        watched = [name for of_layer in names.values() for name in of_layer if name in self.hook_points]
        if not watched:
            return {}
        ids = self.trial_tokens(1, self.trial_length)
        self.run(ids, [(name, partial(note, name=name)) for name in watched])
        points = {}
        for (kind, layer), candidates in names.items():
            heads = self.sizes.n_heads if kind == "q" else self.sizes.n_kv_heads
            order = [name for name in fired if name in candidates]
            across = [name for name in order if len(fired[name]) == 3]
            if across:
                points[kind, layer] = Point(across[0], "side by side")
            if order:
                points[f"scored_{kind}", layer] = Point(order[-1], _form(fired[order[-1]], heads))
            if order and not order[0].endswith(_ROTATED.format(kind)):
                points[f"normed_{kind}", layer] = Point(order[0], _form(fired[order[0]], heads))
        return points

    @cached_property
    def _adapted(self) -> dict[str, tuple[Point, int]]:
        """The hook points in ``_qk_points``, by name, with their numbers of heads."""
        heads = {"q": self.sizes.n_heads, "k": self.sizes.n_kv_heads}
        return {point.name: (point, heads[site[-1]]) for (site, _), point in self._qk_points.items()}

    def under(self, hooks: Sequence[Hook], run: Callable[[], R]) -> R:
        """Call ``run`` with some hooks; TransformerLens' ``hooks()`` searches all names, 2 ms a call."""
        return self.changes.during((self._hook_on(name, hook) for name, hook in hooks), run)

    def _hook_on(self, name: str, hook: Callable[..., Any]) -> HookOn:
        if self.devices.several:
            hook = HookAtHome(hook, self.devices.home)
        if "_qk_points" in self.__dict__ and name in self._adapted:
            point, heads = self._adapted[name]
            hook = point.adapt(hook, heads)
        return HookOn(self.hook_points[name], hook)

    def with_frozen_weights(self, run: Callable[[], R]) -> R:
        """Call ``run`` while no weight requires a gradient; afterwards the same weights do as before."""
        wanted = [weight for weight in self.module.parameters() if weight.requires_grad and not weight.is_inference()]
        return self.changes.during((Setting(weight, "requires_grad", False) for weight in wanted), run)

    @cached_property
    def hook_points(self) -> dict[str, Any]:
        return dict(self.module.hook_dict)

    def fuse_attention(self) -> None:
        """From now on, compute no patterns unless a hook reads them, if the adapter can."""
        return

    @abstractmethod
    def embed(self, ids: Int[Tensor, "row pos"]) -> tuple[Float[Tensor, "row pos d_model"], Blocks]:
        """The residual stream before the first block, and the blocks prepared for these rows."""

    @abstractmethod
    def blocks_for(self, rows: int, pos: int) -> Blocks:
        """The blocks prepared for whole rows of ``pos`` tokens."""

    def blocks_between_heads(self, rows: int, pos: int) -> Blocks:
        """The same for blocks in which no head attends: they are only called in ``with_attention``."""
        return self.blocks_for(rows, pos)

    @abstractmethod
    def blocks_at(self, positions: Int[Tensor, "row pos"]) -> Blocks:
        """The blocks prepared for rows of tokens at these positions; keys and mask are arguments of each call."""

    @abstractmethod
    def visible(self, layer: int, pos: int) -> Bool[Tensor, "query key"]:
        """Which keys each query of a row of ``pos`` tokens sees; layers with the same mask return the same tensor."""

    @abstractmethod
    def with_attention(self, layer: int, out: Float[Tensor, "row pos d_model"], run: Callable[[], R]) -> R:
        """Call ``run`` with the attention output of ``layer``, including b_O, replaced by ``out``; no head attends."""

    @abstractmethod
    def finish(self, residual: Float[Tensor, "row pos d_model"]) -> Float[Tensor, "row pos d_model"]:
        """Apply what comes after the last block: the final norm."""

    def run(
        self,
        ids: Int[Tensor, "batch pos"],
        hooks: Sequence[Hook] = (),
        *,
        keys: Keys | None = None,
        grad: bool = False,
    ) -> Float[Tensor, "batch pos d_model"]:
        """Run every block and return the residual stream after the final norm."""

        def run() -> Tensor:
            residual, blocks = self.embed(ids)
            for layer in range(self.sizes.n_layers):
                residual = blocks(layer, residual, keys)
            return self.finish(residual)

        with torch.set_grad_enabled(grad):
            return self.under(hooks, run)

    @property
    def users_model(self) -> Any:
        """The user's own model: of transformers, peft or TransformerLens."""
        return self.module if self.wrapped is None else self.wrapped

    def own_logits(
        self, ids: Int[Tensor, "batch pos"], at: Sequence[int] | None = None
    ) -> Float[Tensor, "batch position d_vocab"]:
        """The logits of the user's own model, by default at all positions."""
        if self.wrapped is None:
            return self.plain_logits(ids, (), at)
        return self._logits_of(self.wrapped, ids, at)

    def plain_logits(
        self, ids: Int[Tensor, "batch pos"], hooks: Sequence[Hook], at: Sequence[int] | None = None
    ) -> Float[Tensor, "batch position d_vocab"]:
        """The logits of TransformerLens' own forward pass of whole prompts, with some hooks."""
        return self.under(hooks, lambda: self._logits_of(None, ids, at))

    @abstractmethod
    def _logits_of(
        self, model: Any, ids: Int[Tensor, "batch pos"], at: Sequence[int] | None
    ) -> Float[Tensor, "batch position d_vocab"]:
        """The logits of a model of transformers; None for TransformerLens' own model."""

    def take_steps(self) -> bool:
        """From now on, compute more of the steps that hooks could read; whether there were more."""
        return False

    def ignores(self, site: str) -> bool:
        """Whether a change at a site does not reach z in some layer, which is tried once."""
        if site == "z":
            return False
        if site not in self._ignored:
            self._ignored[site] = self.changes.alone(lambda: self._is_ignored(site))
        return self._ignored[site]

    def _is_ignored(self, site: str) -> bool:
        ids, layers = self.trial_tokens(1, self.trial_length), range(self.sizes.n_layers)
        usual: dict[int, Tensor] = {}
        off: list[float] = []

        def change(value: Tensor, hook: Any) -> Tensor:
            return torch.eye(value.shape[-1]).to(value).expand(value.shape) if site == "pattern" else -2 * value

        def note(value: Tensor, hook: Any, layer: int) -> None:
            usual[layer] = value.clone()

        def compare(value: Tensor, hook: Any, layer: int) -> Tensor:
            off.append(float((value - usual[layer]).float().std() / usual[layer].float().std()))
            return usual[layer]

        z = [self.hook_name("z", layer) for layer in layers]
        self.run(ids, [(name, partial(note, layer=layer)) for layer, name in enumerate(z)])
        changed = [(self.hook_name(site, layer), change) for layer in layers]
        self.run(ids, [*changed, *((name, partial(compare, layer=layer)) for layer, name in enumerate(z))])
        return min(off) < 1e-3

    @abstractmethod
    def transform_logits(self, logits: Float[Tensor, "*batch d_vocab"]) -> Float[Tensor, "*batch d_vocab"]:
        """Apply what the architecture does after unembedding: a soft cap, a scale, or nothing."""

    @property
    @abstractmethod
    def configuration(self) -> Mapping[str, Any]:
        """All settings, besides the weights, that decide what the model computes."""

    def trial_tokens(self, rows: int, pos: int) -> Int[Tensor, "row pos"]:
        """Tokens for trial runs of the model, from the middle of its vocabulary."""
        return trial_tokens(self.sizes.d_vocab, rows, pos, self.devices.home)

    @property
    def trial_length(self) -> int:
        """A number of tokens that differs from every number of heads, so that shapes cannot be confused."""
        return next(n for n in range(9, 13) if n not in (self.sizes.n_heads, self.sizes.n_kv_heads))

    def without_users_hooks(self, run: Callable[[], R]) -> R:
        """Call ``run`` while the hook points of TransformerLens have no hooks of the user's."""
        points = [point for point in self.hook_points.values() if has_user_hooks(point)]
        bare = (Setting(point, name, kind()) for point in points for name, kind in _HOOK_LISTS.items())
        return self.changes.during(bare, run)

    @property
    def description(self) -> str:
        """The model's name and architecture, for messages."""
        cfg = self.module.cfg
        kind = getattr(cfg, "architecture", None) or getattr(cfg, "original_architecture", None) or "unknown"
        return f"model: {cfg.model_name!r} (architecture {kind})"

    @property
    def alike_up_to(self) -> int:
        """The largest prompt length up to which runs of different lengths are comparable; LongRoPE has a limit."""
        long = [it for it in rotations_of(self.configuration) if it["rope_type"] == "longrope"]
        return min([self.sizes.n_ctx, *(it["original_max_position_embeddings"] for it in long)])

    @property
    def devices(self) -> Devices:
        """The devices of the parts of the model."""
        return self.changes.once("devices", lambda: devices_of(self.module.blocks, self.module.W_E))

    @property
    def parameter(self) -> Tensor:
        """Any one of the weights, to read the dtype from."""
        return self.changes.once("parameter", lambda: self.weights[0])

    @property
    def parts(self) -> list[nn.Module]:
        """Every module."""
        return self.changes.once("parts", lambda: parts_of(self.module))

    @property
    def weights(self) -> list[Tensor]:
        """Every weight."""
        return [weight for part in self.parts for weight in part._parameters.values() if weight is not None]

    @property
    def tolerance(self) -> float:
        """How far two ways to compute the same states may differ by rounding, in standard deviations of the states."""
        return 1e-3 if self.parameter.dtype.itemsize >= 4 else 0.3

    @property
    def _unembedding(self) -> tuple[Tensor, Tensor | None]:
        """W_U and b_U in float32 or wider; None for a bias that is all zero."""
        return self.changes.once("unembedding", self._wide_unembedding)

    def _wide_unembedding(self) -> tuple[Tensor, Tensor | None]:
        weight, bias = self.module.W_U.detach(), self.module.b_U.detach()
        wide = torch.promote_types(weight.dtype, torch.float32)
        return weight.to(wide), bias.to(wide) if bias.any() else None

    def unembed(
        self, final: Float[Tensor, "*batch d_model"], tokens: Int[Tensor, " some"] | None = None
    ) -> Float[Tensor, "*batch d_vocab"]:
        """The logits of states after the final norm, in float32 even if the model is in half precision.
        ``tokens`` are those whose logits are computed, by default all."""
        weight, bias = self._unembedding
        if tokens is not None:
            tokens = moved(tokens, weight.device)
            weight, bias = weight[:, tokens], None if bias is None else bias[tokens]
        flat = moved(final.reshape(-1, final.shape[-1]), weight.device).to(weight.dtype)
        logits = (flat @ weight).view(*final.shape[:-1], -1)
        return moved(self.transform_logits(logits if bias is None else logits + bias), self.devices.home)

    @property
    def W_E(self) -> Float[Tensor, "d_vocab d_model"]:
        return self.module.W_E.detach()

    @property
    def W_U(self) -> Float[Tensor, "d_model d_vocab"]:
        return moved(self.module.W_U.detach(), self.devices.home)

    @property
    def b_U(self) -> Float[Tensor, " d_vocab"] | None:
        bias = self._unembedding[1]
        return None if bias is None else moved(bias, self.devices.home)

    def weight(self, kind: Weight, layer: int) -> Float[Tensor, "head rows columns"]:
        """W_Q, W_K, W_V [head, d_model, d_head] or W_O [head, d_head, d_model], one for each query head."""
        return moved(self._for_query_heads(self._of_attention(f"W_{kind}", layer)), self.devices.home)

    def bias(self, kind: Weight, layer: int) -> Float[Tensor, "*shape"] | None:
        """b_Q, b_K, b_V [head, d_head] for each query head, or b_O [d_model]; None if there is none."""
        bias = self._of_attention(f"b_{kind}", layer)
        if bias is None:
            return None
        bias = moved(bias, self.devices.home)
        return bias if kind == "O" else self._for_query_heads(bias.reshape(-1, self.sizes.d_head))

    def _of_attention(self, name: str, layer: int) -> Any:
        attention = self.module.blocks[layer].attn

        def read() -> Tensor | None:
            with in_memory(self.on_disk, layer, attention):
                value = getattr(attention, name, None) if name[0] == "b" else getattr(attention, name)
                return None if value is None else value.detach()

        return read() if self.on_disk is None else self.changes.alone(read)

    def _for_query_heads(self, stored: Float[Tensor, "stored *rest"]) -> Float[Tensor, "head *rest"]:
        """One entry for each query head, from weights stored for each key/value head or for each query head."""
        return einops.repeat(stored, "kv ... -> (kv group) ...", group=self.sizes.n_heads // len(stored))

    @abstractmethod
    def first_mlp(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """The output of block 0's MLP if the heads write nothing."""

    def scale(self, layer: int | None, norm: Literal["ln1", "ln1_post"] = "ln1") -> Float[Tensor, " d_model"]:
        """The scale of a layer's norm, or of the final one, measured on a vector that norms only scale."""
        if layer is None:
            module = getattr(self.module, "ln_final", None)
        else:
            module = getattr(self.module.blocks[layer], norm, None)
        home = self.devices.home
        if module is None:
            return torch.ones(self.sizes.d_model, dtype=torch.float32, device=home)
        with in_memory(self.on_disk, layer, module), torch.no_grad():
            x = balanced(self.sizes.d_model, next((weight.device for weight in module.parameters()), home))
            up, down = module((1e3 * torch.stack([x, -x])).to(self.parameter.dtype)[None])[0].float()
        return ((up - down) / (2 * x)).to(home)

    def before_attention(self, layer: int, rows: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model"]:
        """What the heads of a layer read of these rows of the residual stream, after any norm."""
        module = getattr(self.module.blocks[layer], "ln1", None)
        if module is None:
            return rows
        with in_memory(self.on_disk, layer, module), torch.no_grad():
            return moved(module(moved(rows, self.devices.blocks[layer])[:, None])[:, 0], self.devices.home)

    @property
    def d_mlp(self) -> int:
        """The width of the MLPs; 0 if there are none."""
        return self.module.cfg.d_mlp or 0


def _form(shape: tuple[int, ...], heads: int) -> Form:
    if len(shape) == 3:
        return "side by side"
    return "heads first" if shape[1] == heads else "positions first"


def balanced(d_model: int, device: torch.device) -> Float[Tensor, " d_model"]:
    """A vector of mean 0 and mean square 1 without zeros, which every norm leaves unchanged except for its scale."""
    x = 1 - 2.0 * (torch.arange(d_model, device=device) % 2)
    if d_model % 2:
        x[-3:] = torch.tensor([1.0, 1.0, -2.0], device=device)
    return x / x.square().mean().sqrt()
