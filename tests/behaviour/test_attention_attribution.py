"""The parts of a head's score for a key: they sum to it, and each is what a plain computation gives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mechheads as mh
from mechheads.behaviour.frozen import FrozenRun, ScoringBlock
from support.blank import Blank
from support.levels import few
from support.micro import FRANCE, MOVED_FRANCE, micro  # noqa: F401
from support.releases import TRANSFORMERLENS_4, only_on_4
from support.tiny_families import build
from support.weight_surgery import load

TEXTS = [" The capital of France is", " The capital of Spain is the big", " When John and Mary went"]
ROWS = [[10, 20, 30, 40, 50, 60, 70], [11, 22, 33, 44, 55]]
EXACT = ("gpt2", "llama", "qwen3", "gemma2", "gpt-neox", "gpt-oss", "mixtral", "opt", "gpt-j", "mistral", "llama3-rope")
EXACT_ON_4 = ("bloom", "cohere-norms", "cohere2", "falcon-7b", "falcon-alibi", "gemma3", "gpt-bigcode", "gpt-neo")
EXACT_ON_4 += (
    "granite",
    "llama-wide",
    "llama-yarn",
    "mpt",
    "olmo2-mha",
    "phi3-longrope",
    "stablelm-parallel",
)
EXACT_ON_4 += ("afmoe", "exaone4", "glm4", "nemotron", "qwen2-windows", "vaultgemma", "xglm")
ALWAYS = ("gpt2", "qwen3", "gemma2", "bloom", "gpt-oss", "falcon-7b")


def everything(scores: mh.HeadScores) -> np.ndarray:
    """The sum of all parts of one side [prompt]."""
    data = scores.dataset
    heads = np.nansum(data["values"].values, axis=tuple(range(data["values"].ndim - 1)))
    names = ("embedding", "position_embedding", "constant", "position_bias")
    return heads + (data["mlp"] + data["bias"]).sum("layer").values + sum(data[name].values for name in names)


def own_total(pattern: Tensor, key: int) -> float:
    """The score of a key minus that of the others, from the pattern of its query [key]."""
    p = pattern.double()
    keys = [k for k in range(len(p)) if k != key and p[k] > 0]
    weight = {k: float(p[k] / sum(p[i] for i in keys)) for k in keys}
    return math.log(p[key]) - sum(weight[k] * math.log(p[k]) for k in keys)


@pytest.mark.parametrize("name", few((*EXACT, *EXACT_ON_4) if TRANSFORMERLENS_4 else EXACT, *ALWAYS))
def test_parts_of_both_sides_sum_to_the_score_that_gives_the_pattern(name, tmp_path):
    build(name, tmp_path / name)
    model = mh.load(tmp_path / name)
    for head, key in (("L2H1", -1), ("L1H3", -2), ("L0H2", -1)):
        query, key = (-1, key) if key == -2 else (3, 2)
        why = mh.behaviour.attention_attribution(model, ROWS, head, query=query, key=key)
        total = why.query.dataset["total"].values
        for side in (why.query, why.key):
            np.testing.assert_allclose(side.dataset["total"], total)
            np.testing.assert_allclose(everything(side), total, atol=1e-9)
        in_stream = (total - why.query.dataset["position_bias"].values).mean()
        np.testing.assert_allclose(why.table["score"].sum(), in_stream, atol=1e-4)
        if name in ("gemma2", "vaultgemma"):  # a pattern does not show scores before a soft cap
            continue
        pattern = model.cache(ROWS).pattern[head]
        for i, row in enumerate(ROWS):
            at, j = query % len(row), key % len(row)
            assert total[i] == pytest.approx(own_total(pattern[i, at, : at + 1], j), abs=1e-4)
            assert why.key.dataset["attention"].values[i] == pytest.approx(float(pattern[i, at, j]), abs=1e-5)


@only_on_4
@pytest.mark.parametrize("name", few(("hunyuan", "llama4", "nanochat", "olmo"), "hunyuan", "olmo"))
def test_a_norm_after_the_rotation_and_a_clip_are_refused(name, tmp_path):
    build(name, tmp_path)
    with pytest.raises(ValueError, match="does not support attention_attribution: scores differ by"):
        mh.behaviour.attention_attribution(mh.load(tmp_path), ROWS, "L2H1", query=3, key=2)


def test_a_wrong_scale_is_refused(llama, monkeypatch):
    right = ScoringBlock.scale.func
    monkeypatch.setattr(ScoringBlock, "scale", property(lambda block: 1.2 * right(block)))
    with pytest.raises(ValueError, match="scores differ by"):
        mh.behaviour.attention_attribution(llama, TEXTS, "L2H1", key=1)


class Plain:
    """The tiny llama in float64 with plain transformers: streams, and what each head and MLP adds to them."""

    def __init__(self, folder: Any, ids: list[int]) -> None:
        self.model = load(folder).double().eval()
        layers = self.model.model.layers
        seen: dict[Any, Tensor] = {}
        watched = [*(layer.self_attn.o_proj for layer in layers), *layers]
        hooks = [m.register_forward_pre_hook(lambda m, given: seen.update({m: given[0][0].detach()})) for m in watched]
        hooks += [
            layer.mlp.register_forward_hook(lambda m, given, out: seen.update({m: out[0].detach()})) for layer in layers
        ]
        self.model(torch.tensor([ids]))
        for hook in hooks:
            hook.remove()
        self.streams = [seen[layer] for layer in layers]
        self.parts = {"embedding": self.streams[0]}
        for at, layer in enumerate(layers):
            W_O = layer.self_attn.o_proj.weight.detach()
            for head in range(4):
                some = slice(8 * head, 8 * head + 8)
                self.parts[f"L{at}H{head}"] = seen[layer.self_attn.o_proj][:, some] @ W_O[:, some].T
            self.parts[f"L{at}.mlp"] = seen[layer.mlp]

    def side(self, which: str, layer: int, head: int, pos: int, part: Tensor) -> Tensor:
        """What a part of the stream adds to q or k of a head at a position: norm, matrix and rotation written out."""
        block, x = self.model.model.layers[layer], self.streams[layer][pos]
        size = (x.square().mean() + block.input_layernorm.variance_epsilon).rsqrt()
        given = part[pos] * size * block.input_layernorm.weight.detach()
        stored = head if which == "q" else head // 2
        weight = getattr(block.self_attn, f"{which}_proj").weight.detach()[8 * stored : 8 * stored + 8]
        v, turned = weight @ given, torch.zeros(8, dtype=torch.float64)
        for i in range(4):
            angle = pos / 10_000 ** (2 * i / 8)
            turned[i] = v[i] * math.cos(angle) - v[i + 4] * math.sin(angle)
            turned[i + 4] = v[i + 4] * math.cos(angle) + v[i] * math.sin(angle)
        return turned

    def split(self, layer: int, head: int, query: int, key: int) -> tuple[dict[str, float], dict[str, float]]:
        """The part of everything in the score of a head for a key, minus that of the other keys, for both sides."""
        ahead = {n: part for n, part in self.parts.items() if n == "embedding" or int(n[1]) < layer}
        stream = self.streams[layer]
        q = self.side("q", layer, head, query, stream)
        ks = [self.side("k", layer, head, pos, stream) for pos in range(query + 1)]
        p = torch.stack([q @ k / 8**0.5 for k in ks]).softmax(0)
        weights = [1.0 if pos == key else -float(p[pos] / (1 - p[key])) for pos in range(query + 1)]
        of_query, of_key = {}, {}
        for name, part in ahead.items():
            mine = self.side("q", layer, head, query, part)
            of_query[name] = sum(float(w * mine @ k) for w, k in zip(weights, ks, strict=True)) / 8**0.5
            theirs = [self.side("k", layer, head, pos, part) for pos in range(query + 1)]
            of_key[name] = sum(float(w * q @ k) for w, k in zip(weights, theirs, strict=True)) / 8**0.5
        return of_query, of_key


def test_each_part_is_what_loops_over_plain_transformers_give(tiny, llama):
    ids = llama.tokenizer(TEXTS[1]).input_ids
    wanted = Plain(tiny("llama"), ids).split(2, 1, 5, 2)
    why = mh.behaviour.attention_attribution(llama, [ids], "L2H1", query=5, key=2)
    for side, parts in zip(("query", "key"), wanted, strict=True):
        found = why.parts(side).set_index("part")["score"].to_dict()
        assert found.keys() == parts.keys()
        for name, value in parts.items():
            assert found[name] == pytest.approx(value, abs=1e-5), (side, name)


def test_a_model_worked_out_by_hand(micro):
    """ " is" has the query 1, and " France" alone has a key, ln 3: L0H0's score is ln 3 above that of the others."""
    why = mh.behaviour.attention_attribution(micro, [" the France is"], "L0H0", key=1)
    assert why.query.dataset["total"].item() == pytest.approx(math.log(3), abs=1e-4)
    assert why.key.dataset["embedding"].item() == pytest.approx(math.log(3), abs=1e-4)
    assert why.key.dataset["attention"].item() == pytest.approx(3 / 5, abs=1e-4)


def test_composed_keys_worked_out_by_hand(tmp_path):
    """L0H0 moves France to all tokens, L1H0 reads half of it as its key: the key gets the difference of what was moved.

    L0H0 looks everywhere alike: z is 0, 1/2 and 1/3 of France. Keys of L1H0 are 4 z / 2, its query is 1.
    """
    blank = Blank()
    with torch.no_grad():
        blank.embedding[:, 3] = 1
        blank.embedding[blank.token(" France"), FRANCE] = 1
        first, second = blank.attention
        first.v_proj.weight[0, FRANCE] = 1
        first.o_proj.weight[MOVED_FRANCE, 0] = 1
        second.q_proj.weight[1, 3] = 1
        second.k_proj.weight[1, MOVED_FRANCE] = 4
    model = blank.load(tmp_path)
    why = mh.behaviour.attention_attribution(model, [" the France is"], "L1H0", key=1, against=0)
    assert why.key["L0H0"]["score"] == pytest.approx(1, abs=1e-4)
    assert why.query.dataset["embedding"].item() == pytest.approx(1, abs=1e-4)
    pair = why.table.query("query == 'embedding' and key == 'L0H0'")
    assert pair["score"].item() == pytest.approx(1, abs=1e-4)


def test_contrasts_are_differences(llama):
    one, two, three = (
        mh.behaviour.attention_attribution(llama, TEXTS, "L2H1", key=key, against=against).key.dataset["values"]
        for key, against in ((0, 1), (1, 2), (0, 2))
    )
    np.testing.assert_allclose(one + two, three, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": 7}, r"key: token 7, but the shortest prompt has \d tokens"),
        ({"key": "lest"}, "key: position 'lest'; these prompts have last .* Did you mean \"last\""),
        ({"key": 3, "query": 2}, "key is token 3 of prompt 0, which comes after the query, token 2"),
        ({"key": 2, "against": 2}, "prompt 0: key and against are the same token"),
        ({"key": 0, "query": 0}, "prompt 0: the query is the first token"),
        ({"key": 1.5}, r"key is 1\.5; it must be a whole number"),
    ],
)
def test_bad_arguments_are_errors_before_the_model_runs(options, said, llama, monkeypatch):
    monkeypatch.setattr(FrozenRun, "of", lambda *_, **__: pytest.fail("the model ran"))
    with pytest.raises(ValueError, match=said):
        mh.behaviour.attention_attribution(llama, TEXTS, "L2H1", **options)


@only_on_4
def test_a_key_that_a_window_hides_is_an_error(loaded):
    with pytest.raises(ValueError, match="key is token 0 of prompt 0, which L2H1 does not see from token 4"):
        mh.behaviour.attention_attribution(loaded("gemma3"), TEXTS[:1], "L2H1", query=4, key=0)
