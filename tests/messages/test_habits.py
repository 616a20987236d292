"""Names of other tools: each error says what to type here, and what it says runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mechheads as mh
from mechheads.messages.habits import NAMES
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
        ("mh", "NoiseIntervention", "intervention=lambda z, context"),
        ("mh.patching", "get_act_patch_attn_head_out_all_pos", 'mh.activation_patch(model, pairs, site="z")'),
        ("mh.patching", "get_act_patch_attn_head_v_by_pos", 'site="v", positions="each")'),
        ("model", "run_with_cache", "run = model.cache(prompts)"),
        ("model", "to_tokens", "mh.Prompts(prompts).tokens(model).ids"),
        ("model", "to_string", "model.tokenizer.decode(ids)"),
        ("run", "stack_head_results", "run.result.stacked()"),
    ],
)
def test_a_name_of_another_tool_gives_the_name_to_use(loaded, of, name, here):
    model = loaded("gpt2")
    thing = {"mh": mh, "mh.patching": mh.patching, "model": model, "run": model.cache(CLEAN)}[of]
    assert not hasattr(thing, name)
    with pytest.raises(AttributeError) as caught:
        getattr(thing, name)
    assert f"'{name}'" in str(caught.value) and here in str(caught.value)
