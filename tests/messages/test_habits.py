"""Names of other tools: each error says what to type here, and what it says runs."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path

import pytest

import mechheads as mh
from mechheads.messages.habits import NAMES, advice
from mechheads.model.core import ModelCore
from support.texts import CLEAN, PAIRS

DOCS = Path(__file__).parents[2] / "docs" / "coming_from.md"


PAGE = re.findall(r"^\| `.+` \| `(.+)` \|$", DOCS.read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("here", dict.fromkeys(PAGE))
@pytest.mark.filterwarnings("ignore")
def test_what_to_type_here_runs(loaded, here):
    model = loaded("gpt2")
    known = {"mh": mh, "model": model, "name": model.name, "prompts": CLEAN, "pairs": PAIRS, "ids": [3, 4]}
    exec(here, {**known, "run": model.cache(CLEAN), "texts": [list(range(3, 60))]})


def test_the_page_shows_what_errors_say():
    assert {here.removeprefix("model = ") for here in PAGE} >= set(NAMES.values())


@pytest.mark.parametrize(
    ("of", "name", "here"),
    [
        ("mh", "activation_patching", "mh.activation_patch(model, pairs)"),
        ("mh", "HookedTransformer", "mh.load(name)"),
        ("mh", "LanguageModel", "mh.load(name)"),
        ("mh", "IntervenableModel", "mh.sweep(model, pairs"),
        ("mh", "NoiseIntervention", "intervention=lambda z, context"),
        ("mh.patching", "get_act_patch_attn_head_out_all_pos", 'mh.activation_patch(model, pairs, site="z")'),
        ("mh.patching", "get_act_patch_attn_head_v_by_pos", 'site="v", positions="each")'),
        ("mh.patching", "get_act_patch_attn_head_all_pos_every", "mh.activation_patch(model, pairs)"),
        ("model", "run_with_cache", "run = model.cache(prompts)"),
        ("model", "to_tokens", "mh.Prompts(prompts).tokens(model).ids"),
        ("model", "to_string", "model.tokenizer.decode(ids)"),
        ("model", "trace", "model.cache(prompts)"),
        ("model", "output", "model.cache(prompts)"),
        ("run", "stack_head_results", "run.result.stacked()"),
        ("run", "save", "model.cache(prompts)"),
    ],
)
def test_a_name_of_another_tool_gives_the_name_to_use(loaded, of, name, here):
    model = loaded("gpt2")
    thing = {"mh": mh, "mh.patching": mh.patching, "model": model, "run": model.cache(CLEAN)}[of]
    assert not hasattr(thing, name)
    with pytest.raises(AttributeError) as caught:
        getattr(thing, name)
    assert f"'{name}'" in str(caught.value) and here in str(caught.value)


def test_an_item_of_a_cache_gives_the_name_to_use(loaded):
    with pytest.raises(KeyError, match=r"run\[\(.*pattern.*, 5\)\]: a run has no items; write run.pattern.layer"):
        loaded("gpt2").cache(CLEAN)["pattern", 5]


def test_right_names_and_what_python_asks_for_stay_as_they_are(loaded):
    model = loaded("gpt2")
    run = model.cache(CLEAN)
    for thing in (model, run, mh, mh.patching):
        assert not hasattr(thing, "no_such_name") and not hasattr(thing, "__no_such_name__")
        assert "run_with_cache" not in dir(thing)
    assert copy.copy(model).n_layers == copy.copy(run).n_layers == 3
    assert (pickle.loads(pickle.dumps(run)).z["L1H2"] == run.z["L1H2"]).all()
    assert ModelCore.__new__(ModelCore).__dict__ == {}
    with pytest.raises(AttributeError, match="backend"):
        ModelCore.__new__(ModelCore).backend  # noqa: B018
    with pytest.raises(TypeError, match="not iterable"):
        iter(run)
    for name in mh.__all__:
        assert advice("mh", name) == ""
    for where, thing in (("model", model), ("run", run), ("mh.patching", mh.patching)):
        assert [name for name in dir(thing) if advice(where, name)] == []


def test_an_error_inside_a_property_is_told_as_it_is(loaded):
    class Broken(ModelCore):
        @property
        def size(self) -> int:
            return self.backend.no_such_thing

    broken = Broken.__new__(Broken)
    broken.backend = object()
    with pytest.raises(AttributeError, match="no_such_thing"):
        broken.size  # noqa: B018
