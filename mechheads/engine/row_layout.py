"""How altered copies of a run are laid out in rows: the cheapest way that a model takes."""

from __future__ import annotations

import torch

from mechheads.engine.rows import Window
from mechheads.engine.wavefront import Edit, Wave
from mechheads.model.backends.base import Layout
from mechheads.model.model import Model
from mechheads.runs.cache import HeadCache


def choose_layout(model: Model) -> Layout:
    """The cheapest way of laying out rows that gives a run back unchanged when nothing is changed.

    ``queries``: several copies in a row, told apart by a mask, over the prompt's cached keys; ``rows``: a row for
    each copy, over cached keys; ``whole``: a row for each copy from the first token on, for models whose
    attention takes neither.

    Raises:
        ValueError: if none does.
    """
    ids = model.backend.trial_tokens(2, 6).tolist()
    run = HeadCache.run(model, ids, sites=("z", "resid_pre"), progress=False)
    run.check_finite()
    for layout in model.backend.layouts:
        if _gives_back(run, layout) < (1e-3 if model.dtype.itemsize >= 4 else 0.3):
            return layout
    raise ValueError(
        f"{model.backend.about} cannot be resumed: a run of its later layers that changes nothing does not give itself "
        "back"
    )


def _gives_back(run: HeadCache, layout: Layout) -> float:
    """How far a run that is resumed with two heads' own z is from itself, in standard deviations of its states."""
    model = run.need_model()
    at = run.tokens.lengths[:, None] - torch.tensor([[2, 1]], device=model.device)
    window = Window.from_start(torch.tensor([2, 3], device=model.device), at, layout, run.tokens.ids.shape[1])
    same = [Edit(0, "z", 0, window.take(run.z.layer(0)[:, 0]))]
    try:
        if layout != "whole":
            run = HeadCache.run(model, run.tokens, sites=("z", "resid_pre", "keys", "values"), progress=False)
        final = Wave(run, slice(0, 2), window, layout).run([same, same])
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, AttributeError, ValueError, LookupError):
        return torch.inf
    old = run.final_at(at).float()
    return float((final.float() - old).abs().max() / old.std())
