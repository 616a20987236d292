"""How torch computes during an analysis: as usual, with gradients or without, and in one thread."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TypeVar

import torch
from torch import nn

from mechheads.model.backends.base import Backend
from mechheads.model.backends.parts import parts_of

R = TypeVar("R")
_SHARES = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")
"""Attributes in which attention keeps its rate of dropout."""


def alone(backend: Backend, run: Callable[[], R]) -> R:
    """Call ``run`` while this thread has the model and torch computes as usual, and prove what it computes."""

    if backend.changes.mine:
        return run()

    def proved() -> R:
        with as_usual(backend.module, backend.parameter.device, backend.parts):
            backend.check()
            with backend.proofs.of_an_analysis():
                return run()

    return backend.changes.alone(proved)


def read_weights(backend: Backend, read: Callable[[], R]) -> R:
    """What ``read`` reads of a model's weights."""
    if not backend.changes.mine:
        backend.check()
    return read()


@contextmanager
def as_usual(module: nn.Module, device: torch.device, parts: Iterable[nn.Module] | None = None) -> Iterator[None]:
    """Compute as torch does by default inside the ``with`` block."""
    check_evaluation(module, parts)
    if (dtype := torch.get_default_dtype()) != torch.float32:
        raise ValueError(
            f"torch's default dtype is {dtype}, in which analyses would compute other numbers; call "
            "torch.set_default_dtype(torch.float32) first. The model keeps its own dtype"
        )
    with ExitStack() as usual, without_autocast(device):
        if torch.get_default_device().type != "cpu":
            usual.enter_context(torch.device("cpu"))
        if torch.is_inference_mode_enabled():  # what is computed may be used where gradients are needed
            usual.enter_context(torch.inference_mode(False))
        yield


def check_evaluation(module: nn.Module, parts: Iterable[nn.Module] | None = None) -> None:
    """Check that no part of a model is in training mode and gives other numbers in it."""
    if random := next(filter(_is_random, parts_of(module) if parts is None else parts), None):
        at = next((name for name, part in module.named_modules() if part is random), type(random).__name__)
        raise ValueError(
            f"model is in training mode ({at}), in which dropout makes its numbers random; call its eval() first"
        )


def _is_random(part: nn.Module) -> bool:
    """Whether a part gives other numbers in training mode; one whose dropout has the rate 0 does not."""
    if not part.training or isinstance(part, nn.modules.batchnorm._BatchNorm):
        return part.training
    rates = [part.p] if isinstance(part, nn.modules.dropout._DropoutNd) else [vars(part).get(name) for name in _SHARES]
    return any(isinstance(rate, float) and rate > 0 for rate in rates)


@contextmanager
def settings_kept() -> Iterator[None]:
    """Leave the process as it was: loggers, filters of warnings, torch's random numbers, which libraries change."""
    loggers = [logging.getLogger(name) for name in ("", "transformers", "huggingface_hub", "accelerate", "peft")]
    before = [(logger, logger.level, logger.propagate, logger.disabled) for logger in loggers]
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            for logger, level, propagate, disabled in before:
                logger.setLevel(level)
                logger.propagate, logger.disabled = propagate, disabled


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A ``with`` block in which products have the dtype of their factors, also inside the user's autocast."""
    try:
        on = torch.is_autocast_enabled(device.type)
    except RuntimeError:  # a kind of device that has no autocast
        on = False
    return torch.autocast(device.type, enabled=False) if on else nullcontext()


def arithmetic(device: torch.device) -> str:
    """What decides how numbers are rounded: the kind of device, whatever its number, and the precision of products."""
    kind = f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type
    precision = torch.get_float32_matmul_precision()
    return kind if precision == "highest" else f"{kind}, float32 products in {precision} precision"


@contextmanager
def with_gradient() -> Iterator[None]:
    """Record gradients inside the ``with`` block."""
    try:
        with torch.enable_grad():
            yield
    except RuntimeError as error:
        if "Inference tensors" not in str(error):
            raise
        raise ValueError(
            "model: its tensors were made inside torch.inference_mode() and give no gradients; load it outside"
        ) from error
