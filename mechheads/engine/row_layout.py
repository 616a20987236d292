"""The cheapest layout of changed copies in rows that a model supports."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from mechheads.engine.rows import Window
from mechheads.engine.wavefront import Edit, Wave
from mechheads.model.backend import GIVEN_UP, Layout, R
from mechheads.model.core import ModelCore
from mechheads.prompts.tokens import Unpadded
from mechheads.runs.head_cache import HeadCache


def layout_of(model: ModelCore) -> Layout:
    """How changed copies of a run are laid out on this model, chosen once."""
    if model.backend.layout is None:
        model.backend.layout = choose_layout(model)
    return model.backend.layout


def choose_layout(model: ModelCore, tried: tuple[HeadCache, list[str]] | None = None) -> Layout:
    """The cheapest layout that reproduces a run if nothing is changed; ``tried``: a run, and what was said meanwhile.
    One that a library calls deprecated does not count, with a warning: what is ignored today is an error tomorrow."""
    if tried is None:
        ids = [Unpadded(row) for row in model.backend.trial_tokens(2, 6).tolist()]  # whatever they are, none is padding
        tried = with_deprecations(lambda: HeadCache.run(model, ids, sites=("z", "resid_pre")))
    run, usual = tried
    run.check_finite()
    said: list[str] = []
    for layout in model.backend.layouts:
        error, deprecated = with_deprecations(lambda layout=layout: _resume_error(run, layout))
        new = [text for text in deprecated if text not in usual]
        if error < model.backend.tolerance and (not new or layout == "whole"):
            if said:
                warnings.warn(
                    f"{model.backend.about}: {GIVEN_UP}; in a trial, it was said: {said[0]}", FutureWarning, 2
                )
            return layout
        said += new
    raise ValueError(
        f"{model.backend.about} cannot be resumed: running its later layers from cached activations, with nothing "
        "changed, does not reproduce its output"
    )


def with_deprecations(run: Callable[[], R]) -> tuple[R, list[str]]:
    """What ``run`` gives, and what is said to be deprecated meanwhile, which is not shown; other warnings are."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        given = run()
    deprecated = [said for said in caught if issubclass(said.category, (FutureWarning, DeprecationWarning))]
    for said in caught:
        if said not in deprecated:
            warnings.warn_explicit(said.message, said.category, said.filename, said.lineno)
    return given, [str(said.message) for said in deprecated]


def _resume_error(run: HeadCache, layout: Layout) -> float:
    """The error of a run resumed with two heads' own z, in standard deviations of its final states."""
    model = run.need_model()
    at = run.tokens.lengths[:, None] - torch.tensor([[2, 1]], device=model.device)
    window = Window.from_start(torch.tensor([2, 3]), at, layout, run.tokens.ids.shape[1])
    same = [Edit(0, "z", 0, window.take(run.z.layer(0)[:, 0]))]
    try:
        if layout != "whole" and "keys" not in run.stores:
            run = HeadCache.run(model, run.tokens, sites=("z", "resid_pre", "keys", "values"))
        final = Wave(run, slice(0, 2), window).run([same, same])
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, AttributeError, ValueError, LookupError):
        return torch.inf
    old = run.final_at(at).float()
    return float((final.float() - old).abs().max() / old.std())
