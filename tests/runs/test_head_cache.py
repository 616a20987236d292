"""HeadCache: patterns, outputs, results, bytes, files and figures."""

# pyright: reportOptionalMemberAccess=false
from __future__ import annotations

import gc
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.runs.head_cache import cache_sizes
from mechheads.runs.head_tensor import LayerStore
from support.levels import ONE_FIRST

ARCHITECTURES = ONE_FIRST

TEXTS = [" The capital of France is", " When John and Mary went to the store", " dog"]
SITES = ("z", "pattern", "q", "k", "v", "resid_pre")


@pytest.fixture(scope="module")
def run(small) -> mh.patching.HeadCache:
    return small.cache(TEXTS, sites=SITES)


def heads_of(model: mh.Model) -> list[tuple[int, int]]:
    return [(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)]


def same(got: torch.Tensor, wanted: torch.Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(got, wanted, atol=tolerance, rtol=tolerance)


# -- numbers --------------------------------------------------------------------------------------------


def test_patterns_are_causal_and_their_rows_sum_to_one(small, run):
    pos = run.tokens.ids.shape[1]
    ahead = torch.ones(pos, pos).triu(1).bool()
    for head in heads_of(small):
        pattern = run.pattern[head]
        assert pattern.shape == (len(TEXTS), pos, pos)
        assert (pattern >= 0).all()
        assert (pattern[:, ahead] == 0).all()
        same(pattern.sum(-1), run.tokens.mask.float())  # 1 for a token, 0 for padding
        beyond = ~(run.tokens.mask[:, :, None] & run.tokens.mask[:, None, :])
        assert (pattern[beyond] == 0).all()


def attention_output(small: mh.Model, text: str, layer: int) -> torch.Tensor:
    """What a layer's attention module gives out, before any norm behind it; read past TransformerLens."""
    seen: list[Any] = []
    module = small.model.blocks[layer].attn
    handle = module.register_forward_hook(lambda module, given, gave: seen.append(gave))
    try:
        with torch.no_grad():
            small.model(torch.tensor([small.tokenizer(text).input_ids]))
    finally:
        handle.remove()
    return (seen[0][0] if isinstance(seen[0], tuple) else seen[0])[0]


def test_results_summed_over_heads_are_the_attention_output(small, run):
    for layer in range(small.n_layers):
        bias = small.b_O(layer)
        total = run.result.layer(layer).sum(1) + (0 if bias is None else bias)
        for prompt, text in enumerate(TEXTS):
            wanted = attention_output(small, text, layer)
            assert wanted.std() > 1e-2
            same(total[prompt, : len(wanted)], wanted)


def test_heads_are_named_in_three_ways_and_lie_in_layers_and_a_stack(small, run):
    for site in ("z", "pattern", "q", "result"):
        tensor, whole = getattr(run, site), getattr(run, site).stacked()
        assert whole.shape == tensor.shape
        for layer, head in heads_of(small):
            named = tensor[f"L{layer}H{head}"]
            assert torch.equal(named, tensor[layer, head]) and torch.equal(named, tensor[mh.HeadId(layer, head)])
            same(named, tensor.layer(layer)[:, head])
            same(named, whole[:, layer, head])
        assert not torch.equal(tensor["L1H2"], tensor["L2H1"])
    pos = run.tokens.ids.shape[1]
    assert list(run.z.shape) == [3, 3, 4, pos, small.d_head]
    assert list(run.pattern.shape) == [3, 3, 4, pos, pos]
    assert list(run.result.shape) == [3, 3, 4, pos, small.d_model]
    assert repr(run.pattern) == f"HeadTensor[3, 3, 4, {pos}, {pos}]"


def test_grouped_heads_read_one_key_and_value(small, run):
    group = small.n_heads // small.n_kv_heads
    assert run.k.layer(1).shape[1] == run.v.layer(1).shape[1] == small.n_kv_heads
    for tensor in (run.k, run.v):
        for head in range(small.n_heads):
            assert torch.equal(tensor[1, head], tensor.layer(1)[:, head // group])
    assert torch.equal(run.k["L1H0"], run.k["L1H1"]) == (group == 2)
    assert not torch.equal(run.k["L1H1"], run.k["L1H2"])


@pytest.mark.parametrize(
    ("sites", "message"),
    [
        ((), "sites is empty; name at least one of z, pattern, q, k, v"),
        (("z", "heads"), "sites: 'heads' is not known; choose among z, pattern, q, k, v."),
        (("patern",), "sites: 'patern' is not known; choose among z, pattern, q, k, v. Did you mean \"pattern\"?"),
        ("pattern", "sites is the text 'pattern'; give a list of some of z, pattern, q, k, v, such as [\"z\"]"),
    ],
)
def test_unknown_sites_are_refused(llama, sites, message):
    with pytest.raises(ValueError) as caught:
        llama.cache(TEXTS, sites=sites)
    assert str(caught.value) == message


# -- bytes ----------------------------------------------------------------------------------------------


def held(run: mh.patching.HeadCache) -> dict[str, int]:
    """The bytes a run really keeps."""

    def size(*tensors: torch.Tensor) -> int:
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
        return sum(storages.values())

    sites = {site: size(*(store[layer] for layer in range(run.n_layers))) for site, store in run.stores.items()}
    return sites | {"final": size(run.final), "ids": size(run.tokens.ids)}


@pytest.mark.parametrize("sites", [("z", "pattern"), SITES, ("v",)])
def test_cache_sizes_are_the_bytes_that_are_kept(small, sites):
    run = small.cache(TEXTS, sites=sites)
    assert cache_sizes(small, run.tokens, sites) == held(run)


def test_a_tight_budget_spills_to_disk_and_changes_no_number(small, run):
    size = sum(held(small.cache(TEXTS, sites=SITES)).values())
    assert "kept in memory" in repr(mh.settings(budget=size)(small.cache)(TEXTS, sites=SITES))
    tight = mh.settings(budget=size - 1)(small.cache)(TEXTS, sites=SITES)
    assert "kept on disk" in repr(tight)
    for site in SITES:
        for layer in range(small.n_layers):
            assert torch.equal(tight.stores[site][layer], run.stores[site][layer])
    for head in ("L0H1", "L2H3"):
        assert torch.equal(tight.result[head], run.result[head])
    assert torch.equal(tight.logits, run.logits)


def test_the_temporary_folder_goes_with_the_cache(llama):
    tight = mh.settings(budget="1 KB")(llama.cache)(TEXTS)
    folders = {store._folder for store in tight.stores.values()}
    assert len(folders) == 2
    assert all(folder is not None and any(folder.iterdir()) for folder in folders)
    z = tight.z
    del tight
    gc.collect()
    assert sum(folder.exists() for folder in folders if folder) == 1  # z is still in use
    assert z["L0H0"].shape[0] == len(TEXTS)
    del z
    gc.collect()
    assert not any(folder.exists() for folder in folders if folder)


def test_the_temporary_folder_goes_after_an_exception(llama, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def stop(value: torch.Tensor, hook: Any) -> None:
        if list(tmp_path.iterdir()):  # not yet in the run that tries whether the model is causal
            raise KeyboardInterrupt

    with llama.model.hooks(fwd_hooks=[("blocks.2.attn.hook_z", stop)]), pytest.raises(KeyboardInterrupt):
        mh.settings(budget="1 KB")(llama.cache)(TEXTS)
    gc.collect()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("on_disk", [False, True])
def test_parts_of_a_layer_are_joined_along_the_prompts(on_disk):
    store = LayerStore(2, 6, on_disk)
    parts = [torch.arange(6.0).reshape(2, 3), torch.ones(1, 3), torch.zeros(3, 3).T]
    for part in parts:
        store.add(0, part)
        store.add(1, -part)
    for _ in range(2):  # again from what reading left
        assert torch.equal(store[0], torch.cat(parts))
        assert torch.equal(store[1], -torch.cat(parts))
    assert (store.n_layers, store.on_disk) == (2, on_disk)


def test_a_pickled_run_has_no_model_and_still_shows_patterns(llama):
    run = llama.cache(TEXTS)
    alone = pickle.loads(pickle.dumps(run))
    assert torch.equal(alone.pattern["L1H1"], run.pattern["L1H1"])
    assert len(menu(alone.attention.plot())) == 12
    for wanted in ("result", "logits"):
        with pytest.raises(ValueError, match=r"pickled, which leaves its model out; run it again"):
            getattr(alone, wanted)


# -- figures --------------------------------------------------------------------------------------------


def blank_as_0(z: Any) -> np.ndarray:
    """The numbers of a heatmap, with 0 where it is left blank ahead of the token."""
    return np.nan_to_num(np.asarray(z, dtype=float), nan=0.0)


def menu(figure: Any) -> dict[str, np.ndarray]:
    """What each entry of the figure's menu draws."""
    return {button.label: blank_as_0(button.args[0]["z"][0]) for button in figure.layout.updatemenus[0].buttons}


def test_attention_of_every_head_is_drawn_as_it_is(llama):
    run = llama.cache(TEXTS)
    for prompt in range(len(TEXTS)):
        n = int(run.tokens.lengths[prompt])
        figure = run.attention.plot(prompt=prompt)
        assert list(menu(figure)) == [f"L{layer}H{head}" for layer, head in heads_of(llama)]
        np.testing.assert_allclose(blank_as_0(figure.data[0].z), run.pattern["L0H0"][prompt, :n, :n], atol=1e-7)
        for head, z in menu(figure).items():
            np.testing.assert_allclose(z, run.pattern[head][prompt, :n, :n], rtol=5e-3)
    labels = list(run.attention.plot(prompt=0).layout.xaxis.ticktext)
    assert labels == ["&lt;bos&gt;", "·The", "·capital", "·of", "·France", "·is"]  # escaped, spaces shown
