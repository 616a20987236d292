"""Analyses as files, in parts, on the command line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import mechheads as mh
from mechheads.cli import main
from mechheads.cli.runs import parse_part
from mechheads.ledger.ledger import Ledger
from mechheads.limits import Limits
from mechheads.metrics.basic import log_prob
from mechheads.scale import read_analysis, write_analysis
from support.settled import settled
from support.texts import CLEAN, CORRUPTED, PAIRS

TWO_UNITS = Limits(tokens=60, logit_rows=1)
"""Two heads in a batch."""


def command(*words: object) -> str:
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


HEADS = ["L0H1", "L1H0", "L1H2", "L2H3", "L2H0"]
ANALYSES: dict[str, Callable[..., Any]] = {
    "paths": lambda model, **given: mh.path_patch(model, PAIRS, receivers=["L2H1.q"], senders=HEADS, **given),
    "all scores": lambda model, **given: settled(mh.safety_heads)(
        model, CLEAN[:2], 2, harmless=CORRUPTED[:2], heads=HEADS, **given
    ),
}


@pytest.mark.parametrize("name", ANALYSES)
@pytest.mark.filterwarnings("ignore:.*hardly any refusal:UserWarning", "ignore:.*refuses none of:UserWarning")
def test_merged_parts_are_the_bits_of_one_process(small, tmp_path: Path, name: str):
    """It goes on with the first part's ledger, so that it computes the same batches."""
    analysis, parts, reached = ANALYSES[name], [], []
    for number in (1, 2, 3):
        parts.append(tmp_path / f"{number}.ledger")
        found = analysis(small, budget=replace(TWO_UNITS, part=(number, 3)), store=parts[-1])
        reached += [str(head) for head in found.heads() if head not in found.missing]
    assert sorted(reached) == sorted(HEADS)
    shutil.copy(parts[0], tmp_path / "alone.ledger")
    merged = mh.scale.merge(parts, tmp_path / "all.ledger")
    whole, alone = (analysis(small, store=tmp_path / f"{name}.ledger", budget=TWO_UNITS) for name in ("all", "alone"))
    assert whole.dataset.identical(alone.dataset)
    assert sum(sweep["units"] for sweep in Ledger.list(tmp_path / "all.ledger")) == merged.units


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


def test_parts_on_the_command_line(small, tmp_path: Path):
    spec = write_analysis(tmp_path / "spec.json", mh.ablate, small, prompts=CLEAN, kind="mean", metric="kl_divergence")
    for number in (1, 2, 3):
        text = command("run", spec, "--part", f"{number}/3", "--store", tmp_path / f"part-{number}.ledger")
        assert f"part-{number}.ledger: 4 units\n" in text
    parts = [tmp_path / f"part-{number}.ledger" for number in (1, 2, 3)]
    assert "12 units of 1 sweep, 12 of them new" in command("merge", *parts, "--into", tmp_path / "all.ledger")
    command("run", spec, "--store", tmp_path / "all.ledger", "--out", tmp_path / "result.nc")
    ours = mh.HeadScores.load(tmp_path / "result.nc")
    np.testing.assert_allclose(ours.values, mh.ablate(small, CLEAN, kind="mean").values, rtol=1e-5, atol=1e-6)
    listed = command("runs", "list", tmp_path / "all.ledger")
    key = listed.split()[0]
    assert "12 units" in listed and "Mean()" in listed
    assert json.loads(command("runs", "show", tmp_path / "all.ledger", key))["units"] == 12
    assert "no damage; 4 units of 1 sweep" in command("runs", "check", *parts)
    assert "with 12 units" in command("runs", "remove", tmp_path / "all.ledger", key)
    assert command("runs", "list", tmp_path / "all.ledger") == ""


def test_fits_and_profiles_run_from_a_file_as_a_whole(small, tmp_path: Path):
    task = mh.Task([" The capital of France is", " no"], [" Paris", " yes"])
    asked = {"seeds": [0, 4], "updates": 2, "fit": mh.gating.FitSettings(lr=(0.2, 0.1))}
    spec = write_analysis(tmp_path / "fit.json", mh.fit_gates, small, task=task, **asked)
    assert "fit.ledger: 2 units\n" in command(
        "run", spec, "--store", tmp_path / "fit.ledger", "--out", tmp_path / "g.nc"
    )
    assert mh.gating.Gates.load(tmp_path / "g.nc").dataset.identical(mh.fit_gates(small, task, **asked).dataset)
    assert "fit_gates" in command("runs", "list", tmp_path / "fit.ledger")
    rows = [list(range(3, 60))]
    spec = write_analysis(tmp_path / "profile.json", mh.profile_heads, small, texts=rows, window=16)
    refused = CliRunner().invoke(main, ["run", str(spec), "--part", "1/2", "--store", str(tmp_path / "p.ledger")])
    assert refused.exit_code == 1 and "part: each step of this analysis needs all steps before" in refused.output
    assert "p.ledger: 1 units" in command("run", spec, "--store", tmp_path / "p.ledger", "--out", tmp_path / "p.nc")
    profile = mh.profile_heads(small, rows, window=16)
    assert mh.behaviour.HeadProfile.load(tmp_path / "p.nc").dataset.identical(profile.dataset)


@pytest.mark.parametrize("part", ["3", "0/4", "5/4", "a/b", "1/4/2"])
def test_a_part_that_is_none_is_refused(part: str):
    with pytest.raises(ValueError, match=f"part is '{part}'; give its number, from 1"):
        parse_part(part)


def test_limits_of_a_part_that_is_none_are_refused():
    with pytest.raises(ValueError, match=r"part is \(0, 2\); give its number"):
        Limits(part=(0, 2))


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (mh.ablate, {"metric": lambda logits, context: logits[:, 0, 0]}, "metric: .*<lambda> cannot be imported"),
        (mh.generate, {}, "give an analysis of mechheads whose finished units a ledger keeps"),
        (mh.ablate, {"workers": None}, "workers is not an argument of the analysis itself; choose from prompts, "),
    ],
)
def test_what_has_no_form_in_a_file_is_refused(small, tmp_path: Path, function, arguments, message):
    with pytest.raises(ValueError, match=message):
        write_analysis(tmp_path / "spec.json", function, small, prompts=CLEAN, **arguments)
    assert not list(tmp_path.iterdir())


def _with_rivals(rivals: Any) -> mh.Relation:
    return mh.Relation("animals", "Knowledge", [("cat", "kitten")], rivals=rivals)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (mh.ships, lambda file: {"requests": str(file)}),
        (mh.safety_heads, lambda file: {"requests": ["a request"], "harmless": str(file)}),
        (mh.labels.relation_evidence, lambda file: {"relations": [str(file)]}),
        (mh.labels.relation_evidence, lambda file: {"relations": {str(file): 1}}),
        (mh.labels.relation_evidence, lambda file: {"relations": [_with_rivals([str(file)])]}),
        (mh.labels.relation_evidence, lambda file: {"relations": _with_rivals([_with_rivals((str(file),))])}),
    ],
)
def test_a_file_that_asks_to_read_another_one_is_refused(small, tmp_path: Path, function, arguments):
    file = tmp_path / "private.txt"
    file.write_text("a secret\n")
    spec = write_analysis(tmp_path / "spec.json", function, small, **arguments(file))
    with pytest.raises(ValueError, match=r"spec\.json asks to read the file '.*private\.txt' as "):
        read_analysis(spec)


def test_a_wrapped_model_cannot_be_named_in_a_file(small, tmp_path: Path):
    with pytest.raises(ValueError, match=r"made by mh\.wrap, so no file can name it"):
        write_analysis(tmp_path / "spec.json", mh.ablate, mh.wrap(small.model), prompts=CLEAN)


def by_hand(path: Path) -> str:
    """The text of a file without its checksum, as a person may change it."""
    content = json.loads(path.read_text())
    del content["checksum"]
    return json.dumps(content, indent=1)


def test_a_changed_description_of_an_analysis_is_refused(small, tmp_path: Path):
    path = write_analysis(tmp_path / "spec.json", mh.ablate, small, prompts=CLEAN, heads=["L0H1"], kind="mean")
    text = path.read_text()
    for old, new, message in (
        ("L0H1", "L0H0", "its checksum does not match"),
        ('"checksum"', '"chacksum"', "'chacksum' is unknown or missing"),
        ('"arguments"', '"argumants"', "its checksum does not match"),
    ):
        path.write_text(text.replace(old, new))
        with pytest.raises(ValueError, match=rf"spec\.json is damaged.*{message}"):
            read_analysis(path)
    path.write_text(text)
    path.write_text(by_hand(path).replace("L0H1", "L0H0"))
    assert read_analysis(path).arguments["heads"] == ["L0H0"]


def test_a_file_runs_no_code_that_is_not_allowed(small, tmp_path: Path):
    path = write_analysis(tmp_path / "spec.json", mh.ablate, small, prompts=CLEAN, metric=log_prob)
    text = by_hand(path)
    for other, message in [
        ("os:system", "from the module os, which is not part of mechheads; if you trust it, allow it"),
        ("mechheads.scale.analysis_file:os.system", "of which a file may not make anything"),
        ("mechheads.metrics.basic:nothing", "takes nothing from the module"),
    ]:
        path.write_text(text.replace("mechheads.metrics.basic:log_prob", other))
        with pytest.raises(ValueError, match=message):
            read_analysis(path)
    path.write_text(text.replace("mechheads.metrics.basic:log_prob", "math:floor"))
    assert read_analysis(path, allow=["math"]).arguments["metric"](2.5) == 2
    path.write_text('{"format": "else"}')
    with pytest.raises(ValueError, match=r"is not an analysis; write one with mh\.scale\.write_analysis"):
        read_analysis(path)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda spec: spec.pop("model"), "'model' is unknown or missing"),
        (lambda spec: spec.update(function=3), "is not an analysis as .* AttributeError"),
        (lambda spec: spec["arguments"].update(prompts={"$made": ["x"]}), "is not an analysis as .* TypeError"),
        (lambda spec: spec["arguments"].update(sites="x"), "an unexpected keyword argument 'sites'"),
        (lambda spec: spec["model"]["$made"][1].update(cache_dir="/x"), "unexpected keyword argument 'cache_dir'"),
        (lambda spec: spec["model"]["$made"][1].update(trust_remote_code="no"), "asks to run code that comes with"),
        (lambda spec: spec["model"]["$made"][1].update(dtype={"$dtype": "__builtins__"}), "the dtype '__builtins__'"),
    ],
)
def test_a_file_with_other_fields_is_refused(small, tmp_path: Path, edit: Callable[[Any], Any], message: str):
    path = write_analysis(tmp_path / "spec.json", mh.ablate, small, prompts=CLEAN)
    spec = json.loads(by_hand(path))
    edit(spec)
    path.write_text(json.dumps(spec))
    with pytest.raises(ValueError, match=message):
        read_analysis(path)


def test_an_analysis_of_several_results_gives_a_file_for_each(small, tmp_path: Path):
    given: dict[str, Any] = {"requests": CLEAN, "k": 2, "template": "bare", "heads": HEADS}
    spec = write_analysis(tmp_path / "spec.json", mh.safety.compare_ablations, small, **given)
    command("run", spec, "--store", tmp_path / "store", "--out", tmp_path / "result.nc")
    for kind, alone in mh.safety.compare_ablations(small, **given).items():
        found = mh.HeadScores.load(tmp_path / f"result-{kind}.nc")
        np.testing.assert_allclose(found.values, alone.values, rtol=1e-5, atol=1e-6)


def test_an_analysis_takes_the_date_of_its_chats_along(small, tmp_path: Path):
    with mh.settings(date="2026-02-28", control_tokens="text"):
        dated = write_analysis(tmp_path / "dated.json", mh.ablate, small, prompts=CLEAN)
    assert read_analysis(dated).chats == {"date": "2026-02-28", "control_tokens": "text"}
    assert read_analysis(write_analysis(tmp_path / "plain.json", mh.ablate, small, prompts=CLEAN)).chats == {}
