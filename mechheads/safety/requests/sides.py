"""Requests and their harmless look-alikes, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from mechheads.engine.evaluate import Evaluator
from mechheads.metrics.base import Metric
from mechheads.prompts.prompts import Prompts
from mechheads.prompts.tokens import PromptLike, Tokens
from mechheads.runs.head_cache import HeadCache
from mechheads.safety.requests.prompts import Requests, Template, opened, request_prompts, template_or_chat

if TYPE_CHECKING:
    from mechheads.model.model import Model


@dataclass(frozen=True)
class Sides:
    """Requests that should be refused and requests that should not, in one template.

    Attributes:
        template: the name of the template, or "prompts as given".
        harmful_texts, harmless_texts: the requests without the template, for people and judges.
    """

    harmful: Prompts
    harmless: Prompts
    template: str
    harmful_texts: tuple[str, ...]
    harmless_texts: tuple[str, ...]

    @classmethod
    def of(cls, model: Model, harmful: Requests, harmless: Requests, template: Template | None) -> Sides:
        """Both kinds of requests as prompts; by default, the package's, in the model's chat template if it has one.

        Raises:
            ValueError: if ``request_prompts`` rejects them.
        """
        used = template_or_chat(model, template)
        raw = opened(harmful), opened(harmless, "safe")
        of_harmful, of_harmless = (request_prompts(model, some, used) for some in raw)
        texts = [tuple(map(_text, some.items if isinstance(some, Prompts) else some)) for some in raw]
        given = all(isinstance(some, Prompts) for some in raw)
        return cls(of_harmful, of_harmless, "prompts as given" if given else used, texts[0], texts[1])

    def by_kind(self) -> tuple[tuple[str, Prompts, tuple[str, ...]], ...]:
        """For each kind, its name, its prompts and its texts."""
        return (
            ("harmful", self.harmful, self.harmful_texts),
            ("harmless", self.harmless, self.harmless_texts),
        )

    def check_pairs(self) -> None:
        """Check that there is one look-alike for each request.

        Raises:
            ValueError: if the numbers differ.
        """
        if len(self.harmful) != len(self.harmless):
            raise ValueError(
                f"harmful has {len(self.harmful)} requests, harmless has {len(self.harmless)}; give a look-alike for "
                "each request, in the same order"
            )


def _text(item: PromptLike) -> str:
    """A prompt as the user wrote it: for a chat the last message, for ids the numbers."""
    if isinstance(item, str):
        return item
    last = item[-1]
    return last["content"] if isinstance(last, Mapping) else " ".join(map(str, item))


def shared_end(*sides: Tokens) -> int:
    """The number of last tokens that all prompts share (the template's tokens after the request); at least 1."""
    rows = [
        row[:length]
        for tokens in sides
        for row, length in zip(tokens.ids.tolist(), tokens.lengths.tolist(), strict=True)
    ]
    n = 0
    while n < min(map(len, rows)) and len({row[-1 - n] for row in rows}) == 1:
        n += 1
    return max(n, 1)


def value_of(model: Model, prompts: Prompts, metric: Metric) -> Float[np.ndarray, " prompt"]:
    """The value of a metric for each prompt, with the model as it is now."""
    run = HeadCache.run(model, prompts, sites=("z",))
    return Evaluator(metric, run).base_value.cpu().numpy()
