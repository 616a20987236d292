"""Whether a model is still as it was, and whether torch computes as usual, or with gradients."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mechheads.model.backends.structure import parts_of

_AS_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SAMPLED = 8
"""At so many places along each axis, numbers of a weight are compared."""
_ROW, _ROWS = 4096, 256
"""Numbers are summed in rows of this length, so many rows at a time."""


@dataclass(frozen=True)
class ModelState:
    """A model's weights and hooks, to be compared with a later state.

    Attributes:
        weights: of each weight and buffer its dtype, its device, its shape, and a sum of its bits by their places.
        hooks: the names of the hook points that carry hooks, and how many.
    """

    weights: dict[str, tuple[str, ...]]
    hooks: dict[str, int]

    @classmethod
    def of(cls, module: nn.Module) -> ModelState:
        """The state of a TransformerLens model; it reads every weight once."""
        every = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        points: dict[str, Any] = getattr(module, "hook_dict", {})
        hooks = {name: len(point.fwd_hooks) + len(point.bwd_hooks) for name, point in points.items()}
        return cls({name: _sums(tensor) for name, tensor in every.items()}, {k: n for k, n in hooks.items() if n})

    def changed(self, now: ModelState) -> str | None:
        """What is different now, in words; None if nothing is."""
        if self.hooks != now.hooks:
            (name, *_) = sorted(self.hooks.items() ^ now.hooks.items())
            return f"its hooks at {name[0]}"
        for name, before in self.weights.items():
            after = now.weights.get(name)
            if after is not None and after[:2] != before[:2]:
                return "its dtype or device"
            if after != before:
                return f"its weight {name.replace('._original_component', '')}"
        return None if self.weights.keys() == now.weights.keys() else "its weights"


def _sums(tensor: Tensor) -> tuple[str, ...]:
    about = str(tensor.dtype), str(tensor.device), str(tuple(tensor.shape))
    if tensor.is_meta or not tensor.numel():
        return about
    with torch.no_grad():
        bits = tensor.detach().reshape(-1).view(_AS_INTEGERS[tensor.element_size()])
        total = torch.zeros((), dtype=torch.int64, device=bits.device)
        for part in bits.split(_ROW * _ROWS):
            rows = nn.functional.pad(part.to(torch.int64), (0, -len(part) % _ROW)).view(-1, _ROW)
            each = (rows * _factors(_ROW, bits.device)).sum(1)
            total = 31 * total + (each * (3 * _factors(len(rows), bits.device) + 1)).sum()
        return *about, str(int(total))


def _factors(n: int, device: torch.device) -> Tensor:
    """Integers without a pattern, one for each place; products wrap around."""
    some = torch.arange(1, n + 1, device=device) * 0x1E3779B97F4A7C15
    return (some ^ (some >> 29)) | 1


@dataclass(frozen=True, eq=False)
class WeightsMark:
    """A mark of a model's weights, to be compared with later ones.

    ``quick`` takes no time: it changes if a weight is replaced, moved or written into, but not if its ``data`` is
    written into. ``sample`` holds sums of some numbers of each weight, which tell this too, unless it was done to a few
    rows only; ``ModelState`` sees all.
    """

    quick: list[tuple[int, int]]
    sample: Tensor

    @classmethod
    def of(cls, weights: Iterable[Tensor]) -> WeightsMark:
        """The mark of the weights as they are."""
        every = list(weights)
        return cls(quick_mark(every), _sample(every))

    def differs(self, weights: Iterable[Tensor], *, quickly: bool) -> bool:
        """Whether the weights are others now; if not ``quickly``, their sample is compared too."""
        every = list(weights)
        return self.quick != quick_mark(every) or not (quickly or torch.equal(self.sample, _sample(every)))


def quick_mark(weights: Iterable[Tensor]) -> list[tuple[int, int]]:
    """What tells whether a weight was replaced, moved or written into; see ``WeightsMark``."""
    return [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights]


@torch.no_grad()
def _sample(weights: Iterable[Tensor]) -> Tensor:
    """A sum of up to some 100 numbers of each weight, from all of its parts; none for weights on several devices."""
    here = [weight for weight in weights if weight.numel() and not weight.is_meta]
    if len({weight.device for weight in here}) != 1:
        return torch.zeros(0)
    far = [tuple(slice(None, None, size // _SAMPLED + 1) for size in weight.shape) for weight in here]
    some = [w[at] if w.numel() > _SAMPLED**2 else w for w, at in zip(here, far, strict=True)]
    return torch.stack([each.sum(dtype=torch.float64) for each in some]).nan_to_num(7.0)


@contextmanager
def as_usual(module: nn.Module, device: torch.device, parts: Iterable[nn.Module] | None = None) -> Iterator[None]:
    """Compute as torch does by default inside the ``with`` block.

    Args:
        parts: all modules of the model, if they are known.

    Raises:
        ValueError: if the model is in training mode and that changes its numbers, or torch's default dtype is another
            one.
    """
    if random := next(filter(_depends_on_training, parts_of(module) if parts is None else parts), None):
        training = next((name for name, part in module.named_modules() if part is random), type(random).__name__)
        raise ValueError(
            f"model is in training mode ({training}), in which dropout makes its numbers random; call its eval() first"
        )
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


def _depends_on_training(part: nn.Module) -> bool:
    """Whether a part is in training mode and may compute other numbers in it; TransformerLens' own have no dropout."""
    if not part.training or type(part).__module__.startswith("transformer_lens."):
        return False
    random = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)
    return isinstance(part, random) or not type(part).__module__.startswith("torch.nn.")


@contextmanager
def settings_kept() -> Iterator[None]:
    """Leave the process as it was: loggers, filters of warnings, torch's random numbers.

    TransformerLens silences transformers' logger when it is imported, and peft draws first values of its weights.
    """
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
    """What decides how numbers are rounded: the kind of device, whatever its number, and the precision of products.

    >>> import torch
    >>> from mechheads.model.backends.state import arithmetic
    >>> arithmetic(torch.device("cpu"))
    'cpu'
    """
    kind = f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type
    precision = torch.get_float32_matmul_precision()
    return kind if precision == "highest" else f"{kind}, float32 products in {precision} precision"


@contextmanager
def with_gradient() -> Iterator[None]:
    """Record gradients inside the ``with`` block.

    Raises:
        ValueError: if the model consists of inference tensors, through which no gradient passes.
    """
    try:
        with torch.enable_grad():
            yield
    except RuntimeError as error:
        if "Inference tensors" not in str(error):
            raise
        raise ValueError(
            "model: its tensors were made inside torch.inference_mode() and give no gradients; load it outside"
        ) from error
