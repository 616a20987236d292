"""Retrieval scores against patterns read one by one, and planted heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import mechheads as mh
from benchmarks.truth.behaving import make_behaving
from mechheads.behaviour import retrieval_heads
from support.levels import ONE_FIRST
from support.oracles import activations, forward, name

ARCHITECTURES = ONE_FIRST

NEEDLES = (
    (" Paris is the", "big store of John", " Paris"),
    (" Rome is the", "small book of Mary", " Rome"),
    (" Madrid is the", "capital dog", " Madrid"),
)
TEXT = [" When John and Mary went to the store gave a book no I cannot help Sure" * 40]
QUICK: dict[str, Any] = {"n": 3, "length": 56, "needles": NEEDLES, "depths": (0.1, 0.5, 0.9)}


def find(ids: list[int], piece: list[int], stop: int) -> list[int]:
    return [i for i in range(stop) if ids[i : i + len(piece)] == piece]


@pytest.mark.usefixtures("short_questions")
def test_scores_are_those_of_patterns_read_one_by_one(small: mh.Model) -> None:
    seen: list[list[int]] = []
    run = small.backend.run

    def spy(ids: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        seen.append(ids[0].tolist())
        return run(ids, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small.backend, "run", spy)
        found = retrieval_heads(small, TEXT, **QUICK)
    assert len(seen) == 6 and found.dataset.sizes["prompt"] == 6
    assert found.dataset["cluster"].values.tolist() == ["0", "0", "1", "1", "2", "2"]
    assert found.dataset["depth"].values.tolist() == [0.1, 0.5, 0.1, 0.9, 0.5, 0.9]
    answers = {f"{start} {answer}": f" {answer}" for start, answer, _ in NEEDLES}
    told = [str(needle) for needle in found.dataset["needle"].values]
    values, control = np.zeros((2, small.n_layers, small.n_heads, 6))
    for prompt, ids in enumerate(seen):
        of = [small.tokenizer(answers[told[p]], add_special_tokens=False).input_ids for p in (prompt, prompt ^ 1)]
        end = len(ids) - len(of[0])
        assert end == 56 and ids[end:] == of[0]
        (own,), (other,) = (find(ids, each, end) for each in of)
        patterns = activations(small, torch.tensor([ids]))
        logits = forward(small, torch.tensor([ids]))[0]
        right = np.mean([int(logits[end - 1 + i].argmax()) == token for i, token in enumerate(of[0])])
        assert found.dataset["answered"].values[prompt] == pytest.approx(right)
        for layer, head in np.ndindex(small.n_layers, small.n_heads):
            for i, token in enumerate(of[0]):
                at = int(patterns[name(layer, "pattern")][0, head, end - 1 + i].argmax())
                values[layer, head, prompt] += own <= at < own + len(of[0]) and ids[at] == token
                wanted = of[1][min(i, len(of[1]) - 1)]
                control[layer, head, prompt] += other <= at < other + len(of[1]) and ids[at] == wanted
            values[layer, head, prompt] /= len(of[0])
            control[layer, head, prompt] /= len(of[0])
    np.testing.assert_allclose(found.dataset["values"].values, values)
    np.testing.assert_allclose(found.dataset["control"].values, control.mean(-1))
    np.testing.assert_allclose(found.dataset["excess"].values, (values - control).mean(-1))


def test_planted_induction_heads_retrieve_all_but_the_first_token() -> None:
    plant: Any = {"L0H1": "previous-token", "L2H3": "induction", "L1H2": "duplicate-token"}
    made = make_behaving(noise=0, plant=plant)
    tokenizer = made.model.tokenizer
    words = [word for word in sorted(tokenizer.vocab) if word.startswith("▁") and word[1:].isalpha()]
    words = [word[1:] for word in np.random.default_rng(0).permutation(words)]
    needles = [
        (" ".join(some[:2]), " ".join(some[2:6]), " ".join(some[6:8]))
        for some in (words[8 * i : 8 * i + 8] for i in range(4))
    ]
    used = {tokenizer.vocab[f"▁{word}"] for word in words[:32]}
    free = [token for token in range(len(tokenizer.all_special_ids), len(tokenizer)) if token not in used]
    texts = [[int(token) for token in np.random.default_rng(1).permutation(free)] for _ in range(20)]
    found = retrieval_heads(made.model, texts, n=14, length=80, needles=needles)
    assert found["L2H3"]["score"] == pytest.approx(3 / 4) and found["L2H3"]["q_value"] < 0.05
    others = np.delete(found.scores.values.ravel(), 2 * found.n_heads + 3)
    assert others.max() < 0.2
    assert found.dataset["control"].values.max() < 0.2
    assert found.dataset["attention"].values[2, 3] > 0.6
