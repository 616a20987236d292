"""Passes text on while it is written."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from mechheads.generation.batch import Choose
from mechheads.prompts.encoding import token_strings

Stream = Callable[[int, str], object]
"""Called with the index of a prompt and a piece of its new text."""


class Streaming:
    """A choice of tokens that passes on the text of each token, once its characters are whole."""

    def __init__(self, choose: Choose, stream: Stream, tokenizer: Any, ends: Collection[int]) -> None:
        self._choose, self._stream, self._tokenizer, self._ends = choose, stream, tokenizer, ends
        self._ids: dict[int, list[int]] = {}
        self._told: dict[int, int] = {}

    def __call__(
        self, logits: Float[Tensor, "row d_vocab"], prompts: Int[Tensor, " row"], step: int
    ) -> Int[Tensor, " row"]:
        tokens = self._choose(logits, prompts, step)
        for prompt, token in zip(prompts.tolist(), tokens.tolist(), strict=True):
            if token not in self._ends:
                self._tell(prompt, token)
        return tokens

    def finish(self) -> None:
        """Pass on what is left: bytes at the end of a text that are no whole character."""
        for prompt in self._ids:
            text = self._text(prompt)
            if len(text) > self._told.get(prompt, 0):
                self._stream(prompt, text[self._told.get(prompt, 0) :])

    def _text(self, prompt: int) -> str:
        ids = self._ids[prompt]
        if self._tokenizer is None:
            return " ".join(token_strings(ids, None))
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def _tell(self, prompt: int, token: int) -> None:
        self._ids.setdefault(prompt, []).append(token)
        told = self._told.get(prompt, 0)
        whole = self._text(prompt).rstrip("\ufffd")  # the first bytes of a character
        if len(whole) > told:
            self._told[prompt] = len(whole)
            self._stream(prompt, whole[told:])
