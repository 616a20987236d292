"""What every head does on ordinary text: one pass over a corpus, window by window."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.behaviour.head_profile import HeadProfile
from mechheads.behaviour.measure import MEASURES, measure
from mechheads.behaviour.windows import Texts, Windows, check_window, each_batch, windows_of
from mechheads.engine.memory import keep_freed_memory
from mechheads.ledger.fingerprints import fingerprint
from mechheads.ledger.stored_progress import StoredProgress, check_progress
from mechheads.ledger.sweep_key import Store
from mechheads.limits import current
from mechheads.messages.arguments import check_at_least
from mechheads.messages.interrupted import stop_if, until_interrupted
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.progress import Bar
from mechheads.results.provenance import make_provenance

_BLOCKS = 256


@dataclass(frozen=True, eq=False)
class Totals:
    """Sums over windows, in at most 256 blocks of as many windows each. Full blocks are merged two by two.

    Attributes:
        sums, counts: of each measure over the windows of a block that have it.
        at_distance: attention at each distance.
        width: the number of windows in a block.
        batches, windows, tokens: how many have been measured.
    """

    sums: Float[Tensor, "measure layer head block"]
    counts: Float[Tensor, "measure block"]
    at_distance: Float[Tensor, "layer head distance"]
    width: int = 1
    batches: int = 0
    windows: int = 0
    tokens: int = 0

    @classmethod
    def none(cls, model: Model, window: int) -> Totals:
        """Nothing has been measured."""
        shape = len(MEASURES), model.n_layers, model.n_heads
        sizes = (*shape, _BLOCKS), (len(MEASURES), _BLOCKS), (*shape[1:], window)
        sums, counts, at_distance = (torch.zeros(size, dtype=torch.float64) for size in sizes)
        return cls(sums, counts, at_distance)

    def plus(self, windows: Windows, found: Tensor, at_distance: Tensor) -> Totals:
        """These totals and a batch of windows. An interrupt changes nothing in the old ones."""
        sums, counts, width = self.sums.clone(), self.counts.clone(), self.width
        for number, values in enumerate(found.unbind(-1), self.windows):
            if number == _BLOCKS * width:
                sums, counts, width = _merged(sums), _merged(counts), 2 * width
            sums[..., number // width] += values.nan_to_num(0)
            counts[:, number // width] += values.isfinite().flatten(1).any(1)
        at_every = self.at_distance.clone()
        at_every[..., : at_distance.shape[-1]] += at_distance
        return Totals(
            sums,
            counts,
            at_every,
            width,
            self.batches + 1,
            self.windows + len(windows.ids),
            self.tokens + windows.ids.numel(),
        )

    @property
    def values(self) -> Float[Tensor, "measure layer head block"]:
        """The mean over the windows of each block; NaN if none of them has the measure."""
        return (self.sums / self.counts[:, None, None])[..., : -(-self.windows // self.width)]


def _merged(blocks: Float[Tensor, "*of block"]) -> Float[Tensor, "*of block"]:
    """Neighbouring blocks added, followed by empty ones."""
    return torch.cat([blocks[..., 0::2] + blocks[..., 1::2], torch.zeros_like(blocks[..., 0::2])], dim=-1)


@analysis(keeps_units=True)
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
    window = check_window(model, window, 256)
    if n_tokens is not None:
        check_at_least(16, n_tokens=n_tokens)
    check_progress()
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

        def see(windows: Windows, found: tuple[Tensor, Tensor]) -> None:
            nonlocal totals
            totals = totals.plus(windows, *found)
            progress.see("totals", totals, totals.batches)
            bar.update(windows.ids.numel())

        with progress, until_interrupted() as interrupts, bar:
            stop_if(each_batch(model, islice(batches, totals.batches, None), measure, see))
    interrupts.stop_unless(totals.windows > 1)
    interrupts.warn(f"{totals.tokens} tokens", "the profile is of these")
    provenance = make_provenance(
        model,
        texts="of the package" if texts is None else "given",
        window=window,
        n_tokens=totals.tokens,
        n_windows=totals.windows,
        interrupted=interrupts.interrupted,
    )
    return HeadProfile.of(totals.values.numpy(), totals.at_distance.numpy(), provenance, seed)
