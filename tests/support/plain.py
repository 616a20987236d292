"""The slow and plain way: analyses of heads in transformers alone, one full forward pass for each head and prompt.

Nothing here pads, stacks, resumes or uses TransformerLens. Torch hooks on the modules of transformers' own model
replace values: z at the input of the output projection, q, k and v at the outputs of their projections, and an MLP's
output at its last matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from torch import Tensor, nn

Kind = Literal["q", "k", "v"]
Change = Callable[[Tensor], Tensor]
Spot = tuple[str, int]
"""An activation: ``z``, ``q``, ``k``, ``v`` or ``mlp``, and its layer."""

_OUTPUTS = ("o_proj", "out_proj", "c_proj", "dense", "Wo")
_MLPS = (
    "mlp.dense_4h_to_h",
    "ffn.down_proj",
    "fc2",
    "block_sparse_moe.output_linear",
    "feed_forward",
    "block_sparse_moe",
    "mlp",
)


@dataclass(frozen=True)
class Attention:
    """The modules of a layer's heads."""

    out: nn.Module
    outputs: dict[str, tuple[nn.Module, Tensor]]  # of q, k and v, with the outputs of each head [stored head, d_head]


class Plain:
    """A causal language model of transformers with eager attention, or the folder of one."""

    def __init__(self, source: Path | nn.Module, dtype: torch.dtype = torch.float64) -> None:
        self.model: Any = load_plain(source, dtype) if isinstance(source, Path) else source
        config = self.model.config
        self.n_heads: int = config.num_attention_heads
        self.blocks = _find_blocks(self.model, config.num_hidden_layers)
        self.attention = [_find_attention(block, config) for block in self.blocks]
        self.mlps = [_find(block, _MLPS) for block in self.blocks]
        self.n_layers = len(self.blocks)

    def module(self, spot: Spot) -> nn.Module:
        kind, layer = spot
        if kind == "mlp":
            return self.mlps[layer]
        at = self.attention[layer]
        return at.out if kind == "z" else at.outputs[kind][0]

    def run(self, ids: Sequence[int], changes: Sequence[tuple[Spot, Change]] = ()) -> Tensor:
        """Logits [pos, d_vocab] with changed activations; a change gets a module's whole input or output."""
        handles = [self._hook(spot, change) for spot, change in changes]
        try:
            with torch.no_grad():
                return self.model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, spot: Spot, change: Change) -> Any:
        def enters(_module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return change(given[0]), *given[1:]

        def leaves(_module: nn.Module, _given: Any, out: Any) -> Any:
            return (change(out[0]), *out[1:]) if isinstance(out, tuple) else change(out)

        module = self.module(spot)
        return module.register_forward_pre_hook(enters) if spot[0] == "z" else module.register_forward_hook(leaves)

    def see(self, ids: Sequence[int], changes: Sequence[tuple[Spot, Change]] = ()) -> tuple[Tensor, dict[Spot, Tensor]]:
        """Logits and all activations, with changed activations."""
        seen: dict[Spot, Tensor] = {}
        spots = [(kind, layer) for layer in range(self.n_layers) for kind in ("z", "q", "k", "v", "mlp")]
        watch = [(spot, partial(_keep, seen=seen, spot=spot)) for spot in spots]
        return self.run(ids, [*changes, *watch]), seen

    def z_of(self, layer: int, head: int, value: Tensor) -> tuple[Spot, Change]:
        """The change that gives one head the z that it has in ``value``."""

        def change(z: Tensor) -> Tensor:
            new, size = z.clone(), z[0, 0].numel() // self.n_heads
            part = slice(head * size, (head + 1) * size)
            new.flatten(2)[..., part] = value.flatten(2)[..., part]
            return new

        return ("z", layer), change

    def of_head(self, kind: str, layer: int, head: int, value: Tensor | float) -> tuple[Spot, Change]:
        """The change that gives the q, k or v of one head its numbers in ``value``."""
        columns = self.columns(kind, layer, head)

        def change(out: Tensor) -> Tensor:
            new = out.clone()
            new[..., columns] = value[..., columns] if isinstance(value, Tensor) else value
            return new

        return (kind, layer), change

    def columns(self, kind: str, layer: int, head: int) -> Tensor:
        stored = self.attention[layer].outputs[kind][1]
        return stored[head * len(stored) // self.n_heads]

    def z_when(self, ids: Sequence[int], layer: int, changes: Sequence[tuple[Spot, Change]]) -> Tensor:
        """A layer's z when some of its inputs are changed."""
        seen: dict[Spot, Tensor] = {}
        self.run(ids, [*changes, (("z", layer), partial(_keep, seen=seen, spot=("z", layer)))])
        return seen["z", layer]

    def first_mlp(self, x: Tensor) -> Tensor:
        """The output of block 0's MLP for rows of the residual stream, if its heads write nothing."""
        seen: dict[Spot, Tensor] = {}

        def enter(_module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
            if given:
                return (x[None], *given[1:]), named
            return given, named | {"hidden_states": x[None]}

        silent = self.attention[0].out.register_forward_hook(_silence)
        entering = self.blocks[0].register_forward_pre_hook(enter, with_kwargs=True)
        try:
            self.run([3] * len(x), [(("mlp", 0), partial(_keep, seen=seen, spot=("mlp", 0)))])
        finally:
            silent.remove()
            entering.remove()
        return seen["mlp", 0].reshape(x.shape)

    def weight(self, kind: str, layer: int, head: int) -> Tensor:
        """W_V [d_model, d_head] or W_O [d_head, d_model] of a query head."""
        module = self.attention[layer].out if kind == "o" else self.attention[layer].outputs[kind][0]
        matrix = _matrix(module)
        if kind == "o":
            return matrix.unflatten(0, (self.n_heads, -1))[head]
        return matrix[:, self.columns(kind, layer, head)]


def load_plain(folder: Path, dtype: torch.dtype) -> Any:
    """The model of a folder, with eager attention."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager", trust_remote_code=False
    ).eval()


def _silence(_module: nn.Module, _given: Any, out: Any) -> Any:
    return 0 * out


def _keep(value: Tensor, seen: dict[Spot, Tensor], spot: Spot) -> Tensor:
    seen[spot] = value.clone()
    return value


def _find(block: nn.Module, names: Sequence[str]) -> nn.Module:
    """The first of these modules that the block has."""
    inside = dict(block.named_modules())
    return next(inside[name] for name in names if name in inside)


def _find_blocks(model: nn.Module, n_layers: int) -> list[nn.Module]:
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == n_layers]
    return list(lists[0])


def _find_attention(block: nn.Module, config: Any) -> Attention:
    """The output projection, found by the names that transformers uses, and the modules of q, k and v."""
    holders = [
        (module, out)
        for path, module in block.named_modules()
        for name in _OUTPUTS
        if isinstance(out := getattr(module, name, None), nn.Module) and ("attn" in path or "attention" in path)
    ]
    holder, out = holders[-1]
    n_heads, width = config.num_attention_heads, _matrix(out).shape[0]
    return Attention(out, _outputs(holder, config, n_heads, width // n_heads))


def _matrix(module: Any) -> Tensor:
    """The weight [inputs, outputs] of a Linear or of GPT-2's Conv1D."""
    weight = module.weight.detach()
    return weight if type(module).__name__ == "Conv1D" else weight.T


def _outputs(at: nn.Module, config: Any, n_heads: int, d_head: int) -> dict[str, tuple[nn.Module, Tensor]]:
    """Which outputs of which module are q, k and v; fused projections are split as transformers splits them."""
    if hasattr(at, "q_proj"):
        separate = {kind: getattr(at, f"{kind}_proj") for kind in "qkv"}
        size = {kind: _matrix(module).shape[1] for kind, module in separate.items()}
        for kind in "qk":  # if a norm spans all heads, q and k are its outputs
            norm = getattr(at, f"{kind}_norm", None)
            weight = getattr(norm, "weight", None)
            if weight is not None and weight.ndim == 1 and d_head < len(weight) == size[kind]:
                separate[kind] = norm
        return {kind: (m, torch.arange(size[kind]).view(-1, d_head)) for kind, m in separate.items()}
    fused = next(getattr(at, name) for name in ("c_attn", "query_key_value", "Wqkv", "qkv_proj") if hasattr(at, name))
    size = _matrix(fused).shape[1]
    every = torch.arange(size).view(-1, d_head)
    n_stored = (len(every) - n_heads) // 2
    kind = type(config).__name__.removesuffix("Config")
    if (
        kind in ("GPTNeoX", "Bloom")
        or (kind == "Falcon" and n_stored == n_heads)
        or (kind == "GPTBigCode" and n_stored == n_heads)
    ):
        q, k, v = every.view(n_heads, 3, d_head).unbind(1)
    elif kind == "Falcon" and config.new_decoder_architecture:
        groups = every.view(n_stored, -1, d_head)
        q, k, v = groups[:, :-2].reshape(-1, d_head), groups[:, -2], groups[:, -1]
    elif kind == "CodeGen":
        q, v, k = torch.arange(size).view(4, 3, -1).unbind(1)
        q, k, v = (each.reshape(n_heads, d_head) for each in (q, k, v))
    else:
        q, k, v = every.split([n_heads, n_stored, n_stored])
    return {"q": (fused, q), "k": (fused, k), "v": (fused, v)}
