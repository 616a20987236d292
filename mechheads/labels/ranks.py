"""Test whether a token is among the k largest entries of a row of M, without sorting and mostly without the row.

A row of M = E' W_V W_O W_U has one entry for each token of the vocabulary. A token is among the k largest exactly
if fewer than k entries are larger than its own, so a few columns with k larger entries rule it out. The largest entries
of a head's rows are mostly in the same columns, its *hubs*, which are found from a few whole rows. This is faster if
there are many pairs; if there are few, the same random columns serve all heads. Only the pairs that these columns do
not rule out need whole rows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import groupby, pairwise
from time import process_time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechheads.limits import current

if TYPE_CHECKING:
    from mechheads.model.model import Model

HeadPath = tuple[Float[Tensor, "source d_head"], Float[Tensor, "d_head d_model"]]
"""The values that a head computes from sources, E'[s] W_V or z, and its W_O."""

_TRIED = (256, 1024, 4096)
"""The numbers of columns that are tried, one after the other."""
_MANY = 500
"""The number of pairs from which hubs are faster."""
_NEAR = 128
"""A head's hubs are the columns that are most often among this many largest or smallest entries of a row."""
_SAMPLED = 8
"""The number of rows, for each reading, from which a head's hubs are found."""
_FEW = 8
"""The dimensions that are computed first; a head that writes nothing to them rarely writes to others."""
_COLUMNS_AT_ONCE = 8192
_LARGE_VOCABULARY = 100_000
_BLOCK = 2**27
"""The largest size of a block of entries in bytes; less if the settings allow less."""
_WIDTH = 128
"""The columns of a block of a row: the k largest entries are in the k blocks whose largest entries are largest."""
_LONG_ROW = 2048
"""Rows of this many entries or more are counted one by one."""


def usual_k(k: int | None, copying: bool, d_vocab: int) -> int:
    """The k of a relation: ``k``, or the paper's if it is None or the relation copies."""
    usual = (25, 3) if d_vocab >= _LARGE_VOCABULARY else (10, 1)
    return usual[copying] if copying or k is None else k


class Ranks:
    """The ranks of target tokens in the rows that heads compute from source tokens; ``limit`` is the k of each pair."""

    def __init__(
        self,
        model: Model,
        source_of: Int[Tensor, " pair"],
        target: Int[Tensor, " pair"],
        limit: Int[Tensor, " pair"],
    ) -> None:
        self._model = model
        self._memory = min(_BLOCK, current().limits.memory)
        self._whole = model.dtype == torch.float32
        self.source_of, self.target, self.limit = source_of, target, limit
        tokens, self._own_column = torch.unique(target, return_inverse=True)
        self.tried = [size for size in _TRIED if 2 * size < model.d_vocab]  # columns before whole rows
        self.by_hubs = len(target) >= _MANY  # these are hubs of each head, not drawn at random for all
        drawn = torch.randperm(model.d_vocab, generator=torch.Generator().manual_seed(0))
        drawn = drawn[: 0 if self.by_hubs else max(self.tried, default=0)].to(target.device)
        columns, self._longest = self._targets(torch.cat([tokens, drawn]))
        self.own_columns, self.drawn_columns = columns.split([len(tokens), len(drawn)], dim=1)
        self._scratch: Tensor | None = None
        self._last: tuple[Tensor | None, int, Tensor] = None, 0, self.own_columns
        self._heads: dict[int, _Head] = {}

    def top(self, heads: Sequence[HeadPath]) -> tuple[Bool[Tensor, "head pair"], Bool[Tensor, "head pair"]]:
        """Whether each target is among the k largest, and among the k smallest, entries of its source's row."""
        self._find_hubs(heads)
        left_open = [self._open_pairs(values, W_O) for values, W_O in heads]
        largest = torch.zeros(len(heads), len(self.target), dtype=torch.bool, device=self.target.device)
        smallest = largest.clone()
        wanted = [(path, self.source_of[pairs]) for path, pairs in zip(heads, left_open, strict=True)]
        for head, some, entries in self._whole_rows(wanted):
            pairs = left_open[head][some]
            own, limit = entries.gather(1, self.target[pairs, None]), self.limit[pairs]
            largest[head, pairs] = count(entries, operator.gt, own) < limit
            smallest[head, pairs] = count(entries, operator.lt, own) < limit
        return largest, smallest

    def contrast(self, path: HeadPath, relations: Sequence[slice]) -> Float[Tensor, " relation"]:
        """How many standard deviations of its row a source raises its own target above the other pairs' targets: the
        mean over pairs. A source for which the head writes nothing counts as 0; a relation of one pair is NaN."""
        # c_i = (M[s_i, t_i] - mean over j != i of M[s_i, t_j]) / sd over the vocabulary of row s_i of M. No row is
        # computed: with C the covariance of W_U's columns, the variance of row s is e W_V W_O C W_O^T W_V^T e^T.
        values, W_O = path
        of_head = self._of_head(W_O)
        columns = of_head.own.T
        spread = ((values @ of_head.products) * values).sum(1).clamp_min(0).sqrt()
        writes, contrasts = of_head.writes(values), []
        for pairs in relations:
            sources, targets = self.source_of[pairs], columns[self._own_column[pairs]]
            of_pairs, n = values[sources], len(targets)
            own, total = (of_pairs * targets).sum(1), of_pairs @ targets.sum(0)
            apart = own - (total - own) / (n - 1) if n > 1 else torch.full_like(own, torch.nan)
            contrasts.append(torch.where(writes[sources] | apart.isnan(), apart / spread[sources], 0.0).mean())
        return torch.stack(contrasts)

    @cached_property
    def covariance(self) -> Float[Tensor, "d_model d_model"]:
        """The covariance of W_U's columns, from products in float32 and sums in float64."""
        size = self._model.d_model
        squares = torch.zeros(size, size, dtype=torch.float64, device=self.target.device)
        total = torch.zeros(size, dtype=torch.float64, device=self.target.device)
        for _, block in self._blocks():
            for some in block.split(_COLUMNS_AT_ONCE, dim=1):
                squares += (some @ some.T).double()
                total += some.double().sum(1)
        mean = total / self._model.d_vocab
        return (squares / self._model.d_vocab - mean[:, None] * mean).float()

    def _open_pairs(
        self, values: Float[Tensor, "source d_head"], W_O: Float[Tensor, "d_head d_model"]
    ) -> Int[Tensor, " pair"]:
        """The pairs that a few columns do not rule out, without those for which the head writes nothing."""
        of_head = self._of_head(W_O)
        pairs = of_head.writes(values)[self.source_of].nonzero()[:, 0]
        own, slack = self._own_entries(values, W_O), self._slack(values, W_O)
        for size in self.tried:
            few, columns = pairs.split(max(1, self._memory // (4 * size))), of_head.columns(size)
            pairs = torch.cat([pairs[:0], *(self._left_open(values, columns, own, slack, some) for some in few)])
        return pairs

    def hits(self, queries: Sequence[tuple[HeadPath, slice]]) -> Iterator[Bool[Tensor, "pair target"]]:
        """For heads and the pairs of a relation, whether each of its targets is among the k largest entries of each
        source's row. Queries with the same W_O are faster next to each other."""
        self._find_hubs([path for path, _ in queries])
        left_open = [
            some
            for _, of_head in groupby(queries, key=lambda each: id(each[0][1]))
            for some in self._open_sources(list(of_head))
        ]
        wanted = [(path, self.source_of[pairs][some]) for (path, pairs), some in zip(queries, left_open, strict=True)]
        for i, parts in groupby(self._whole_rows(wanted), key=lambda part: part[0]):
            pairs = queries[i][1]
            target, k = self.target[pairs], int(self.limit[pairs][0])
            table = torch.zeros(len(target), len(target), dtype=torch.bool, device=target.device)
            for _, some, entries in parts:
                edge = kth_largest(entries, min(k, entries.shape[1]))
                table[left_open[i][some]] = entries[:, target] >= edge
            yield table

    def _open_sources(self, queries: Sequence[tuple[HeadPath, slice]]) -> Iterator[Int[Tensor, " source"]]:
        """The sources that may have any target of the relation among their k largest entries, for one W_O.
        A source is left out if k entries of a few columns are larger than all targets' entries."""
        W_O = queries[0][0][1]
        of_head = self._of_head(W_O)
        for (values, _), pairs in queries:
            sources = self.source_of[pairs]
            rows, targets = values[sources], of_head.own[:, self._own_column[pairs]]
            slack, k = self._slack(rows, W_O), int(self.limit[pairs][0])
            most = ((rows @ targets).amax(1) + slack)[:, None]
            left = of_head.writes(values)[sources].nonzero()[:, 0]
            for size in self.tried:
                few, columns = left.split(max(1, self._memory // (4 * size))), of_head.columns(size)
                left = torch.cat(
                    [
                        left[:0],
                        *(some[count(rows[some] @ columns, operator.gt, most[some]) < k] for some in few),
                    ]
                )
            yield left

    def _whole_rows(
        self, wanted: Sequence[tuple[HeadPath, Int[Tensor, " source"]]]
    ) -> Iterator[tuple[int, slice, Float[Tensor, "row d_vocab"]]]:
        """Whole rows of M for sources of several heads, as many at once as memory allows: each index in ``wanted``, at
        least once, with a slice of its sources and their rows, which the next rows overwrite."""
        # Rows of many heads are multiplied with W_U together, because W_U may have to be converted each time.
        limit = max(1, self._memory // (4 * self._model.d_vocab))
        for pack in _packed([len(sources) for _, sources in wanted], limit):
            parts = []
            for i, some in pack:
                (values, W_O), sources = wanted[i]
                parts.append((values[sources[some]], W_O))
            entries = self._multiplied(parts).split([len(left) for left, _ in parts])
            for (i, some), rows in zip(pack, entries, strict=True):
                yield i, some, rows

    def _multiplied(self, parts: Sequence[HeadPath]) -> Float[Tensor, "row d_vocab"]:
        """values @ W_O @ W_U of all parts, stacked, in the cheaper order of products; neighbours may share a W_O."""
        products: list[tuple[Tensor, Tensor | None]] = []
        of_heads = [list(some) for _, some in groupby(parts, key=lambda part: id(part[1]))]
        merged = [(torch.cat([values for values, _ in some]), some[0][1]) for some in of_heads]
        for head_first, of_several in groupby(merged, key=lambda part: self._head_first(len(part[0]), part[1])):
            some = list(of_several)
            products += some if head_first else [(torch.cat([values @ W_O for values, W_O in some]), None)]
        lengths = [len(left) for left, _ in products]
        entries = self._room(sum(lengths), parts[0][0])
        for start, block in self._blocks() if len(entries) else ():
            into = entries[:, start : start + block.shape[1]].split(lengths)
            for (left, W_O), out in zip(products, into, strict=True):
                torch.mm(left, block if W_O is None else self._times(W_O, start, block), out=out)
        return entries

    def _times(self, W_O: Tensor, start: int, block: Tensor) -> Float[Tensor, "d_head columns"]:
        """W_O @ W_U's columns from ``start`` on; the last product is cached, as blocks of rows cut heads in two."""
        if not self._is_cached(W_O, start):
            self._last = W_O, start, multiply(W_O, block)
        return self._last[2]

    def _is_cached(self, W_O: Tensor, start: int) -> bool:
        return self._last[0] is W_O and self._last[1] == start

    def _head_first(self, rows: int, W_O: Float[Tensor, "d_head d_model"]) -> bool:
        """Whether rows @ (W_O @ columns) costs less than (rows @ W_O) @ columns."""
        d_head, d_model = W_O.shape
        return (self._whole and self._is_cached(W_O, 0)) or rows * d_model > d_head * (d_model + rows)

    def _room(self, rows: int, like: Tensor) -> Float[Tensor, "row d_vocab"]:
        """Memory for whole rows, which is reused because new pages cost as much time as a product."""
        if self._scratch is None or len(self._scratch) < rows:
            self._scratch = like.new_empty(rows, self._model.d_vocab)
        return self._scratch[:rows]

    def _blocks(self) -> Iterator[tuple[int, Float[Tensor, "d_model columns"]]]:
        """W_U in float32: all at once if it is stored in float32, otherwise as much as memory allows."""
        model = self._model
        step = model.d_vocab if self._whole else max(1, self._memory // (4 * model.d_model))
        for start in range(0, model.d_vocab, step):
            yield start, model.unembedding(start, min(start + step, model.d_vocab))

    def _targets(self, ids: Int[Tensor, " column"]) -> tuple[Float[Tensor, "d_model column"], Float[Tensor, ""]]:
        """Some columns of W_U, and the largest norm of all its columns, in one pass over it."""
        columns = torch.empty(self._model.d_model, len(ids), dtype=torch.float32, device=ids.device)
        longest = torch.zeros((), dtype=torch.float32, device=ids.device)
        for start, block in self._blocks():
            if not torch.isfinite(block).all():
                raise ValueError("W_U holds NaN or infinite numbers: the model's weights are damaged")
            inside, at = _inside(ids, start, block)
            columns[:, inside] = block[:, at]
            longest = torch.maximum(longest, block.norm(dim=0).max())
        return columns, longest

    def _hubs(self, heads: Iterable[tuple[Tensor, Int[Tensor, " column"]]]) -> list[Float[Tensor, "d_head column"]]:
        """Some columns of W_O @ W_U for each W_O, in one pass over W_U."""
        wanted = list(heads)
        products = [W_O.new_empty(len(W_O), len(ids)) for W_O, ids in wanted]
        for start, block in self._blocks():
            for (W_O, ids), into in zip(wanted, products, strict=True):
                inside, at = _inside(ids, start, block)
                cached = self._is_cached(W_O, start)
                into[:, inside] = self._times(W_O, start, block)[:, at] if cached else W_O @ block[:, at]
        return products

    def _of_head(self, W_O: Tensor) -> _Head:
        """The products of a head that several tests share."""
        if id(W_O) not in self._heads:
            self._heads[id(W_O)] = _Head(self, W_O)
        return self._heads[id(W_O)]

    def _find_hubs(self, paths: Sequence[HeadPath]) -> None:
        """Find the hubs of heads whose hubs are not known, and then forget those of other heads."""
        fresh = {id(W_O): W_O for _, W_O in paths if id(W_O) not in self._heads}
        if not fresh:
            return
        self._heads = {key: _Head(self, W_O) for key, W_O in fresh.items()}
        if not self.tried or not self.by_hubs:
            return
        place, d_vocab = {key: i for i, key in enumerate(fresh)}, self._model.d_vocab
        often = torch.zeros(len(fresh), d_vocab, dtype=torch.int32, device=self.target.device)
        some = [
            ((values, W_O), torch.linspace(0, len(values) - 1, min(_SAMPLED, len(values)), device=values.device).long())
            for values, W_O in paths
        ]
        if self._whole and len(fresh) == 1:
            self._times(paths[0][1], 0, self._model.unembedding(0, d_vocab))  # hubs, and whole rows later, use it
        for i, _, entries in self._whole_rows(some):
            for largest in (True, False):
                near = entries.topk(_NEAR, dim=1, largest=largest).indices
                often[place[id(paths[i][1])]] += torch.bincount(near.flatten(), minlength=d_vocab)
        ids = often.topk(self.tried[-1], dim=1).indices
        columns = self._hubs(zip(fresh.values(), ids, strict=True))
        for of_head, hubs in zip(self._heads.values(), columns, strict=True):
            of_head.hubs = hubs

    def _own_entries(self, values: Tensor, W_O: Tensor) -> Float[Tensor, " pair"]:
        columns = self._of_head(W_O).own.T
        step = max(1, self._memory // (8 * values.shape[1]))
        pairs = torch.arange(len(self.target), device=values.device).split(step)
        return torch.cat([(values[self.source_of[some]] * columns[self._own_column[some]]).sum(1) for some in pairs])

    def _slack(self, values: Tensor, W_O: Tensor) -> Float[Tensor, " source"]:
        """An upper bound on float32's error in an entry; targets closer than this are decided on the whole row."""
        return (
            2 * self._model.d_model * torch.finfo(torch.float32).eps * values.norm(dim=1) * W_O.norm() * self._longest
        )

    def _left_open(
        self, values: Tensor, columns: Float[Tensor, "d_head column"], own: Tensor, slack: Tensor, pairs: Tensor
    ) -> Int[Tensor, " pair"]:
        """The pairs that some columns of W_O W_U alone do not rule out on both sides."""
        sources, row = torch.unique(self.source_of[pairs], return_inverse=True)
        entries = (values[sources] @ columns)[row]
        entry, limit, near = own[pairs, None], self.limit[pairs], slack[self.source_of[pairs], None]
        larger, smaller = count(entries, operator.gt, entry + near), count(entries, operator.lt, entry - near)
        return pairs[(larger < limit) | (smaller < limit)]


class _Head:
    """Products of a head that several tests share; ``hubs``: W_O times its hubs' columns, the most frequent first."""

    def __init__(self, ranks: Ranks, W_O: Float[Tensor, "d_head d_model"]) -> None:
        self._ranks, self.W_O = ranks, W_O
        self.hubs: Tensor | None = None
        self._drawn: dict[int, Tensor] = {}
        self._writes: dict[int, tuple[Tensor, Tensor]] = {}

    def columns(self, size: int) -> Float[Tensor, "d_head size"]:
        """W_O times the first columns to be tried."""
        if self.hubs is not None:
            return self.hubs[:, :size]
        if size not in self._drawn:
            self._drawn[size] = self.W_O @ self._ranks.drawn_columns[:, :size]
        return self._drawn[size]

    @cached_property
    def own(self) -> Float[Tensor, "d_head token"]:
        """W_O times the columns of all targets."""
        return self.W_O @ self._ranks.own_columns

    @cached_property
    def products(self) -> Float[Tensor, "d_head d_head"]:
        """W_O C W_O^T, with C the covariance of W_U's columns."""
        return self.W_O @ self._ranks.covariance @ self.W_O.T

    def writes(self, values: Float[Tensor, "source d_head"]) -> Bool[Tensor, " source"]:
        """Whether the head writes anything for each source."""
        if id(values) not in self._writes:
            writes = ((values @ self.W_O[:, :_FEW]) != 0).any(1)
            writes[~writes] = ((values[~writes] @ self.W_O) != 0).any(1)
            self._writes[id(values)] = values, writes
        return self._writes[id(values)][1]


_FASTER: dict[tuple[torch.Size, torch.Size], Callable[[Tensor, Tensor], Tensor]] = {}
"""The function that multiplies matrices of each pair of shapes in this process."""


def multiply(
    left: Float[Tensor, "row inner"], right: Float[Tensor, "inner column"], clock: Callable[[], float] = process_time
) -> Float[Tensor, "row column"]:
    """The product by torch, or by NumPy if it was faster the first time, in CPU seconds, and gave the same bits.
    MKL is slow for thin products on some processors. Results never depend on the clock, so a resumed run repeats them.
    """
    if left.device.type != "cpu":
        return left @ right
    shapes = left.shape, right.shape
    if shapes in _FASTER:
        return _FASTER[shapes](left, right)
    times, results = [clock()], []
    for product in (torch.mm, _by_numpy):
        results.append(product(left, right))
        times.append(clock())
    faster = times[2] - times[1] < times[1] - times[0] and torch.equal(*results)
    _FASTER[shapes] = _by_numpy if faster else torch.mm
    return results[0]


def _by_numpy(left: Tensor, right: Tensor) -> Tensor:
    return torch.from_numpy(left.detach().numpy() @ right.detach().numpy())


def _packed(sizes: Sequence[int], limit: int) -> list[list[tuple[int, slice]]]:
    """Blocks of rows, cut so that they fill lists of ``limit`` rows one after the other; empty blocks occur too."""
    pieces: list[tuple[int, int, slice]] = []
    before = 0
    for i, size in enumerate(sizes):
        cuts = [0, *range(limit - before % limit, size, limit), size]
        pieces += [((before + start) // limit, i, slice(start, stop)) for start, stop in pairwise(cuts)]
        before += size
    return [[(i, some) for _, i, some in pack] for _, pack in groupby(pieces, key=lambda piece: piece[0])]


def _inside(
    ids: Int[Tensor, " column"], start: int, block: Float[Tensor, "d_model columns"]
) -> tuple[Bool[Tensor, " column"], Int[Tensor, " inside"]]:
    """A mask of the columns of W_U that are in a block that begins at ``start``, and their indices in it."""
    inside = (ids >= start) & (ids < start + block.shape[1])
    return inside, ids[inside] - start


def count(
    entries: Float[Tensor, "row column"],
    compare: Callable[[Any, Any], Any],
    own: Float[Tensor, "row 1"],
) -> Int[Tensor, " row"]:
    """In each row, the number of entries that are larger, or smaller, than the row's own entry.
    On a CPU, NumPy compares four times as fast as torch, and counts ten times as fast."""
    if entries.device.type != "cpu":
        return compare(entries, own).sum(1)
    compared = compare(entries.numpy(), own.numpy())
    if entries.shape[1] < _LONG_ROW:
        return torch.from_numpy(np.bitwise_count(np.packbits(compared, axis=1)).sum(1, dtype=np.int64))
    return torch.from_numpy(np.fromiter(map(np.count_nonzero, compared), np.int64, len(compared)))


def kth_largest(entries: Float[Tensor, "row column"], k: int) -> Float[Tensor, "row 1"]:
    """The k-th largest entry of each row."""
    n = entries.shape[1] // _WIDTH
    if n > k:
        whole, rest = entries.split([n * _WIDTH, entries.shape[1] - n * _WIDTH], dim=1)
        blocks = whole.unflatten(1, (n, _WIDTH))
        first = blocks.amax(-1).topk(k, dim=1).indices
        entries = torch.cat([blocks.take_along_dim(first[..., None], dim=1).flatten(1), rest], dim=1)
    return entries.topk(k, dim=1).values[:, -1:]
