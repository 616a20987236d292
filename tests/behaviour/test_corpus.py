"""The package's own corpus of ordinary text."""

from __future__ import annotations

from mechheads.behaviour.windows import default_texts
from mechheads.data import folder


def test_the_corpus_has_texts_of_twelve_kinds_and_none_twice() -> None:
    kinds = {file.name: file.read_text(encoding="utf-8").split("\n----\n") for file in folder("corpus").iterdir()}
    assert len(kinds) == 12
    texts = [text for each in kinds.values() for text in each]
    assert len(set(texts)) == len(texts) and all(len(text) > 200 for text in texts)
    in_order = default_texts()
    turns = max(map(len, kinds.values()))
    expected = [kinds[name][turn] for turn in range(turns) for name in sorted(kinds) if turn < len(kinds[name])]
    assert [next(in_order) for _ in texts] == expected
