"""Generate the texts of one batch, token by token, with cached keys and values.

Each prompt is computed once, and its keys and values are cached. The tokens that all prompts share, such as the first
turn of a chat template, are computed once for each condition and copied to its rows. Each later step computes one token
for each row, and rows leave the batch when they are finished.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.generation import logits_process as processors

from mechheads.engine.memory import tokens_in_flight
from mechheads.engine.rows import shared_start
from mechheads.limits import Limits
from mechheads.model.model import Model
from mechheads.model.parts import Blocks, mask_of
from mechheads.progress import Bar
from mechheads.prompts.tokens import Tokens

_WORTH_SHARING = 128
"""Shared tokens are computed in a pass of their own if this saves at least this many tokens."""

_FOLLOWED: dict[str, Callable[..., Any]] = {
    "repetition_penalty": lambda penalty, device: processors.RepetitionPenaltyLogitsProcessor(penalty),
    "no_repeat_ngram_size": lambda size, device: processors.NoRepeatNGramLogitsProcessor(size),
    "suppress_tokens": processors.SuppressTokensLogitsProcessor,
}
"""The logits processor of each generation setting that is followed, from the setting's value and a device."""
_NEUTRAL = (None, 0, 1, [])
"""Values of these settings that change nothing."""


def _own_settings(model: Model) -> dict[str, Any]:
    """The model's own generation settings that are followed, without values that change nothing."""
    settings = getattr(getattr(model.model, "original_model", None), "generation_config", None)
    values = {name: getattr(settings, name, None) for name in _FOLLOWED}
    return {name: value for name, value in values.items() if value not in _NEUTRAL}


Choose = Callable[[Float[Tensor, "row d_vocab"], Int[Tensor, " row"], int], Int[Tensor, " row"]]
"""``(logits, prompt of each row, step) -> token of each row``."""


class Columns:
    """Cached keys and values of every layer, a column for each position; later tokens overwrite a row's padding."""

    def __init__(self, rows: int, pos: int) -> None:
        self._size = rows, pos
        self._cached: dict[int, tuple[Tensor, Tensor]] = {}

    def place(self, first: int, at: Int[Tensor, "row pos"]) -> None:
        """Choose where ``update`` writes: the rows from ``first`` on, at these positions."""
        self._rows, self._width = slice(first, first + len(at)), int(at.max()) + 1
        self._index = torch.arange(first, first + len(at), device=at.device)[:, None], at

    def update(self, k: Tensor, v: Tensor, layer: int, *_: Any) -> tuple[Tensor, Tensor]:
        if layer not in self._cached:
            rows, pos = self._size
            self._cached[layer] = (
                k.new_zeros(rows, k.shape[1], pos, k.shape[3]),
                v.new_zeros(rows, v.shape[1], pos, v.shape[3]),
            )
        keys, values = self._cached[layer]
        row, at = self._index
        keys[row, :, at] = k.transpose(1, 2)
        values[row, :, at] = v.transpose(1, 2)
        return keys[self._rows, :, : self._width], values[self._rows, :, : self._width]

    def move(self, source: Int[Tensor, " row"], target: Int[Tensor, " row"], width: int | None = None) -> None:
        """Copy rows, or only their first ``width`` positions, to other rows."""
        for pair in self._cached.values():
            for tensor in pair:
                tensor[target, :, :width] = tensor[source, :, :width]


class Batch:
    """One batch of rows, each a prompt under a condition; the i-th of the ``live`` rows is row i of the columns."""

    def __init__(
        self, model: Model, tokens: Tokens, prompt: Sequence[int], condition: Sequence[int], new: int, limits: Limits
    ) -> None:
        self.model, self._new, self._limits = model, new, limits
        self.prompt = torch.tensor(prompt, device=model.device)
        self.condition = torch.tensor(condition, device=model.device)
        self.start = tokens.lengths[self.prompt]
        self.end = self.start.clone()
        self.pos = tokens.ids.shape[1] + new
        self.ids = torch.nn.functional.pad(tokens.ids[self.prompt], (0, new))
        self.ended = torch.zeros_like(self.prompt, dtype=torch.bool)
        # the last state of each row, after ``seen`` tokens
        self.state = torch.zeros(len(prompt), model.d_model, dtype=model.dtype, device=model.device)
        self.seen = torch.zeros_like(self.start)
        self.live = torch.arange(len(prompt), device=model.device)
        self.present: dict[int, Tensor] = {}
        self.passing = self.live, self.start[:, None]
        self._columns = None if model.backend.layout == "whole" else Columns(len(prompt), self.pos)
        self._settings = _own_settings(model)

    def rows_of(self, condition: int) -> Int[Tensor, " row"] | None:
        """The rows of a condition in the current forward pass; None if it has none."""
        return self.present.get(condition)

    def run(self, choose: Choose, ends: Int[Tensor, " end"], bar: Bar) -> None:
        """Write until every row is finished."""
        for step in range(self._new):
            if self._columns is not None and step:
                final = self._next(self._columns)
            else:
                shared = 0 if self._columns is None else self._share(self._columns)
                final = self._filled(self.live, shared, self.end[self.live] - 1)
            self.state[self.live], self.seen[self.live] = final.detach(), self.end[self.live]
            logits = self.model.unembed(final)
            if logits.isnan().any():
                raise ValueError(
                    f"the logits of new token {step} are not numbers (NaN): a change of the model gives values out of "
                    f"range, or {self.model.dtype} does not hold its activations"
                )
            if self._settings:
                logits = self._processed(logits)
            token = choose(logits, self.prompt[self.live], step)
            ended = torch.isin(token, ends)
            going = self.live[~ended]
            self.ids[going, self.end[going]] = token[~ended]
            self.end[going] += 1
            self.ended[self.live[ended]] = True
            bar.update(len(going) + int(ended.sum()) * (self._new - step))
            if ended.any():
                self._leave(ended)
            if not len(self.live):
                return

    def texts(self) -> list[tuple[list[int], list[int]]]:
        """For each row of the current forward pass, its tokens so far and the positions that the pass computes."""
        rows, at = self.passing
        each = zip(self.ids[rows].tolist(), self.end[rows].tolist(), at.tolist(), strict=True)
        return [(ids[:end], [pos for pos in positions if pos < end]) for ids, end, positions in each]

    def written(self) -> list[tuple[tuple[int, ...], bool]]:
        """For each row, the new ids so far and whether an end token was written."""
        rows = zip(self.ids.tolist(), self.start.tolist(), self.end.tolist(), self.ended.tolist(), strict=True)
        return [(tuple(ids[start:end]), ended) for ids, start, end, ended in rows]

    def _processed(self, logits: Float[Tensor, "live d_vocab"]) -> Float[Tensor, "live d_vocab"]:
        """The logits as the model's own generation settings change them, row by row because texts differ in length."""
        each = processors.LogitsProcessorList(
            _FOLLOWED[name](value, logits.device) for name, value in self._settings.items()
        )
        rows = zip(self.live.tolist(), logits.float(), strict=True)
        return torch.cat([each(self.ids[row : row + 1, : int(self.end[row])], scores[None]) for row, scores in rows])  # pyright: ignore

    def _leave(self, ended: Bool[Tensor, " live"]) -> None:
        """Drop finished rows, and move the last unfinished rows to their indices in the columns."""
        left = len(ended) - int(ended.sum())
        places, movers = ended[:left].nonzero()[:, 0], (~ended[left:]).nonzero()[:, 0] + left
        if self._columns is not None:
            self._columns.move(movers, places)
        self.live[places] = self.live[movers]
        self.live = self.live[:left]

    def _share(self, columns: Columns) -> int:
        """The number of first tokens that all rows share and now have in their columns; 0 if sharing saves little."""
        conditions, of_row = self.condition.unique(return_inverse=True)
        shared = min(shared_start(self.ids), int(self.end.min()) - 1)
        if shared * (len(of_row) - len(conditions)) < _WORTH_SHARING:
            return 0
        first = (of_row == torch.arange(len(conditions), device=of_row.device)[:, None]).long().argmax(1)
        self._filled(first, 0, torch.full_like(first, shared - 1))
        columns.move(of_row, torch.arange(len(of_row), device=of_row.device), shared)
        return shared

    def _filled(self, rows: Int[Tensor, " row"], start: int, last: Int[Tensor, " row"]) -> Float[Tensor, "row d_model"]:
        """The final state at each row's last position, some rows at a time; fills the columns from ``start`` on."""
        tokens = tokens_in_flight(self.model, max(1, self._limits.memory // 4), self.pos, self._limits)
        each = max(1, tokens // (int(last.max()) + 1 - start))
        finals: list[Tensor] = []
        for some, end in zip(rows.split(each), last.split(each), strict=True):
            at = torch.arange(start, int(end.max()) + 1, device=rows.device).expand(len(some), -1)
            if self._columns is not None:
                self._columns.place(sum(map(len, finals)), at)
            residual, blocks = self.model.backend.embed(self.ids[some, : int(end.max()) + 1])
            masks = None
            if start:
                residual, blocks = residual[:, start:], self.model.backend.blocks_at(at)
                masks = self._masks(at)
            self.passing = some, at
            finals.append(self._finish(self._through(some, residual, blocks, masks), end - start))
        return torch.cat(finals)

    def _next(self, columns: Columns) -> Float[Tensor, "live d_model"]:
        """The final state at each row's last token, from that token and the cached keys and values."""
        last = self.end[self.live] - 1
        columns.place(0, last[:, None])
        residual = _take(self.model.backend.embed(self.ids[self.live, : int(last.max()) + 1])[0], last)
        blocks = self.model.backend.blocks_at(last[:, None])
        self.passing = self.live, last[:, None]
        residual = self._through(self.live, residual, blocks, self._masks(last[:, None]))
        return self._finish(residual, torch.zeros_like(last))

    def _through(
        self,
        rows: Int[Tensor, " row"],
        residual: Float[Tensor, "row pos d_model"],
        blocks: Blocks,
        masks: Sequence[Tensor] | None = None,
    ) -> Float[Tensor, "row pos d_model"]:
        condition = self.condition[rows]
        self.present = {i: (condition == i).nonzero()[:, 0] for i in condition.unique().tolist()}
        for layer in range(self.model.n_layers):
            residual = blocks(layer, residual, self._columns, None if masks is None else masks[layer])
        return residual

    def _finish(
        self, residual: Float[Tensor, "row pos d_model"], at: Int[Tensor, " row"]
    ) -> Float[Tensor, "row d_model"]:
        return self.model.backend.finish(_take(residual, at))[:, 0]

    def _masks(self, at: Int[Tensor, "row pos"]) -> list[Float[Tensor, "row 1 pos key"]] | None:
        """For each layer, a mask of the columns that each token sees; None if the backend makes its own."""
        if self.model.backend.layout != "queries":
            return None
        masks: dict[int, Tensor] = {}
        layers = [self.model.backend.visible(layer, self.pos) for layer in range(self.model.n_layers)]
        for visible in layers:
            if id(visible) not in masks:
                masks[id(visible)] = mask_of(visible[at, : int(at.max()) + 1][:, None], self.model.dtype)
        return [masks[id(visible)] for visible in layers]


def _take(stream: Float[Tensor, "row pos d_model"], at: Int[Tensor, " row"]) -> Float[Tensor, "row 1 d_model"]:
    """One position of each row."""
    return stream.gather(1, at[:, None, None].expand(-1, 1, stream.shape[-1]))
