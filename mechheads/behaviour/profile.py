"""What every head does on ordinary text: one pass over a corpus, window by window."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.behaviour.head_profile import HeadProfile
from mechheads.behaviour.measure import MEASURES, measure
from mechheads.behaviour.totals import Totals
from mechheads.behaviour.windows import Texts, WindowIds, Windows, check_window, windows_of
from mechheads.engine.each import IndependentUnits, in_order
from mechheads.engine.memory import keep_freed_memory
from mechheads.ledger.fingerprints import fingerprint
from mechheads.ledger.stored_progress import StoredProgress
from mechheads.ledger.sweep_key import Store
from mechheads.limits import Limits, current
from mechheads.messages.arguments import check_at_least
from mechheads.messages.interrupted import stop_if, until_interrupted
from mechheads.model.backends.temporary_changes import alone
from mechheads.model.model import Model
from mechheads.progress import Bar
from mechheads.results.provenance import make_provenance
from mechheads.workers.ray_cluster import pool_of

_BATCHES_A_WORKER = 16
"""How many batches of windows are read for each worker before they are measured."""


@alone
def profile_heads(
    model: Model,
    texts: Texts = None,
    *,
    window: int | None = None,
    n_tokens: int | None = 20000,
) -> HeadProfile:
    """Measure what every head does on ordinary text.

    The texts are cut into windows, and the model runs once on each. Nothing is kept but means over windows (over at
    most 256 blocks of windows if there are more), so memory does not grow with the texts. With ``mh.settings(store=)``,
    the file keeps these means: after an interrupt or a kill, the same call continues, with exactly the same result. All
    texts are then read before the first is measured (8 bytes for each token), because they are part of the key.

    For each head, the result holds the share of its attention that goes to

    - ``first``: the first token (a sink); ``self``: the token itself; ``previous``: the token before it;
    - ``duplicate``: earlier copies of the token; ``induction``: tokens that follow an earlier copy of it;
    - ``delimiter``: earlier punctuation and line ends;

    and, as ``position``, the share of the variance of attention that the distance alone explains. Each has a null: the
    same attention, with the keys of each query permuted. Each is also given with attention weighted by the norm of what
    it moves, A v W_O (Kobayashi et al. 2020). Besides, for each head: the entropy and the distance of its attention,
    the norm of its output relative to the residual stream, and ``copying``, how often the head raises the logit of the
    token it attends to most above that of another token of the window (0.5 by chance).

    Args:
        texts: a file (texts with an empty line between them), a list or an iterator of texts or of token ids; by
            default, prose of the package and the help texts of Python.
        window: the length of a window in tokens; by default 256, or the model's context if that is shorter.
        n_tokens: how many tokens to read; ``None`` for all.

    Returns:
        Shares [layer, head, behaviour] with intervals over windows, and q values of the excess over the null. After
        Ctrl-C, of the windows until then.

    Raises:
        ValueError: if an argument is not valid, or the texts have no window of 16 tokens.
        RuntimeError: if some windows end every worker that tries them; with a store, the same call goes on.
        KeyboardInterrupt: if Ctrl-C came before the second window.

    Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; Olsson et al. 2022, "In-context Learning
    and Induction Heads" (arXiv 2209.11895); Kobayashi et al. 2020 (arXiv 2004.10102).

    >>> profile = mh.profile_heads(model, n_tokens=1024)
    >>> [str(head) for head in profile.select(behaviour="previous").heads(1)]
    ['L16H0']
    """
    seed = current().seed
    window = check_window(model, min(256, model.n_ctx) if window is None else window)
    if n_tokens is not None:
        check_at_least(16, n_tokens=n_tokens)
    keep_freed_memory()
    batches = windows_of(model, texts, window, n_tokens)
    with Store(current().store, analysis="profile_heads") as store:
        ledger = None
        if current().store is not None:
            every = list(batches)
            read = fingerprint([windows.ids.cpu() for windows in every], what="texts")
            ledger, batches = store.open(model, {}, texts=read, window=window), iter(every)
        progress = StoredProgress(ledger)
        totals = progress.state("totals", Totals.none(model, window))
        bar = Bar(total=n_tokens, initial=totals.tokens, desc="profile", unit="token")

        def see(windows: Windows, found: Tensor, at_distance: Tensor) -> None:
            nonlocal totals
            totals = totals.plus(windows, found, at_distance)
            progress.see("totals", totals, totals.batches)
            bar.update(windows.ids.numel())

        with progress, until_interrupted() as work, bar:
            stop_if(_measure(model, islice(batches, totals.batches, None), current().limits, see))
    work.stop_unless(totals.windows > 1)
    work.warn(f"{totals.tokens} tokens", "the profile is of these")
    if not totals.windows:
        raise ValueError("texts have no window of at least 16 tokens; give longer texts")
    provenance = make_provenance(
        model,
        texts="of the package" if texts is None else "given",
        window=window,
        n_tokens=totals.tokens,
        n_windows=totals.windows,
        seed=seed,
        interrupted=work.interrupted,
    )
    return HeadProfile.of(totals.values.numpy(), totals.at_distance.numpy(), provenance, seed)


def _measure(
    model: Model,
    batches: Iterator[Windows],
    limits: Limits,
    see: Callable[[Windows, Tensor, Tensor], object],
) -> bool:
    """Measure batches of windows, each as a whole, here or by workers.

    Args:
        see: gets the batches in their order.

    Returns:
        Whether Ctrl-C stopped workers.
    """
    if limits.workers is None:
        for windows in batches:
            see(windows, *measure(model, windows.ids))
        return False
    each = IndependentUnits(model, _measures, limits)
    while some := list(islice(batches, _BATCHES_A_WORKER * pool_of(limits.workers).replicas)):
        units = [WindowIds(windows.ids.tolist()) for windows in some]
        if each(units, in_order(partial(_see_measures, model, some, see))):
            return True
    return False


def _measures(model: Model, batch: WindowIds) -> Float[np.ndarray, " value"]:
    """All that ``measure`` gives for a batch, on a worker."""
    found = measure(model, torch.tensor(batch.ids, device=model.device))
    return torch.cat([part.flatten().cpu() for part in found]).numpy()


def _see_measures(
    model: Model,
    batches: list[Windows],
    see: Callable[[Windows, Tensor, Tensor], object],
    index: int,
    values: Float[np.ndarray, " value"],
) -> None:
    windows, heads = batches[index], (model.n_layers, model.n_heads)
    n, length = windows.ids.shape
    found, at_distance = torch.from_numpy(values).split(
        [len(MEASURES) * math.prod(heads) * n, math.prod(heads) * length]
    )
    see(windows, found.view(len(MEASURES), *heads, n), at_distance.view(*heads, length))
