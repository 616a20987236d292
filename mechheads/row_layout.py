"""How altered copies of a run are laid out in rows: the cheapest way that a model takes."""

from __future__ import annotations

import torch

from mechheads.cache import HeadCache
from mechheads.model import Model
from mechheads.wave import Edit, Wave
from mechheads.windows import Window


def find_layout(model: Model) -> None:
    """Choose the cheapest way of laying out rows that gives a run back unchanged when nothing is changed.

    ``queries``: several copies in a row, told apart by a mask, over the prompt's cached keys; ``rows``: a row for
    each copy, over cached keys; ``whole``: a row for each copy from the first token on, for models whose
    attention takes neither.
    """
    backend = model.backend
    if backend.layout is not None:
        return
    ids = backend.trial_tokens(2, 6).tolist()
    run = HeadCache.run(model, ids, sites=("z", "resid_pre", "keys", "values"), progress=False)
    at = run.tokens.lengths[:, None] - torch.tensor([[2, 1]], device=model.device)
    same = [[Edit(0, "z", 0, run.z.layer(0)[:, 0])]] * 2
    for layout in backend.layouts:
        backend.layout = layout
        start = torch.tensor([2, 3], device=model.device)
        window = Window.from_start(start, at, model, 6)
        copies = [[Edit(e.layer, e.site, e.head, window.take(e.value)) for e in copy] for copy in same]
        try:
            final = Wave(run, slice(0, 2), window).run(copies)
        except (RuntimeError, TypeError, AttributeError, ValueError, IndexError):
            continue
        old = run.final_at(at).float()
        off = float((final.float() - old).abs().max() / old.std())
        if off < (1e-3 if model.dtype == torch.float32 else 0.3):
            return
    backend.layout = None
    raise ValueError(f"model: {model.name!r} cannot be resumed: a run that changes nothing does not give itself back")
