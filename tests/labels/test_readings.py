"""What heads are given of a token, and the scores of each way, against loops over plain transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import mechheads as mh
from mechheads.labels.relations import Relation
from support.levels import architectures, few
from support.texts import WORD_PAIRS

WORDS = Relation("words", "Knowledge", WORD_PAIRS)
NAMES = ("gpt2", "llama", "neox", "gemma", "gemma3")
ARCHITECTURES = architectures(*NAMES)
BACKENDS: dict[str, Any] = {"gemma3": "bridge"}
"""HookedTransformer never learnt Gemma 3."""
K = 60


class Plain:
    """The three readings by transformers' own modules, a token and an opening at a time."""

    def __init__(self, folder: Path, name: str) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
        self.trunk = getattr(self.model, {"gpt2": "transformer", "neox": "gpt_neox"}.get(name, "model"))
        self.blocks = self.trunk.h if name == "gpt2" else self.trunk.layers
        self.name, self.starts = name, name in ("llama", "gemma", "gemma3")

    def before(self, layer: int) -> Any:
        return getattr(self.blocks[layer], "ln_1" if self.name == "gpt2" else "input_layernorm")

    def after(self, layer: int) -> torch.Tensor:
        """The scale of the norm after attention."""
        if self.name not in ("gemma", "gemma3"):
            return torch.ones(32)
        return 1 + self.blocks[layer].post_attention_layernorm.weight

    def scale(self, norm: Any) -> torch.Tensor:
        return norm.weight + (1 if self.name in ("gemma", "gemma3") else 0)

    def first_mlp(self, embedded: torch.Tensor) -> torch.Tensor:
        name = {"gpt2": "ln_2", "gemma": "pre_feedforward_layernorm", "gemma3": "pre_feedforward_layernorm"}
        block = self.blocks[0]
        return block.mlp(getattr(block, name.get(self.name, "post_attention_layernorm"))(embedded))

    def token(self, word: str) -> int:
        return self.tokenizer(f" {word}", add_special_tokens=False)["input_ids"][0]

    def given(self, word: str, layer: int, reading: str, norm: str) -> list[torch.Tensor]:
        """What W_V of a layer multiplies, once an opening."""
        token = self.token(word)
        scale = self.scale(self.before(layer)) if norm == "folded" else 1.0
        if reading == "carried":
            found = []
            for opening in ("The", "and", "\n"):
                ids = [*self.tokenizer(opening, add_special_tokens=False)["input_ids"], token]
                ids = [self.tokenizer.bos_token_id, *ids] if self.starts else ids
                states = self.model(torch.tensor([ids]), output_hidden_states=True).hidden_states
                found.append(self.before(layer)(states[layer])[0, -1])
            return found
        embedded = self.model.get_input_embeddings().weight[[token]]
        return [scale * (self.first_mlp(embedded) if layer and reading == "first_mlp" else embedded)[0]]


@torch.no_grad()
def rows(model: mh.Model, plain: Plain, layer: int, reading: str, norm: str) -> torch.Tensor:
    """The row of M of each pair's source, for each head of a layer [head, pair, d_vocab], in float64."""
    W_U, found = model.W_U.double(), []
    if norm == "folded":
        final = plain.trunk.norm if hasattr(plain.trunk, "norm") else getattr(plain.trunk, "ln_f", None)
        final = plain.trunk.final_layer_norm if final is None else final
        W_U = torch.diag(plain.scale(final).double()) @ W_U
    for source, _ in WORD_PAIRS:
        x = torch.stack(plain.given(source, layer, reading, norm)).mean(0).double()
        written = (x @ model.W_V[layer].double())[:, None] @ model.W_O[layer].double()
        found.append((written * plain.after(layer).double() if norm == "folded" else written) @ W_U)
    return torch.cat(found, 1)


@pytest.mark.parametrize("norm", ["folded", "raw"])
@pytest.mark.parametrize("name", few(NAMES, "gemma", "gpt2", "llama"))
def test_scores_are_those_of_a_slow_loop(name: str, norm: Any, tiny: Callable[[str], Path]) -> None:
    model, plain = mh.load(tiny(name), backend=BACKENDS.get(name)), Plain(tiny(name), name)
    options: dict[str, Any] = {
        "k": K,
        "norm": norm,
        "min_pairs": 2,
        "min_effect": 1.0,
    }
    every = mh.relation_scores(model, WORDS, **options)
    assert every.provenance["no_reading"] == {}
    each = {
        reading: mh.relation_scores(model, WORDS, source=reading, **options)
        for reading in ("embedding", "first_mlp", "carried")
    }
    targets = [plain.token(target) for _, target in WORD_PAIRS]
    for layer in range(3):
        of_layer = {reading: rows(model, plain, layer, reading, norm) for reading in each}
        for head in range(4):
            phi, against, apart = {}, {}, {}
            for reading, scores in each.items():
                row = of_layer[reading][head]
                entries = row[:, targets]
                own = entries.diagonal()[:, None]
                hits = np.stack([(row > own).sum(1) < K, (row < own).sum(1) < K], axis=1)
                others = [(entries[i].sum() - entries[i, i]) / (len(WORD_PAIRS) - 1) for i in range(len(WORD_PAIRS))]
                contrast = (own[:, 0] - torch.stack(others)) / row.std(1, correction=0)
                apart[reading] = float(contrast.mean())
                assert scores.dataset["contrast"].values[layer, head, 0] == pytest.approx(apart[reading], abs=1e-4)
                found = float(every.dataset[f"contrast_{reading}"].values[layer, head, 0])
                assert found == pytest.approx(apart[reading], abs=1e-4)
                assert scores.values is not None
                assert scores.values.values[layer, head, 0].tolist() == hits[:, 0].tolist()
                phi[reading], against[reading] = hits.mean(0)
                assert every.dataset[f"phi_{reading}"].values[layer, head, 0] == pytest.approx(phi[reading])
            assert every.scores.values[layer, head, 0] == pytest.approx(max(phi.values()))
            assert every.dataset["suppression"].values[layer, head, 0] == pytest.approx(max(against.values()))
            assert every.dataset["contrast"].values[layer, head, 0] == pytest.approx(apart["carried"], abs=1e-4)
            best = str(every.dataset["reading"].values[layer, head, 0])
            assert best == "" if not max(phi.values()) else phi[best] == max(phi.values())
    assert len(set(every.dataset["reading"].values.ravel().tolist()) - {""}) == 3
