"""What each sender adds to the residual stream in one run more than in another.

Most blocks add a head's output z W_O and their MLP's output to the residual stream as they are. Others put a norm or a
factor in between (Gemma 2 and 3, OLMo 2, Granite). A norm of the sum of all heads has no exact share for each of them.
There, a change passes through the derivative of the norm at the run where the gradient is taken, as it does in a
gradient with respect to z.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.model.backends.partial_block import Blocks
from mechheads.model.backends.state import with_gradient
from mechheads.model.core import ModelCore
from mechheads.patching.edges.graph import EdgeGraph
from mechheads.runs.head_cache import HeadCache


@dataclass(frozen=True, eq=False)
class Point:
    """A run at which gradients are taken.

    Attributes:
        streams: the residual stream before each block, and after the last.
        z: the z of the layers whose output is not added to the residual stream as it is.
    """

    streams: list[Float[Tensor, "prompt pos d_model"]]
    z: dict[int, Float[Tensor, "prompt pos head d_head"]]


@dataclass(frozen=True, eq=False)
class Joined:
    """The end of a block: how the residual stream, the attention output and the MLP's output make the next one.

    Attributes:
        before, attention, mlp: the three, each an input of its own; the MLP's output is None if there is none.
        after: the residual stream after the block.
    """

    before: Float[Tensor, "prompt pos d_model"]
    attention: Float[Tensor, "prompt pos d_model"]
    mlp: Float[Tensor, "prompt pos d_model"] | None
    after: Float[Tensor, "prompt pos d_model"]

    @classmethod
    def run(
        cls,
        model: ModelCore,
        blocks: Blocks,
        layer: int,
        before: Float[Tensor, "prompt pos d_model"],
        z: Float[Tensor, "prompt pos head d_head"],
    ) -> Joined:
        """Run the end of a block on the residual stream before it and the z of its heads."""
        cut: list[Tensor] = []

        def sever(value: Tensor, hook: Any) -> Tensor:
            cut.append(value.detach().requires_grad_())
            return cut[-1]

        before = before.detach().requires_grad_()
        written = model.attention_out(layer, z).detach().requires_grad_()
        name, backend = model.hook_name("mlp_out", layer), model.backend
        hooks = [(name, sever)] if name in backend.hook_points else []
        with with_gradient():
            after = backend.under(hooks, lambda: backend.with_attention(layer, written, partial(blocks, layer, before)))
        return cls(before, written, cut[-1] if cut else None, after)

    def through(
        self, part: Tensor, changes: Float[Tensor, "prompt sender pos d_model"]
    ) -> Float[Tensor, "prompt sender pos d_model"]:
        """What changes of a part do to ``after``, to first order."""
        with with_gradient():
            probe = torch.zeros_like(self.after, requires_grad=True)
            back = torch.autograd.grad(self.after, part, probe, create_graph=True)[0]
            each = [
                torch.autograd.grad(back, probe, change.to(back.dtype), retain_graph=True)[0]
                for change in changes.unbind(1)
            ]
        return torch.stack(each, 1).to(changes.dtype)


def find_indirect(model: ModelCore) -> list[int]:
    """The layers whose heads or MLP are not added to the residual stream as they are, from a run on a few tokens.

    Raises:
        ValueError: if a block does more to the residual stream than add to it, so that there are no edges.
    """
    backend = model.backend
    ids, z = backend.trial_tokens(1, 4), dict[int, Tensor]()

    def note(value: Tensor, hook: Any, layer: int) -> None:
        z[layer] = value.clone()

    hooks = [(model.hook_name("z", layer), partial(note, layer=layer)) for layer in range(model.n_layers)]
    with torch.no_grad():
        streams = [backend.embed(ids)[0]]
        backend.run(ids, hooks, streams=streams)
        blocks = backend.blocks_for(*ids.shape)
    found = []
    for layer in range(model.n_layers):
        end = Joined.run(model, blocks, layer, streams[layer], z[layer])
        probe = torch.randn(end.after.shape, generator=torch.Generator().manual_seed(0)).to(end.after)
        parts = [end.before, end.attention, *([] if end.mlp is None else [end.mlp])]
        kept, *added = (
            each is not None and torch.equal(each, probe)
            for each in torch.autograd.grad(end.after, parts, probe, allow_unused=True)
        )
        if not kept:
            raise ValueError(
                f"model: layer {layer} of {model.name!r} does more to the residual stream than add to it, so edges "
                "between its heads and MLPs are not defined; use mh.patching.attribution_patch"
            )
        if not all(added):
            found.append(layer)
    return found


def sender_changes(
    base: HeadCache,
    source: HeadCache,
    graph: EdgeGraph,
    rows: slice,
    embedding: Float[Tensor, "prompt pos d_model"],
    point: Point,
    layers: range,
) -> Float[Tensor, "prompt sender pos d_model"]:
    """What the senders of some layers add to the residual stream in the source run minus in the base run.

    The embedding belongs to layer 0. Changes are 0 at padding.

    Args:
        rows: the prompts.
        embedding: the change of the embedding.
        point: the run where the gradient is taken.
    """
    model, senders = base.need_model(), graph.senders_of(layers)
    blocks = model.backend.blocks_for(*embedding.shape[:2]) if point.z else None
    shape = (len(embedding), senders.stop - senders.start, *embedding.shape[1:])
    changes = torch.empty(shape, dtype=torch.float32, device=embedding.device)
    if senders.start == 0:
        changes[:, 0] = embedding
    for layer in layers:
        by_z = (source.z.layer(layer)[rows] - base.z.layer(layer)[rows]).float()
        of_heads = torch.einsum("bhpd,hdm->bhpm", by_z, model.W_O[layer].float())
        of_mlp = None
        if graph.mlps:
            new, old = (run.stores["mlp_out"][layer][rows] for run in (source, base))
            of_mlp = (new - old).float()[:, None]
        if blocks is not None and layer in point.z:
            end = Joined.run(model, blocks, layer, point.streams[layer], point.z[layer])
            of_heads = end.through(end.attention, of_heads)
            if of_mlp is not None and end.mlp is not None:
                of_mlp = end.through(end.mlp, of_mlp)
        heads = graph.heads_of(layer)
        changes[:, heads.start - senders.start : heads.stop - senders.start] = of_heads
        if of_mlp is not None:
            changes[:, heads.stop - senders.start] = of_mlp[:, 0]
    return changes.masked_fill_(~base.tokens.mask[rows, None, :, None], 0)
