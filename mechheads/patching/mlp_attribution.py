"""Attribution of MLPs: (new output - old output) . d metric / d output, summed over the positions of each place."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float

from mechheads.engine.job import Job
from mechheads.engine.mlps import new_output
from mechheads.runs.layer_store import LayerStore


def attribute_mlps(job: Job, gradient: LayerStore) -> Float[np.ndarray, "layer place prompt"]:
    """The linear estimate of what changing each MLP does.

    Args:
        gradient: d metric / d output of each layer's MLP [prompt, pos, d_model].
    """
    values = np.full((job.model.n_layers, len(job.places), len(job.tokens)), np.nan)
    for layer in range(job.model.n_layers):
        old, slope = job.base.stores["mlp_out"][layer], gradient[layer].double()
        for place in range(len(job.places)):
            along = ((new_output(job, layer, place) - old).double() * slope).sum(-1)
            values[layer, place] = torch.where(job.tokens.mask, along, 0).sum(-1).cpu().numpy()
    return values
