"""The least number of floating-point operations that a workload needs.

Only matrix products are counted (a product of [a, b] and [b, c] is 2abc), because norms, softmax and activations are
small in comparison. The count is what an exact method that runs every head separately cannot avoid:

- a change in layer l at positions p..t changes nothing below l and nothing before p;
- in block l only the changed head's share of the output projection and the MLP are computed again; queries, keys,
  values and patterns of this block stay as they are;
- each later block runs in full at positions p..t, with known keys and values at 0..p-1;
- the last block needs keys and values at p..t, and everything else only at positions whose logits are read;
- logits are read, and so unembedded, at the last position t only: all of them for a KL, two for a logit difference;
- path patching freezes every other head, so positions do not mix: only MLPs run, at the receiver's positions.

The cached runs are added: all of the base run, and the other run from the first token that differs.

An update of gates is a forward and a backward pass of the prompts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Shape:
    """The sizes of a model that determine its cost. ``mlp_matrices`` is 3 for a gated MLP, otherwise 2."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_model: int
    d_mlp: int
    mlp_matrices: int
    d_vocab: int

    @classmethod
    def of(cls, config: Any) -> Shape:
        """The sizes in the transformers configuration of a GPT-2 or Llama model.

        Raises:
            ValueError: for another kind of model.
        """
        if config.model_type not in ("gpt2", "llama"):
            raise ValueError(f"config is of a {config.model_type} model; the benchmark counts gpt2 and llama")
        gated = config.model_type == "llama"
        heads, width = config.num_attention_heads, config.hidden_size
        return cls(
            n_layers=config.num_hidden_layers,
            n_heads=heads,
            n_kv_heads=config.num_key_value_heads if gated else heads,
            d_head=(getattr(config, "head_dim", None) if gated else None) or width // heads,
            d_model=width,
            d_mlp=config.intermediate_size if gated else config.n_inner or 4 * width,
            mlp_matrices=3 if gated else 2,
            d_vocab=config.vocab_size,
        )

    @property
    def head_query(self) -> int:
        """FLOPs of one head's query at one position; equal to one head's share of the output projection."""
        return 2 * self.d_model * self.d_head

    @property
    def queries(self) -> int:
        """FLOPs of all heads' queries at one position; equal to the output projection."""
        return self.n_heads * self.head_query

    @property
    def keys_values(self) -> int:
        """FLOPs of all keys and values at one position."""
        return 2 * self.n_kv_heads * self.head_query

    @property
    def mlp(self) -> int:
        """FLOPs of the MLP at one position."""
        return 2 * self.mlp_matrices * self.d_model * self.d_mlp

    @property
    def products(self) -> list[tuple[int, int]]:
        """The linear maps of a block: the sizes of their inputs and outputs."""
        queries, keys = self.n_heads * self.d_head, self.n_kv_heads * self.d_head
        mlp = [(self.d_model, self.d_mlp)] * (self.mlp_matrices - 1) + [(self.d_mlp, self.d_model)]
        return [(self.d_model, queries), *[(self.d_model, keys)] * 2, (queries, self.d_model), *mlp]

    @property
    def unembed(self) -> int:
        """FLOPs of the logits at one position."""
        return 2 * self.d_model * self.d_vocab


def head_attention(shape: Shape, first: int, end: int) -> int:
    """FLOPs of one head's scores and weighted values for the queries at first..end-1; query t has t + 1 keys."""
    keys = (first + 1 + end) * (end - first) // 2
    return 4 * shape.d_head * keys


def attention(shape: Shape, first: int, end: int) -> int:
    """The same for all heads: 4 * heads * d_head * keys; heads * d_head is d_model in most models."""
    return shape.n_heads * head_attention(shape, first, end)


def block(shape: Shape, first: int, end: int) -> int:
    """FLOPs of one whole block at positions first..end-1."""
    each = 2 * shape.queries + shape.keys_values + shape.mlp
    return (end - first) * each + attention(shape, first, end)


def last_block(shape: Shape, first: int, end: int, *, finish: bool = True) -> int:
    """FLOPs of the last block, read at end-1: keys and values at first..end-1, the rest at end-1.

    Without ``finish`` it ends with every head's z, before the output projection.
    """
    flops = (end - first) * shape.keys_values + shape.queries + attention(shape, end - 1, end)
    return flops + (shape.queries + shape.mlp if finish else 0)


def cone(shape: Shape, layer: int, first: int, end: int) -> int:
    """FLOPs from one head's changed z in ``layer`` at first..end-1 to the logits at end-1."""
    if layer == shape.n_layers - 1:
        return shape.head_query + shape.mlp + shape.unembed
    own = (end - first) * (shape.head_query + shape.mlp)
    between = shape.n_layers - layer - 2
    return own + between * block(shape, first, end) + last_block(shape, first, end) + shape.unembed


def path_to_final(shape: Shape, layer: int) -> int:
    """FLOPs from one sender in ``layer`` to the logits at one position, with other heads frozen: MLPs only."""
    return shape.head_query + (shape.n_layers - layer) * shape.mlp + shape.unembed


def path_to_query(shape: Shape, layer: int, receiver: int, first: int, end: int) -> int:
    """FLOPs from one sender in ``layer`` to one head's query in layer ``receiver`` at first..end-1, and to the logits.

    These are the MLPs of layers layer..receiver-1, the receiver's query and attention, and the cone of its z. In the
    last layer only the query at end-1 is read.
    """
    if receiver == shape.n_layers - 1:
        first = end - 1
    way = shape.head_query + (receiver - layer) * shape.mlp + shape.head_query
    return (end - first) * way + head_attention(shape, first, end) + cone(shape, receiver, first, end)


def base_run(shape: Shape, end: int) -> int:
    """FLOPs of the run that is changed: every block, and the logits at the last position."""
    return (shape.n_layers - 1) * block(shape, 0, end) + last_block(shape, 0, end) + shape.unembed


def source_run(shape: Shape, first: int, end: int) -> int:
    """FLOPs of the run that z is taken from: z of every layer; before ``first`` it equals the base run."""
    return (shape.n_layers - 1) * block(shape, first, end) + last_block(shape, first, end, finish=False)


def needed(
    shape: Shape,
    heads: Iterable[tuple[int, int]],
    *,
    differ: list[int] | None,
    changed: list[int],
    end: int,
    receiver: tuple[int, int] | str | None = None,
    logits: int | None = None,
) -> int:
    """FLOPs of a whole workload over these heads (layer, head).

    Args:
        differ: for each prompt the first position at which the other run differs; None if there is no other run.
        changed: for each prompt the first position at which z changes.
        end: number of tokens of every prompt.
        receiver: None patches z itself; ``"final"`` or a (layer, head) is the receiver of a path.
        logits: how many tokens' logits are read; None for all.
    """
    if logits is not None:
        shape = replace(shape, d_vocab=logits)
    layers = [layer for layer, _ in heads]
    flops = len(changed) * base_run(shape, end) + sum(source_run(shape, first, end) for first in differ or ())
    for first in changed:
        if receiver is None:
            flops += sum(cone(shape, layer, first, end) for layer in layers)
        elif receiver == "final":
            flops += sum(path_to_final(shape, layer) for layer in layers)
        else:
            flops += sum(path_to_query(shape, layer, int(receiver[0]), first, end) for layer in layers)
    return flops


def gate_update(shape: Shape, end: int) -> int:
    """FLOPs of one update of all gates on one prompt: weights are frozen, so backward repeats the forward products.

    Nothing goes back through the first block's queries, keys and values, because no gate lies before them.
    """
    return 2 * base_run(shape, end) - end * (shape.queries + shape.keys_values) - attention(shape, 0, end)
