"""Analyses as files, in parts, on the command line."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import mechheads as mh
from mechheads.cli import main
from mechheads.ledger.ledger import Ledger
from mechheads.limits import Limits
from mechheads.metrics.basic import log_prob
from mechheads.scale import read_analysis, write_analysis
from support.texts import CLEAN, PAIRS

EVERY_UNIT = Limits(tokens=1, logit_rows=1)
QUIET: dict[str, Any] = {"progress": False}


@pytest.fixture(scope="module")
def small(tiny) -> mh.Model:
    return mh.load(tiny("llama"))


def command(*words: object) -> str:
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("n", [2, 5])
def test_merged_parts_are_the_whole_to_the_bit(small, tmp_path: Path, n: int):
    parts = []
    for number in range(1, n + 1):
        parts.append(tmp_path / f"{number}.ledger")
        limits = Limits(tokens=1, logit_rows=1, part=(number, n))
        found = mh.path_patch(small, PAIRS, receivers=["L2H1.q"], budget=limits, store=parts[-1], **QUIET)
        layers = Counter(head.layer for head in found.heads() if head not in found.missing)
        assert set(layers) <= {0, 1, 2} and max(layers.values()) - min(layers.values()) <= 2
    mh.scale.merge(parts, tmp_path / "all.ledger")
    (sweep,) = Ledger.list(tmp_path / "all.ledger")
    given: dict[str, Any] = {"receivers": ["L2H1.q"], "budget": EVERY_UNIT, **QUIET}
    whole = mh.path_patch(small, PAIRS, store=tmp_path / "all.ledger", **given)
    assert sweep["units"] == Ledger.list(tmp_path / "all.ledger")[0]["units"] == 12
    assert whole.dataset.identical(mh.path_patch(small, PAIRS, **given).dataset)


def test_an_analysis_travels_as_a_file(small, tmp_path: Path):
    run = small.cache(CLEAN)
    arguments: dict[str, Any] = {
        "pairs": PAIRS,
        "site": "k",
        "metric": log_prob,
        "heads": [mh.HeadId(1, 2), "L0H1"],
        "positions": ["last", 2],
        "normalize": True,
    }
    path = write_analysis(tmp_path / "spec.json", mh.activation_patch, small, **arguments)
    found = read_analysis(path)
    assert found.function is mh.activation_patch
    assert found.source == small.source
    assert found.arguments == arguments
    assert run.tokens.ids.shape[0] == 3


def test_tensors_lie_next_to_the_file(small, tmp_path: Path):
    row = small.tokenizer(" The capital of France is", add_special_tokens=False).input_ids
    path = write_analysis(tmp_path / "spec.json", mh.ablate, small, prompts=[row], heads=np.array([[0, 1]]))
    assert path.with_suffix(".safetensors").exists()
    assert "pickle" not in path.read_text()
    assert read_analysis(path).arguments["heads"].tolist() == [[0, 1]]
    assert read_analysis(path).arguments["prompts"] == [row]


@pytest.mark.slow
def test_parts_on_the_command_line(small, tmp_path: Path):
    spec = write_analysis(tmp_path / "spec.json", mh.ablate, small, prompts=CLEAN, kind="mean", metric="kl_divergence")
    for number in (1, 2, 3):
        text = command("run", spec, "--part", f"{number}/3", "--store", tmp_path / f"part-{number}.ledger")
        assert f"part-{number}.ledger: 4 units\n" in text
    parts = [tmp_path / f"part-{number}.ledger" for number in (1, 2, 3)]
    assert "12 units of 1 sweep, 12 of them new" in command("merge", *parts, "--into", tmp_path / "all.ledger")
    command("run", spec, "--store", tmp_path / "all.ledger", "--out", tmp_path / "result.nc")
    ours = mh.HeadScores.load(tmp_path / "result.nc")
    np.testing.assert_allclose(ours.values, mh.ablate(small, CLEAN, kind="mean", **QUIET).values, rtol=1e-5, atol=1e-6)
    listed = command("runs", "list", tmp_path / "all.ledger")
    key = listed.split()[0]
    assert "12 units" in listed and "Mean()" in listed
    assert json.loads(command("runs", "show", tmp_path / "all.ledger", key))["units"] == 12
    assert "no damage; 4 units of 1 sweep" in command("runs", "check", *parts)
    assert "with 12 units" in command("runs", "remove", tmp_path / "all.ledger", key)
    assert command("runs", "list", tmp_path / "all.ledger") == ""


@pytest.mark.parametrize("part", ["3", "0/4", "5/4", "a/b", "1/4/2"])
def test_a_part_that_is_none_is_refused(small, tmp_path: Path, part: str):
    spec = write_analysis(tmp_path / "spec.json", mh.ablate, small, prompts=CLEAN)
    done = CliRunner().invoke(main, ["run", str(spec), "--part", part, "--store", str(tmp_path / "l")])
    assert done.exit_code == 1 and f"part is {part!r}; give its number, from 1" in done.output


def test_a_race_cannot_run_in_parts(small):
    with pytest.raises(ValueError, match="a race needs all units, so it cannot run in parts"):
        mh.ablate(small, CLEAN, top=2, budget=Limits(part=(1, 2)), **QUIET)
    with pytest.raises(ValueError, match=r"part is \(0, 2\); give its number"):
        Limits(part=(0, 2))


def test_what_has_no_form_in_a_file_is_refused(small, tmp_path: Path):
    path = tmp_path / "spec.json"
    with pytest.raises(ValueError, match=r"metric: .*<lambda> cannot be imported by its name; define it in a file of"):
        write_analysis(path, mh.ablate, small, prompts=CLEAN, metric=lambda logits, context: logits[:, 0, 0])
    with pytest.raises(ValueError, match=r"give a function of mechheads that takes store=, such as mh\.act"):
        write_analysis(path, mh.generate, small, prompts=CLEAN)
    with pytest.raises(ValueError, match="workers is not an argument of the analysis itself; choose from prompts, "):
        write_analysis(path, mh.ablate, small, prompts=CLEAN, workers=None)
    with pytest.raises(ValueError, match=r"made by mh\.wrap, so no file can name it"):
        write_analysis(path, mh.ablate, mh.wrap(small.model), prompts=CLEAN)
    assert not path.exists()


def test_a_file_runs_no_code_that_is_not_allowed(small, tmp_path: Path):
    path = write_analysis(tmp_path / "spec.json", mh.ablate, small, prompts=CLEAN, metric=log_prob)
    text = path.read_text()
    for other, message in [
        (
            "os:system",
            "takes system from the module os, which is not part of mechheads; if you trust it, allow it: --",
        ),
        ("mechheads.scale.spec_file:os.system", "takes os.system from the module .*, which only imports it"),
        ("mechheads.metrics.basic:nothing", "takes nothing from the module mechheads.metrics.basic"),
    ]:
        path.write_text(text.replace("mechheads.metrics.basic:log_prob", other))
        with pytest.raises(ValueError, match=message):
            read_analysis(path)
    path.write_text(text.replace("mechheads.metrics.basic:log_prob", "math:floor"))
    assert read_analysis(path, allow=["math"]).arguments["metric"](2.5) == 2
    path.write_text('{"format": "else"}')
    with pytest.raises(ValueError, match=r"is not an analysis; write one with mh\.scale\.write_analysis"):
        read_analysis(path)
