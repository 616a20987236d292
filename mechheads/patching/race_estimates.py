"""What a race knows of every head before it is measured: estimates from one gradient."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float

from mechheads.engine.job import Job
from mechheads.patching.attribution import attribute
from mechheads.patching.gradients import Size, check_gradient

_WORTH = 40
"""From how many full forward passes of an exhaustive sweep on a race asks for a gradient, which takes about four."""


@torch.inference_mode(False)
def race_estimates(job: Job, progress: bool) -> Float[np.ndarray, "layer head prompt"] | None:
    """The attribution of each head on each prompt, for a race of a job with one place; a ledger keeps it.

    None if the sweep is too short for a gradient to save time, the gradient does not fit into memory, or there is none
    that says something about the heads.
    """
    size = Size.of(job, len({head.layer for head in job.heads}))
    if job.plan.forwards < _WORTH or size.bytes > job.spec.limits.memory:
        return None
    try:
        check_gradient(job.spec.metric, job.tokens, job.model.d_vocab)
        found = attribute(job, progress=progress)[0][:, :, 0]
    except ValueError:
        return None
    return found if job.ledger is None else np.array(job.ledger.remember("estimates", found.tolist()))
