"""Requests and their harmless look-alikes, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from mechheads.engine.evaluate import Evaluator
from mechheads.metrics.base import Metric
from mechheads.prompts.prompts import Prompts
from mechheads.prompts.tokens import PromptLike, Tokens
from mechheads.runs.head_cache import HeadCache
from mechheads.safety.requests.loaders import Part
from mechheads.safety.requests.prompts import Requests, Template, opened, request_prompts

if TYPE_CHECKING:
    from mechheads.model.model import Model


@dataclass(frozen=True)
class Side:
    """Requests as a model gets them, resolved once from what a user gives.

    Attributes:
        prompts: the requests in their template.
        template: the name of the template, or "prompts as given".
        texts: the requests without the template, for people and judges.
    """

    prompts: Prompts
    template: str
    texts: tuple[str, ...]

    @classmethod
    def of(cls, model: Model, requests: Requests, template: Template | None, part: Part = "unsafe") -> Side:
        """Requests by name, from a file, as texts or as prompts; by default, the package's of this part.

        Args:
            template: by default, the model's chat template if it has one, otherwise the paper's.

        Raises:
            ValueError: if ``request_prompts`` rejects them.
        """
        used = template or ("chat" if model.chat_template else "query")
        given = opened(requests, part)
        prompts = request_prompts(model, given, used)
        if isinstance(given, Prompts):
            return cls(prompts, "prompts as given", tuple(map(_text, given.items)))
        return cls(prompts, used, tuple(given))

    def __len__(self) -> int:
        return len(self.prompts)

    def about(self, model: Model) -> dict[str, Any]:
        """What a result records about its prompts."""
        return {"template": self.template, "prompts": self.prompts.tokens(model), "n_prompts": len(self)}


@dataclass(frozen=True)
class Sides:
    """Requests that should be refused and requests that should not, in one template."""

    harmful: Side
    harmless: Side

    @classmethod
    def of(cls, model: Model, harmful: Requests, harmless: Requests, template: Template | None) -> Sides:
        """Both kinds of requests as prompts; by default, the package's, in the model's chat template if it has one.

        Raises:
            ValueError: if ``request_prompts`` rejects them.
        """
        return cls(Side.of(model, harmful, template), Side.of(model, harmless, template, "safe"))

    @property
    def template(self) -> str:
        """The name of the template, or "prompts as given" if both sides are."""
        templates = {side.template for side in self.by_kind().values()}
        return templates.pop() if len(templates) == 1 else (templates - {"prompts as given"}).pop()

    def by_kind(self) -> dict[str, Side]:
        """Each side by its name."""
        return {"harmful": self.harmful, "harmless": self.harmless}

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
