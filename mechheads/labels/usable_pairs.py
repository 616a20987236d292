"""Which pairs of a relation can be scored with a model's vocabulary, and why the others cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from mechheads.labels.relations import Relation
from mechheads.messages.notices import warn
from mechheads.prompts.encoding import piece_ids, single_token

LEAST_PAIRS = 30
"""How many usable pairs a relation needs to label heads, and one of the package's to be scored."""
Targets = Literal["single", "first"]
"""Whether a target must be one token, or is represented by its first token."""


@dataclass(eq=False)
class UsablePairs:
    """A relation and its pairs that can be scored."""

    relation: Relation
    pairs: list[tuple[str, str]] = field(default_factory=list)
    tokens: list[tuple[int | None, int]] = field(default_factory=list)  # None for a source of several
    by_first: list[bool] = field(default_factory=list)  # whether the id is only the first token of the target
    lost: dict[str, list[str]] = field(default_factory=dict)  # pairs by the reason why they are left out
    explained: dict[str, int] = field(default_factory=dict)  # single-token pairs by the rival that explains them
    scored: bool = True  # whether there are enough pairs

    def ledger(self) -> dict[str, Any]:
        """What was kept, what was lost and why, for a result's provenance."""
        counts = {"given": len(self.relation.pairs), "kept": len(self.pairs), "scored": self.scored, "lost": self.lost}
        return counts | ({"explained": self.explained} if self.explained else {})

    def by_rivals(self) -> str:
        """Which rivals explain how many pairs, to be appended to the number of pairs kept."""
        return "".join(f"; {name} explains {n}" for name, n in self.explained.items() if n)


def usable_pairs(
    relations: Sequence[Relation],
    tokenizer: Any,
    *,
    leading_space: bool = True,
    targets: Targets = "single",
    any_source: bool = False,
    named: bool = False,
    min_pairs: int | None = 0,
) -> list[UsablePairs]:
    """Find each relation's pairs whose words (with ``any_source`` only targets) are one token each and that no rival of
    the relation explains; those of fewer than ``min_pairs`` are not scored, by default 30, or 1 if ``named``."""
    if tokenizer is None:
        raise ValueError("model has no tokenizer to read relations with; give one: mh.wrap(model, tokenizer=...)")
    space = " " if leading_space else ""

    @cache
    def token(word: str) -> int | None:
        return single_token(space + word, tokenizer)

    found = []
    for relation in relations:
        usable = UsablePairs(relation, explained=dict.fromkeys(relation.explained, 0))
        explained = {name: set(pairs) for name, pairs in relation.explained.items()}
        for source, target in relation.pairs:
            ids, first = (token(source), token(target)), False
            if ids[1] is None and targets == "first":
                ids, first = (ids[0], piece_ids(space + target, tokenizer)[0]), True
            if (any_source or ids[0] is not None) and ids[1] is not None:
                if by := [name for name, pairs in explained.items() if (source, target) in pairs]:
                    usable.lost.setdefault(f"explained by {' and '.join(by)}", []).append(f"{source} -> {target}")
                    usable.explained |= {name: usable.explained[name] + 1 for name in by}
                    continue
                usable.pairs.append((source, target))
                usable.tokens.append((ids[0], ids[1]))
                usable.by_first.append(first)
                continue
            several = ["target"] if any_source else ["source"] * (ids[0] is None) + ["target"] * (ids[1] is None)
            reason = f"{' and '.join(several)} of several tokens"
            usable.lost.setdefault(reason, []).append(f"{source} -> {target}")
        if named and not any_source and not usable.pairs:
            raise _no_pair(usable, space, tokenizer)
        found.append(usable)
    _leave_short_out(found, min_pairs, named)
    return found


def in_vocabulary(relations: Sequence[Relation], tokenizer: Any) -> list[Relation]:
    """The relations with a pair that can be scored; if there are none, all, so that scoring them says why."""
    return [usable.relation for usable in usable_pairs(relations, tokenizer) if usable.pairs] or list(relations)


def _leave_short_out(everything: Sequence[UsablePairs], min_pairs: int | None, named: bool) -> None:
    """Mark which have enough pairs, and warn of those that have few."""
    least, short = (1 if named else LEAST_PAIRS) if min_pairs is None else min_pairs, []
    for usable in everything:
        n = len(usable.pairs)
        usable.scored = n >= least
        if not usable.scored:
            short.append(f"{usable.relation.name} ({n} of {len(usable.relation.pairs)}{usable.by_rivals()})")
        elif min_pairs is None and n < LEAST_PAIRS:
            warn(
                f"relation {usable.relation.name!r} has {n} pair{'s' * (n != 1)} of single tokens{usable.by_rivals()}: "
                f"its scores are shares of so few, so their intervals are wide; a label needs {LEAST_PAIRS}"
            )
    if short:
        message = f"relations with fewer than {least} single-token pairs are skipped: {', '.join(short)}"
        if len(short) == len(everything):
            raise ValueError(f"{message}; none is left. Give more pairs, or a smaller min_pairs")
        warn(message)


def _no_pair(usable: UsablePairs, space: str, tokenizer: Any) -> ValueError:
    split = [[piece_ids(space + word, tokenizer) for word in pair] for pair in usable.relation.pairs]
    closest = sorted(split, key=lambda ids: len(ids[0]) + len(ids[1]))[:5]
    rows = "".join(
        "\n  " + " -> ".join(str(tokenizer.convert_ids_to_tokens(word)) for word in pair) for pair in closest
    )
    return ValueError(
        f"relation {usable.relation.name!r} has no pair whose source and target are one token each in this "
        f"model's vocabulary{usable.by_rivals()}, so nothing can be scored. The {len(closest)} pairs with the fewest "
        f"tokens are:{rows}"
    )
