"""The gradient at each input of one block, from the gradient after it.

A block runs on its own, with the outputs of its heads and of its MLP cut off from what follows. The chain rule then
joins the pieces, last to first, so that the gradient at the input of a single head is known before it is added to the
others. Inputs are taken before their norms, whose derivative is part of the gradient.

With grouped queries, several query heads share a key and a value. The gradient is taken for one head of each group at
a time, so that each head has the gradient of its own use of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.model.backends.partial_block import Blocks
from mechheads.model.backends.state import with_gradient
from mechheads.model.core import ModelCore
from mechheads.patching.edges.graph import READS


@dataclass(frozen=True, eq=False)
class BlockGradients:
    """The gradients at the inputs of a block.

    Attributes:
        heads: at the q, k and v input of each head, in this order.
        mlp: at the MLP's input; None if there is none.
        before: at the residual stream before the block.
    """

    heads: Float[Tensor, "prompt input pos d_model"]
    mlp: Float[Tensor, "prompt pos d_model"] | None
    before: Float[Tensor, "prompt pos d_model"]


@dataclass(frozen=True, eq=False)
class CutBlock:
    """A block that has run, in pieces.

    Attributes:
        before, after: the residual stream.
        reads: q of each head, and k and v of each key/value head.
        z, mlp: the outputs of the heads and of the MLP, which depend on ``before``.
        z_cut, mlp_cut: the same values, on which ``after`` depends.
    """

    before: Float[Tensor, "prompt pos d_model"]
    reads: tuple[Float[Tensor, "prompt pos some d_head"], ...]
    z: Float[Tensor, "prompt pos head d_head"]
    z_cut: Float[Tensor, "prompt pos head d_head"]
    mlp: Float[Tensor, "prompt pos d_model"] | None
    mlp_cut: Float[Tensor, "prompt pos d_model"] | None
    after: Float[Tensor, "prompt pos d_model"]

    @classmethod
    def run(
        cls, model: ModelCore, blocks: Blocks, layer: int, residual: Float[Tensor, "prompt pos d_model"], mlps: bool
    ) -> CutBlock:
        """Run a block on the residual stream before it.

        Args:
            mlps: whether the block has an MLP.
        """
        seen: dict[str, Tensor] = {}
        cut: dict[str, Tensor] = {}

        def note(value: Tensor, hook: Any, site: str) -> Tensor:
            seen[site] = value
            return value

        def sever(value: Tensor, hook: Any, site: str) -> Tensor:
            seen[site], cut[site] = value, value.detach().requires_grad_()
            return cut[site]

        outputs = ("z", "mlp_out") if mlps else ("z",)
        hooks = [(model.hook_name(site, layer), partial(note, site=site)) for site in READS]
        hooks += [(model.hook_name(site, layer), partial(sever, site=site)) for site in outputs]
        before = residual.detach().requires_grad_()
        with with_gradient():
            after = model.backend.under(hooks, partial(blocks, layer, before))
        reads = tuple(seen[site] for site in READS)
        return cls(before, reads, seen["z"], cut["z"], seen.get("mlp_out"), cut.get("mlp_out"), after)

    def back(self, slope: Float[Tensor, "prompt pos d_model"]) -> BlockGradients:
        """The gradients at the inputs.

        Args:
            slope: the gradient after the block.
        """
        slope = slope.to(self.after.dtype)
        to_z, of_mlp, before = self._grad(self.after, self.z_cut, slope), None, slope
        if self.mlp is not None and self.mlp_cut is not None:
            to_mlp = self._grad(self.after, self.mlp_cut, slope)
            of_mlp, through = torch.autograd.grad(
                self.mlp, [self.before, self.z_cut], to_mlp, retain_graph=True, allow_unused=True
            )
            before = before + of_mlp
            to_z = to_z if through is None else to_z + through
        heads = torch.empty(
            (len(slope), len(READS), self.z.shape[2], *slope.shape[1:]), dtype=torch.float32, device=slope.device
        )
        for read, head, gradient in self._of_heads(to_z):
            heads[:, read, head] = gradient
            before = before + gradient
        return BlockGradients(heads.flatten(1, 2), of_mlp, before)

    def _of_heads(
        self, to_z: Float[Tensor, "prompt pos head d_head"]
    ) -> Iterator[tuple[int, int, Float[Tensor, "prompt pos d_model"]]]:
        """The number of each input, its head, and the gradient there."""
        n_kv = self.reads[1].shape[2]
        group = self.z.shape[2] // n_kv
        for member in range(group):
            some = torch.zeros_like(to_z)
            some[:, :, member::group] = to_z[:, :, member::group]
            slopes = torch.autograd.grad(self.z, self.reads, some, retain_graph=True)
            for kv in range(n_kv):
                head = kv * group + member
                for read, at in enumerate((head, kv, kv)):
                    only = torch.zeros_like(slopes[read])
                    only[:, :, at] = slopes[read][:, :, at]
                    yield read, head, self._grad(self.reads[read], self.before, only)

    @staticmethod
    def _grad(value: Tensor, at: Tensor, slope: Tensor) -> Tensor:
        return torch.autograd.grad(value, at, slope, retain_graph=True)[0]
