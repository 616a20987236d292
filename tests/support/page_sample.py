"""The sample that the browser tests of the explorer's page open: what Python sends of four layers of an atlas.

``PYTHONPATH=. python tests/support/page_sample.py FOLDER`` writes it anew from a saved atlas of the default model.
"""

from __future__ import annotations

import base64
import json
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mechheads.behaviour.examples import PARTS
from mechheads.explorer import contract
from mechheads.explorer.contract import to_json
from mechheads.explorer.payload import Payload, atlas_payload
from mechheads.heads import HeadId
from mechheads.results.scores import HeadScores
from mechheads.studies.atlas import Atlas

SAMPLE = Path(contract.__file__ or "").parent / "front" / "tests" / "fixtures" / "small.json"
LAYERS = (1, 23, 27, 29)
_WITH_TEXT = 4
"""The head of each layer whose card has text, so that the file stays small."""
_PARTS = (PARTS[0], PARTS[1], *PARTS[-2:])


def unblock(text: str) -> Any:
    """What a block of a page holds."""
    return json.loads(zlib.decompress(base64.b64decode(text)))


def sent(payload: Payload) -> dict[str, Any]:
    """What a page gets, as JSON: ``page``, and ``blocks`` by their ids."""
    return {"page": json.loads(to_json(payload.page)), "blocks": {k: unblock(v) for k, v in payload.blocks.items()}}


def of_layers(atlas: Atlas) -> Atlas:
    """An atlas of some layers of another, numbered from 0."""
    names = {f"L{layer}H{head}": f"L{i}H{head}" for i, layer in enumerate(LAYERS) for head in range(atlas.sizes[1])}

    def scores(whole: Any) -> Any:
        data = whole.dataset.isel(layer=list(LAYERS)).assign_coords(layer=np.arange(len(LAYERS)))
        if "receiver" in data:
            ends = [str(end).partition(".") for end in data["receiver"].values]
            kept = [i for i, (head, *_) in enumerate(ends) if head == "final" or head in names]
            renamed = ["".join((names.get(ends[i][0], "final"), *ends[i][1:])) for i in kept]
            data = data.isel(receiver=kept).assign_coords(receiver=renamed)
        return type(whole)(data)

    changed: dict[str, Any] = {}
    for name, part in vars(atlas).items():
        if isinstance(part, HeadScores):
            changed[name] = scores(part)
        elif name == "safety":
            changed[name] = {key: scores(value) for key, value in part.items()}
    if atlas.patterns is not None:
        first = atlas.patterns.table.head(1)
        kept = {part: getattr(atlas.patterns, part)[list(LAYERS)][:, :, : first["stop"][0]] for part in _OF_PATTERNS}
        changed["patterns"] = replace(atlas.patterns, table=first, **kept)
    if atlas.examples is not None:
        examples, rows = atlas.examples, []
        for head in (f"L{layer}H{_WITH_TEXT}" for layer in LAYERS):
            mine = examples.table[examples.table["head"] == head]
            rows += [mine.index[mine["part"] == part][0] for part in _PARTS]
        table = examples.table.loc[rows].reset_index(drop=True)
        windows, number = np.unique(table["window"], return_inverse=True)
        table = table.assign(head=table["head"].map(names), window=number)
        kept = {part: getattr(examples, part)[rows] for part in ("keys", "weights", "first", "sizes")}
        words, tokens = np.unique(examples.tokens[windows], return_inverse=True)
        tokens = np.where(examples.tokens[windows] < 0, -1, tokens.reshape(len(windows), -1) - (words[0] < 0))
        text = tuple(examples.words[word] for word in words if word >= 0)
        changed["examples"] = replace(examples, table=table, words=text, tokens=tokens, **kept)
    if atlas.circuit is not None:
        order = {
            which: tuple(HeadId.parse(names[str(head)]) for head in heads if str(head) in names)
            for which, heads in atlas.circuit.order.items()
        }
        few = min(map(len, order.values()))
        table = atlas.circuit.table[atlas.circuit.table["k"] <= few].reset_index(drop=True)
        changed["circuit"] = replace(atlas.circuit, order=order, table=table, values=atlas.circuit.values[: len(table)])
    return replace(atlas, model="small", **changed)


_OF_PATTERNS = ("keys", "weights", "first")


def shortened(content: Any, name: str = "") -> Any:
    """The same with four digits of each number, and twelve pairs of each relation."""
    if isinstance(content, float):
        return float(f"{content:.4g}")
    if isinstance(content, list):
        return [shortened(each) for each in (content[:12] if name == "pairs" else content)]
    if isinstance(content, dict):
        return {key: shortened(value, key) for key, value in content.items()}
    return content


if __name__ == "__main__":
    content = shortened(sent(atlas_payload(of_layers(Atlas.load(sys.argv[1])))))
    SAMPLE.write_text(json.dumps(content, separators=(",", ":"), ensure_ascii=True) + "\n", encoding="utf-8")
