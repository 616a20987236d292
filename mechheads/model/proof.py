"""The proof that numbers are the model's own: what the engine computes is compared with plain forward passes.

A cached run must give the log-probabilities of the user's own model, with the hooks and adapters that it has at that
moment, for the shortest and the longest prompt without padding and without other prompts. And what a sweep gives for a
changed head must be what one plain forward pass with one hook gives. Prompts of one length share a pass, since most of
its time goes into reading the weights.

Log-probabilities are compared at tokens with finite logits, in interquartile ranges, so that a difference means the
same for every vocabulary.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mechheads.model.backend import Backend, Hook
from mechheads.model.parts import sections_of

TOLERANCE = 1e-3
"""How far log-probabilities may be apart by rounding in float32, in interquartile ranges."""
SHOWS = 10
"""By how many tolerances a change must move log-probabilities to show anything."""
_OF_RANGE = 0.05
"""The least interquartile range, in shares of the whole range: few tokens have any logit in models made by hand."""
_OF_SIZE = 0.02
"""The least interquartile range, in shares of the largest logit, which decides how logits are rounded."""
_LEAST = 0.05
"""The least interquartile range of log-probabilities, where hardly any token has a logit."""
_SAMPLED = 4096
"""The tokens of a large vocabulary whose interquartile range is measured."""
_ROOM = 4
"""How many times as large as the differences at loading later ones may be."""
_MOST, _MOST_IN_FLOAT32 = 0.1, 0.05
"""How much of a difference counts as rounding at most: sharp attention rounds more than ``TOLERANCE``."""
_IN_A_BATCH = 0.5
"""By how much other prompts in the batch may change a prompt in half precision, if alone it is right."""
AT_LOADING = 1e-2
"""The largest difference at loading that rounding in float32 may explain."""
_UNDO = "Undo the change, or load or wrap the model as it is now"
_LIBRARIES = {"torch", "transformers", "transformer_lens", "accelerate", "mechheads"}
"""Libraries whose hooks and forwards belong to a model as they load it."""

PlainHook = tuple[str, Callable[[Tensor], Tensor | None]]
"""The name of a hook, and what becomes of the value of one prompt there [1, ...]; None leaves it."""


class NotProved(ValueError):
    """A computed value is not the one that the model's own forward pass gives."""


@dataclass(frozen=True, eq=False)
class Claim:
    """Values computed for one prompt at some positions: final states, or what ``reads`` takes from a hook.
    ``edits``: the hooks of the plain forward pass, None for the user's model; ``unchanged``: without them."""

    what: str
    ids: tuple[int, ...]
    at: tuple[int, ...]
    computed: Float[Tensor, "position width"]
    edits: Sequence[PlainHook] | None = None
    reads: PlainHook | None = None
    unchanged: Float[Tensor, "position width"] | None = None
    run: int | None = None


class Proofs:
    """The claims of one analysis that are not proved yet."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._open: list[Claim] | None = None
        self._known: set[tuple[int, int, int]] = set()

    @contextmanager
    def of_an_analysis(self) -> Iterator[None]:
        """Prove the claims of an analysis at its end at the latest, also if it fails, perhaps for the same reason."""
        if self._open is not None:
            yield
            return
        self._open, self._known = [], set()
        try:
            yield
            self.prove()
        except (RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
            if not isinstance(error, NotProved):
                try:
                    self.prove()
                except NotProved as reason:
                    raise reason from error
                except (RuntimeError, TypeError, ValueError, AttributeError, LookupError):
                    pass  # the first error says what is wrong
            raise
        finally:
            self._open = None

    def new(self, run: int, prompt: int, at: Sequence[int]) -> tuple[int, ...]:
        """The positions of a run's prompt that this analysis has not claimed yet."""
        unclaimed = tuple(place for place in at if (run, prompt, place) not in self._known)
        self._known |= {(run, prompt, place) for place in unclaimed}
        return unclaimed

    def claim(self, claims: Sequence[Claim]) -> None:
        """Add claims, which are proved later. Runs under hooks of the library's own claim nothing."""
        if self._open is not None and not self.backend.changes.any_made:
            self._open += claims

    def claim_ends(
        self,
        what: str,
        ids: Int[Tensor, "prompt pos"],
        lengths: Int[Tensor, " prompt"],
        final: Float[Tensor, "prompt d_model"],
    ) -> None:
        """Claim the final states of the last tokens of the shortest and the longest prompt."""
        ends = at_the_ends(ids, lengths, [[n - 1] for n in lengths.tolist()])
        self.claim([Claim(f"{what} {i}", row, at, final[i : i + 1]) for i, row, at in ends])

    def prove(self, more: Sequence[Claim] = (), instead: Sequence[Claim] = ()) -> bool:
        """Prove the open claims and ``more``. ``instead`` replace open claims of the same run and length.
        Returns whether every claim with an ``unchanged`` is far enough from it to show something."""
        replaced = {(claim.run, len(claim.ids)): claim for claim in instead}
        opened = [replaced.get((claim.run, len(claim.ids)), claim) for claim in self._open or ()]
        claims = [*more, *dict.fromkeys(opened)]
        if self._open:
            self._open = []
        every = [(claim.reads is None, states) for claim in claims for states in (claim.computed, claim.unchanged)]
        final = [states for of_logits, states in every if states is not None and of_logits]
        logits = iter(self.backend.unembed(torch.cat(final)).split(list(map(len, final))) if final else ())
        compared = [next(logits) if states is not None and of_logits else states for of_logits, states in every]
        ours: list[tuple[Any, Tensor | None]] = list(zip(compared[::2], compared[1::2], strict=True))
        for claim, (mine, _), wanted in zip(claims, ours, plain(self.backend, claims), strict=True):
            check(self.backend, claim, mine, wanted)
        shows = SHOWS * tolerance(self.backend)
        pairs = [(mine, old, claim.reads is None) for claim, (mine, old) in zip(claims, ours, strict=True)]
        return all(old is None or apart(mine, old, logits=logits) >= shows for mine, old, logits in pairs)


def shortest_and_longest(lengths: Int[Tensor, " prompt"]) -> list[int]:
    """The first of the shortest prompts, and the last of the longest."""
    sizes = lengths.tolist()
    return sorted({sizes.index(min(sizes)), len(sizes) - 1 - sizes[::-1].index(max(sizes))})


def at_the_ends(
    ids: Int[Tensor, "prompt pos"],
    lengths: Int[Tensor, " prompt"],
    more: Sequence[Sequence[int]] | None = None,
) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """The shortest and longest prompt of a run: index, ids, and the last position and one drawn, or ``more``."""
    sizes, ends = lengths.tolist(), []
    for i in shortest_and_longest(lengths):
        row = tuple(ids[i, : sizes[i]].tolist())
        at = last_and_drawn(row) if more is None else {k for k in more[i] if k < sizes[i]}
        ends.append((i, row, tuple(sorted(at))))
    return ends


def last_and_drawn(ids: Sequence[int]) -> set[int]:
    """The last position of a prompt, and one that is drawn."""
    return {len(ids) - 1, sum(ids) % len(ids)}


def plain(backend: Backend, claims: Sequence[Claim]) -> list[Float[Tensor, "position width"]]:
    """The results of plain forward passes, to compare with each claim."""
    groups: dict[tuple[bool, int], dict[object, list[int]]] = defaultdict(lambda: defaultdict(list))
    for i, claim in enumerate(claims):
        wrapped = claim.edits is None and backend.wrapped is not None
        rows = groups[wrapped, 0 if backend.on_disk is not None else len(claim.ids)]
        rows[i if claim.edits else claim.ids].append(i)
    results: dict[int, Tensor] = {}
    for (wrapped, _), rows in groups.items():
        results |= _one_pass(backend, claims, [*rows.values()], wrapped)
    return [results[i] for i in range(len(claims))]


def _one_pass(
    backend: Backend, claims: Sequence[Claim], members: Sequence[Sequence[int]], wrapped: bool
) -> dict[int, Tensor]:
    """The results of one pass, by claim; ``members`` are the claims of each row."""
    firsts = [claims[each[0]] for each in members]
    pos = max(len(claim.ids) for claim in firsts)
    ids = torch.tensor([[*claim.ids, *claim.ids[-1:] * (pos - len(claim.ids))] for claim in firsts])
    at = sorted({k for each in members for i in each if claims[i].reads is None for k in claims[i].at}) or [pos - 1]
    seen: dict[int, Tensor] = {}
    hooks: list[Hook] = []
    for row, each in enumerate(members):
        hooks += [(name, partial(_in_row, row=row, change=change)) for name, change in firsts[row].edits or ()]
        for i, reads in ((i, claims[i].reads) for i in each):
            if reads is not None:
                hooks.append((reads[0], partial(_note, row=row, seen=seen, claim=i, read=reads[1])))
    here = ids.to(backend.devices.home)
    logits = backend.own_logits(here, at) if wrapped else backend.plain_logits(here, hooks, at)
    results = {}
    for row, each in enumerate(members):
        for i in each:
            places = [*claims[i].at]
            results[i] = (
                logits[row, [at.index(k) for k in places]]
                if claims[i].reads is None
                else seen[i][places][:, : claims[i].computed.shape[1]]
            )
    return results


def _in_row(value: Tensor, hook: Any, row: int, change: Callable[[Tensor], Tensor | None]) -> Tensor | None:
    new = change(value[row : row + 1])
    if new is None:
        return None
    value = value.clone()
    value[row : row + 1] = new.to(value.dtype)
    return value


def _note(
    value: Tensor, hook: Any, row: int, seen: dict[int, Tensor], claim: int, read: Callable[[Tensor], Any]
) -> None:
    seen[claim] = read(value[row : row + 1]).clone()


def check(
    backend: Backend, claim: Claim, ours: Float[Tensor, "position width"], wanted: Float[Tensor, "position width"]
) -> None:
    """Compare a claim with what a plain forward pass gives; in half precision, first as it was computed in a batch."""
    logits = claim.reads is None
    if logits and not wanted.isfinite().any():
        return  # the weights are damaged; another error says so more clearly
    limit = tolerance(backend)
    off = apart(ours, wanted, logits=logits)
    if limit < off <= _IN_A_BATCH and logits and claim.edits is None and not _is_exact(backend):
        alone = backend.run(torch.tensor([claim.ids], device=backend.devices.home))
        off = apart(backend.unembed(alone[0, [*claim.at]]), wanted, logits=True)
    if not off <= limit:
        whose = "the model's own forward pass" if claim.edits is None else "one plain forward pass with hooks"
        size = "of the interquartile range of the log-probabilities" if logits else "of the largest value"
        raise NotProved(
            f"model: {claim.what} differs from {whose} by {off:.2g} {size}, and rounding explains {limit:.2g} at most. "
            f"{likely_reason(backend)}. {_UNDO}"
        )


def apart(ours: Float[Tensor, "position width"], theirs: Float[Tensor, "position width"], *, logits: bool) -> float:
    """The largest difference: of log-probabilities in interquartile ranges, of other values in shares of the largest.
    Infinite if the widths differ, or a value is finite in one and not in the other."""
    if ours.shape != theirs.shape:
        return torch.inf
    mine, other = (each.detach().float().cpu().numpy() for each in (ours, theirs))
    if not logits:
        return float(np.abs(mine - other).max() / max(1e-6, float(np.abs(other).max())))
    worst, largest = 0.0, float(np.abs(other, where=np.isfinite(other), out=np.zeros_like(other)).max(initial=0))
    for a, b in zip(mine, other, strict=True):
        finite = np.isfinite(b)
        if not np.array_equal(np.isfinite(a), finite):
            return torch.inf
        a, b = (torch.from_numpy(each[finite]).log_softmax(-1).numpy() for each in (a, b))
        if b.size:
            some = b[:: max(1, len(b) // _SAMPLED)]
            size = max(np.subtract(*np.percentile(some, [75, 25])), _OF_RANGE * np.ptp(b), _OF_SIZE * largest, _LEAST)
            worst = max(worst, float(np.abs(a - b).max() / size))
    return worst


def note_rounding(backend: Backend, off: float) -> bool:
    """Note how far a run was from the model's own forward pass at loading; whether rounding may explain it."""
    backend.rounding = min(_MOST, off)
    exact = backend.parameter.dtype.itemsize >= 4 and torch.get_float32_matmul_precision() == "highest"
    return off <= (AT_LOADING if exact else tolerance(backend))


def tolerance(backend: Backend) -> float:
    """How far results of this model may be apart by rounding, as ``apart`` measures it."""
    if torch.get_float32_matmul_precision() != "highest":
        return _MOST
    limit = max(TOLERANCE, _ROOM * backend.rounding)
    return min(limit, _MOST_IN_FLOAT32) if _is_exact(backend) else limit


def _is_exact(backend: Backend) -> bool:
    """Whether rounding is small: in float32, if blocks have no experts of which it may choose others."""
    stated = [str(name) for part in sections_of(backend.configuration) for name, value in part.items() if value]
    experts = any("num_experts" in name or "num_local_experts" in name for name in stated)
    return backend.parameter.dtype.itemsize >= 4 and not experts


def likely_reason(backend: Backend) -> str:
    """The first likely reason for a difference, in words."""
    every: list[tuple[str, Any]] = [*backend.users_model.named_modules(), *backend.module.named_modules()]
    for name, part in every:
        at = name.replace("._original_component", "") or type(part).__name__
        if part.training and isinstance(part, nn.modules.dropout._DropoutNd) and part.p:
            return f"It is in training mode ({at}); call its eval()"
        point: Any = getattr(part, "fwd_hooks", None)
        if point and any(_is_users(handle.user_hook) for handle in point):
            return f"A TransformerLens hook is on {part.name}"
        if point is None and any(map(_is_users, [*part._forward_hooks.values(), *part._forward_pre_hooks.values()])):
            return f"A torch hook is on {at}"
        if "forward" in vars(part) and _is_users(vars(part)["forward"]):
            return f"The forward of {at} was replaced"
    if len(dtypes := {weight.dtype for weight in backend.users_model.parameters()}) > 1:
        return f"Its weights have several dtypes ({', '.join(sorted(map(str, dtypes)))})"
    if backend.loaded is not None and versions(backend.weights) != backend.loaded:
        return "Its weights were changed after it was loaded"
    return "Its code, its settings, its modules or the data of its weights were changed, or it is not causal"


def _is_users(hook: Any) -> bool:
    """Whether a function is the user's, and no library's."""
    while hasattr(hook, "func") or hasattr(hook, "__func__"):
        hook = getattr(hook, "func", None) or hook.__func__
    home = getattr(hook, "__globals__", {}).get("__name__") or getattr(hook, "__module__", None) or "builtins"
    return home.split(".")[0] not in _LIBRARIES


def versions_now(backend: Backend) -> list[tuple[int, int]]:
    """The ``versions`` of a model's weights, read once in each analysis."""
    return backend.changes.once("versions", lambda: versions(backend.weights))


def versions(weights: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Where weights lie, and torch's counters of what was written into them."""
    return [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights]
