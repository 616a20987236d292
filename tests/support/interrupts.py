"""Ctrl-C at random moments of every long function, on tiny models."""

from __future__ import annotations

import random
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import mechheads as mh
from mechheads.engine.row_layout import layout_of
from mechheads.generation.generate import generate
from mechheads.generation.sampling import Sampling
from support.texts import CAPITALS

ARCHITECTURES = ("llama", "gpt2", "gemma", "neox")
HARMFUL = [" The capital of France is the", " a big dog gave", " one two three"]
HARMLESS = [" The capital of Italy is the", " a small cat gave", " two one three"]
PAIRS = mh.PromptPairs(
    clean=[" The capital of France is", " The capital of Spain is"],
    corrupted=[" The capital of Italy is", " The capital of Germany is"],
    answer=[" Paris", " Madrid"],
    wrong=[" Rome", " Berlin"],
)
TASK = mh.Task([" The capital of France is", " The capital of Italy is"], [" Paris", " Rome"])
RELATION = mh.Relation("capitals", "Knowledge", CAPITALS)


def _refused(request: str, answer: str) -> str:
    return "refused" if len(answer) % 2 else "complied"


_ANSWERS: dict[str, Any] = {"draws": 1, "answers": mh.safety.AnswerSettings(_refused, "bare", max_new_tokens=4)}

FUNCTIONS: dict[str, Callable[[mh.Model], Any]] = {
    "cache": lambda m: m.cache(HARMFUL),
    "ablate": lambda m: mh.ablate(m, HARMFUL),
    "activation_patch": lambda m: mh.activation_patch(m, PAIRS, site="k", positions="each"),
    "path_matrix": lambda m: mh.path_matrix(m, PAIRS, receivers=["final", "L2H1.q", "L1.mlp"]),
    "attribution_patch": lambda m: mh.patching.attribution_patch(m, PAIRS),
    "faithfulness": lambda m: mh.patching.faithfulness(m, PAIRS, ["L1H1", "L2H2"]),
    "self_repair": lambda m: mh.patching.self_repair(m, PAIRS, heads=["L1H1"]),
    "logit_attribution": lambda m: mh.behaviour.logit_attribution(m, PAIRS, by="source"),
    "relation_scores": lambda m: mh.relation_scores(m, [RELATION], min_pairs=1),
    "dynamic_scores": lambda m: mh.labels.dynamic_scores(m, [RELATION], min_pairs=1),
    "safety_heads": lambda m: mh.safety_heads(m, mh.Prompts(HARMFUL), k=2),
    "sahara": lambda m: mh.safety.sahara(m, mh.Prompts(HARMFUL), 2, draws=1),
    "refusal_contribution": lambda m: mh.safety.refusal_contribution(
        m, HARMFUL, HARMLESS, template="bare", opening=" I cannot", ablation="scaling"
    ),
    "refusal_test": lambda m: mh.safety.refusal_test(
        m, ["L1H1"], HARMFUL, HARMLESS, texts=[" one two three"], **_ANSWERS
    ),
    "refusal_tests": lambda m: mh.safety.refusal_tests(
        m, {"one": ["L1H1"], "two": ["L1H1", "L2H2"]}, HARMFUL, HARMLESS, texts=[" one two three"], **_ANSWERS
    ),
    "refusal_brittleness": lambda m: mh.safety.refusal_brittleness(
        m, 2, HARMFUL, HARMLESS, texts=[" one two three"], **_ANSWERS
    ),
    "attack_curve": lambda m: mh.safety.attack_curve(m, ["L1H1", "L2H2"], HARMFUL, HARMLESS, most=2, **_ANSWERS),
    "generate": lambda m: generate(m, HARMFUL, Sampling(8)),
    "fit_gates": lambda m: mh.fit_gates(m, TASK, seeds=2, updates=3),
}
"""Every kind of change that the package makes on a model: hooks, other forwards, weights without gradients."""


def changes_on(model: mh.Model) -> Counter[str]:
    """What is on a model beside its weights: hooks, forwards of its own, weights that want no gradient."""
    found: Counter[str] = Counter()
    for name, point in model.model.hook_dict.items():
        found[f"hook at {name}"] = len(point.fwd_hooks) + len(point.bwd_hooks)
    for name, module in model.model.named_modules():
        hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
        found[f"torch hook at {name}"] = sum(map(len, hooks))
        found[f"forward at {name}"] = "forward" in module.__dict__
    for name, weight in model.model.named_parameters():
        found[f"no gradient for {name}"] = not weight.requires_grad
    found["no gradients"] = not torch.is_grad_enabled()
    return +found


def _dropped(_: object) -> None: ...


@contextmanager
def interrupt_after(*seconds: float) -> Iterator[None]:
    """Raise KeyboardInterrupt after some seconds, and again after some more, as long as the block runs.

    Python drops an interrupt that falls into a ``__del__`` or a weak reference's callback and hands it to
    ``sys.unraisablehook``; the second one may fall into that hook. So the hook is empty for as long.
    """
    delays = list(seconds)

    def handler(*_: object) -> None:
        if delays:
            signal.setitimer(signal.ITIMER_REAL, max(delays.pop(0), 1e-5))
        raise KeyboardInterrupt

    hook, sys.unraisablehook = sys.unraisablehook, _dropped
    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(delays.pop(0), 1e-5))
        yield
    finally:
        while True:
            try:
                signal.signal(signal.SIGALRM, signal.SIG_IGN)
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
                sys.unraisablehook = hook
                break
            except KeyboardInterrupt:
                continue


@dataclass
class Trial:
    """One model, and what it gives undisturbed."""

    model: mh.Model
    functions: dict[str, Callable[[mh.Model], Any]]
    rng: random.Random

    def __post_init__(self) -> None:
        self.before = changes_on(self.model)
        self.ids = self.model.backend.trial_tokens(2, 7)
        self.seconds = {name: self._seconds(run) for name, run in self.functions.items()}
        self.layout, self.logits, self.sweep = layout_of(self.model), self._logits(), self._sweep()

    def _seconds(self, run: Callable[[mh.Model], Any]) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run(self.model)
            start = time.perf_counter()
            run(self.model)
        return time.perf_counter() - start

    def _logits(self) -> torch.Tensor:
        return self.model.backend.own_logits(self.ids).clone()

    def _sweep(self) -> np.ndarray:
        return mh.ablate(self.model, HARMFUL).scores.values

    @property
    def left(self) -> list[str]:
        """What is on the model now and was not at first, or the other way round."""
        now = changes_on(self.model)
        return list((now - self.before) | (self.before - now))

    def interrupt(self, name: str) -> str:
        """Interrupt one function once or twice at random moments, and see that nothing is different afterwards.

        Returns:
            "interrupted", or "returned" if it came to an end or gave back what it had.
        """
        if self.rng.random() < 0.3:
            self.model.backend.layout = None
        delays = [self.rng.uniform(0, 1.05 * self.seconds[name])]
        if again := self.rng.random() < 0.2:
            delays.append(self.rng.choice([1e-4, 1e-3]))
        ended = "returned"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with interrupt_after(*delays):
                    self.functions[name](self.model)
            except KeyboardInterrupt:
                ended = "interrupted"
        assert again or not self.left, f"{name} left {self.left}"
        assert self.model.backend.layout in (None, self.layout), f"{name} left the layout {self.model.backend.layout}"
        assert np.array_equal(self._sweep(), self.sweep), f"the sweep after {name} gives other numbers"
        assert not self.left, f"{name} left {self.left}"
        assert torch.equal(self._logits(), self.logits), f"{name} changed the logits"
        return ended
