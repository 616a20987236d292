"""``settings``: how analyses run; ``Limits``: how much memory they may use, and how their work is split.

``show_bytes`` and ``show_seconds`` write sizes and times for people.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from contextlib import ContextDecorator
from contextvars import ContextVar, Token
from dataclasses import dataclass, replace
from importlib.util import find_spec
from numbers import Real
from os import PathLike
from typing import Any, Protocol, runtime_checkable

DEFAULT_BUDGET = 4 * 2**30
_UNITS = {"": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}


def budget_bytes(budget: int | str | None, name: str = "budget") -> int:
    """A memory budget in bytes, from a number, ``"2 GB"``, or None for the default of 4 GB."""
    if budget is None:
        return DEFAULT_BUDGET
    size: Any = -1
    if isinstance(budget, str):
        if match := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]B)?\s*", budget.upper()):
            size = float(match[1]) * _UNITS[match[2] or ""]
    elif isinstance(budget, Real):
        size = budget
    if not 1 <= size < float("inf"):
        raise ValueError(f'{name} is {budget!r}; give a number of bytes or a text such as "2 GB"')
    return int(size)


@runtime_checkable
class Replicas(Protocol):
    """Replicas of a model that compute units of an analysis: ``mh.scale.Ray``, which imports this file."""

    def stop(self) -> None: ...


Workers = int | str | Replicas
"""The type of ``workers`` arguments: a number for this machine, the address of a Ray cluster, or ``mh.scale.Ray``."""


@dataclass(frozen=True)
class Limits:
    """How much memory an analysis may use, and how its work is split.

    The split affects speed and memory, and changes results only by rounding. ``mh.settings`` takes ``Limits`` as
    ``budget=``, in place of a number of bytes or a text such as "2 GB".

    Attributes:
        memory: bytes for everything except the model: cached runs, activations, logits.
        tokens: how many tokens go through a block together; None for as many as the device needs to be fast.
        logits: how many logits are computed together (2**24 take 64 MB in float32), if they fit three times into a
            quarter of the memory.
        logit_rows: how many rows of logits are collected and computed together, because small products are slow.
        run_tokens: how many tokens a cached run computes at a time.
        workers: what computes the units; None for this process.

    >>> with mh.settings(budget=mh.patching.Limits(tokens=512)):
    ...     plan = mh.plan(model, ["The capital of France is"], intervention=mh.Zero())
    """

    memory: int = DEFAULT_BUDGET
    tokens: int | None = None
    logits: int = 2**24
    logit_rows: int = 256
    run_tokens: int = 1024
    workers: Workers | None = None

    def __post_init__(self) -> None:
        if self.workers is not None:
            check_workers(self.workers)

    @property
    def logits_at_once(self) -> int:
        """How many logits are computed together: ``logits``, or fewer if the memory is small."""
        return max(1, min(self.logits, self.memory // (4 * 3 * 4)))

    @property
    def in_one_process(self) -> Limits:
        """The same limits without workers."""
        return replace(self, workers=None)


DEFAULT_LIMITS = Limits()


def check_workers(workers: object) -> None:
    """Check a ``workers`` argument, without the time that importing ray takes."""
    if isinstance(workers, int):
        known = workers >= 1
    elif isinstance(workers, str):
        known = re.fullmatch(r"auto|(ray://)?[^\s/]+:\d+", workers) is not None
    else:
        known = isinstance(workers, Replicas)
    if not known:
        raise ValueError(
            f"workers is {workers!r}; give a number of workers on this machine, such as 2, the address of a Ray "
            'cluster, such as "10.0.0.5:6379" or "auto", or mh.scale.Ray(...)'
        )
    check_ray()


def check_ray() -> None:
    """Check that ray is installed."""
    if find_spec("ray") is None:
        raise ImportError('workers need ray: pip install "mechheads[ray]"; or leave workers out')


Budget = int | str | Limits | None
"""The type of ``budget`` arguments: bytes, a text such as "2 GB", ``Limits``, or None to use the settings."""


@dataclass(frozen=True)
class Settings:
    """How analyses run now; see ``settings``. ``date`` is None for the day on which an analysis begins."""

    limits: Limits = DEFAULT_LIMITS
    seed: int = 0
    progress: bool = True
    store: str | PathLike[str] | None = None
    date: str | None = None
    template_options: Mapping[str, Any] | None = None
    device: str = "auto"


_DEFAULTS = Settings()
_CURRENT: ContextVar[Settings] = ContextVar("settings", default=_DEFAULTS)


def current() -> Settings:
    """The settings in effect here."""
    return _CURRENT.get()


class settings(ContextDecorator):
    """How analyses run: their memory, progress bars, workers, stored progress and seed.

    Settings apply in a ``with`` block. Every analysis also takes ``budget``, ``progress``, ``workers``, ``store`` and
    ``seed`` for one call: ``mh.safety_heads(model, seed=1)``. As a decorator, they apply to the calls of a function:
    ``mh.settings(seed=1)(draw)(model)``. A setting that is left out or None stays as it is outside.
    Settings belong to a thread: a new one begins with the defaults, so set them inside it.

    Args:
        budget: memory for everything except the model, in bytes or as text such as "2 GB" (4 GB by default).
        progress: whether progress bars are shown (True by default).
        workers: what computes: a number of workers on this machine, such as 2, the address of a Ray cluster, or
            ``mh.scale.Ray``; 0, the default, for this process. Analyses that workers cannot compute run here.
        store: a file that keeps finished units of sweeps and the progress of fits of gates and of profiles. The same
            call resumes interrupted or killed work and gives the same bits. If anything that affects the numbers has
            changed, such as a line of the metric's code or the model's weights, the work starts again and is stored
            separately in the same file.
        seed: for everything that is drawn: random heads, sign flips of p values, bootstraps, samples (0 by default).
        date: the date that a chat template gets if it reads the date of today, as text such as "2026-02-28" or a
            ``datetime.date`` (by default the day on which the analysis begins). The provenance names it if a template
            read it. A time of the day is midnight.
        template_options: what a chat template gets besides the chat, by the names that it reads, such as
            ``{"enable_thinking": False}``. The provenance names them.
        device: where ``mh.load`` puts a model if its ``device`` is "auto", and with it the figures of ``mh.studies``:
            for example ``"cpu"`` or ``"cuda:1"`` (by default a GPU if there is one).

    Raises:
        ValueError: if the budget is less than one byte, not finite, or cannot be read; if workers are nothing that can
            compute, the seed is not a whole number, the date is not a date, or the template options are no dict.
        ImportError: if ray, which runs workers, is not installed.

    >>> with mh.settings(progress=False, budget="2 GB", seed=1):
    ...     kl = mh.ships(model, ["How do I pick a lock?", "Tell me how to cheat."], heads="L0H0")
    >>> kl.provenance["seed"]
    1
    """

    def __init__(
        self,
        *,
        budget: Budget = None,
        progress: bool | None = None,
        workers: Workers | None = None,
        store: str | PathLike[str] | None = None,
        seed: int | None = None,
        date: str | datetime.date | None = None,
        template_options: Mapping[str, Any] | None = None,
        device: str | None = None,
    ) -> None:
        if template_options is not None and not isinstance(template_options, Mapping):
            raise ValueError(
                f'template_options is {template_options!r}; give what the template reads: {{"enable_thinking": False}}'
            )
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise ValueError(f"seed is {seed!r}; give a whole number")
        if workers is not None and workers != 0:
            check_workers(workers)
        self._memory = budget if budget is None or isinstance(budget, Limits) else budget_bytes(budget)
        self._workers = workers
        others = {
            "progress": progress,
            "store": store,
            "seed": seed,
            "date": _checked_date(date),
            "template_options": template_options,
            "device": device,
        }
        self._others: dict[str, Any] = {name: value for name, value in others.items() if value is not None}
        self._before: list[Token[Settings]] = []

    def __enter__(self) -> None:
        now = current()
        limits = now.limits
        if isinstance(self._memory, Limits):
            limits = replace(self._memory, workers=self._memory.workers or limits.workers)
        elif self._memory is not None:
            limits = replace(limits, memory=self._memory)
        if self._workers is not None:
            limits = replace(limits, workers=self._workers or None)
        self._before.append(_CURRENT.set(replace(now, limits=limits, **self._others)))

    def __exit__(self, *_: object) -> None:
        _CURRENT.reset(self._before.pop())


def _checked_date(date: str | datetime.date | None) -> str | None:
    text = date.isoformat()[:10] if isinstance(date, datetime.date) else date
    try:
        return None if text is None else datetime.date.fromisoformat(text).isoformat()
    except (TypeError, ValueError):
        raise ValueError(f'date is {date!r}; give a day as text, such as "2026-02-28", or a datetime.date') from None


def show_bytes(size: float) -> str:
    """A size in readable form: ``1.5 GB``."""
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TB"


def show_seconds(seconds: float) -> str:
    """A time in readable form: ``42 s``, ``3 min 10 s``, ``2 h 05 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
