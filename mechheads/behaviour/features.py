"""Where a token's attention could go: the keys of each behaviour, as masks over a window of tokens.

For a query at position q, the keys are

| behaviour | keys k |
|---|---|
| ``first`` | 0 |
| ``self`` | q |
| ``previous`` | q - 1 |
| ``duplicate`` | earlier positions with the token of q |
| ``induction`` | positions after an earlier copy of the token of q |
| ``delimiter`` | earlier punctuation and line ends |

Only queries that have such a key are counted. For the last four, keys lie between 1 and q - 1 (the *middle*), so that
neither the first token nor the token itself counts. The null of a behaviour is the same attention with the keys of each
query permuted: within the middle, or among all keys for ``first`` and ``self``. Its mean over all permutations is the
attention on these keys times the share of them that the behaviour has.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

BEHAVIOURS = ("first", "self", "previous", "duplicate", "induction", "delimiter")
_ALL_KEYS = 2
"""The first so many of them have all keys to choose from, the others the middle."""
_DELIMITER = re.compile(r"[\W_]+")


def delimiters(tokenizer: Any, size: int) -> Bool[Tensor, " token"]:
    """Which tokens consist of punctuation, spaces and line ends."""
    return _delimiters(tokenizer, size)


@lru_cache(maxsize=4)
def _delimiters(tokenizer: Any, size: int) -> Tensor:
    texts = tokenizer.batch_decode([[token] for token in range(min(size, len(tokenizer)))])
    found = torch.zeros(size, dtype=torch.bool)
    found[: len(texts)] = torch.tensor([_DELIMITER.fullmatch(text) is not None for text in texts])
    return found


def keys_of(
    ids: Int[Tensor, "window pos"], delimiter: Bool[Tensor, " token"]
) -> Bool[Tensor, "window behaviour pos pos"]:
    """The keys of each behaviour for each query."""
    n = ids.shape[1]
    position = torch.arange(n, device=ids.device)
    back = position[:, None] - position
    same = ids[:, :, None] == ids[:, None, :]
    after_copy = torch.zeros_like(same)
    after_copy[:, :, 1:] = same[:, :, :-1]
    middle = (back > 0) & (position >= 1)
    at = [back == position[:, None], back == 0, (back == 1) & middle, same & middle, after_copy & middle]
    at += [delimiter.to(ids.device)[ids][:, None, :] & middle]
    return torch.stack([mask.expand(len(ids), n, n) for mask in at], dim=1)


def weights_of(
    keys: Bool[Tensor, "window behaviour pos pos"],
) -> tuple[Float[Tensor, "window feature pos pos"], Bool[Tensor, "window behaviour"]]:
    """Weights whose products with a pattern, summed over queries and keys, are the behaviours and their nulls.

    Returns:
        the weights of every behaviour, then those of every null; and which behaviours a window has at all.
    """
    n = keys.shape[-1]
    position = torch.arange(n, device=keys.device)
    back = position[:, None] - position
    pools = torch.stack([back >= 0, (back > 0) & (position >= 1)])[
        [0] * _ALL_KEYS + [1] * (len(BEHAVIOURS) - _ALL_KEYS)
    ]
    count = keys.sum(-1)
    counted = (count > 0) & (position >= 2)
    of_query = counted / counted.sum(-1, keepdim=True).clamp_min(1)
    share = count / pools.sum(-1).clamp_min(1)
    own = keys * of_query[..., None]
    null = pools * (share * of_query)[..., None]
    return torch.cat([own, null.expand_as(own)], dim=1).float(), counted.any(-1)
