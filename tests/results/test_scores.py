"""HeadScores: statistics, selection, ranking, arithmetic, and files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings, strategies as st

from mechheads.heads import HeadId
from mechheads.results.dataset import of_means
from mechheads.results.scores import HeadScores
from mechheads.results.stats import clustered_interval, q_values, sign_flip_p

METADATA: dict[str, Any] = {"name": "effect", "unit": "logits", "kind": "activation_patch"}
COLUMNS = ["layer", "head", "score", "ci_low", "ci_high", "p_value", "q_value", "p_family"]


def from_values(shape: tuple[int, ...] = (2, 3, 6), seed: int = 0, **options: Any) -> HeadScores:
    values = np.random.default_rng(seed).normal(0.3, 1, size=shape)
    return HeadScores.from_values(values, **{**METADATA, **options})


def prompt_values(scores: HeadScores) -> np.ndarray:
    return scores.dataset["values"].values


def test_from_values_holds_means_intervals_p_and_q():
    values = np.random.default_rng(0).normal(size=(2, 3, 6))
    values[1, 2] = np.nan
    values[0, 0, 1] = np.nan
    cluster = ["a", "a", "b", "c", "c", "d"]
    scores = HeadScores(of_means(values, cluster, METADATA, seed=4, null=0.1, bounds=None))
    assert float(scores.scores[0, 0]) == pytest.approx(np.mean(np.delete(values[0, 0], 1)))
    low, high = clustered_interval(values, cluster)
    p = sign_flip_p(values, cluster, null=0.1, seed=4)
    for name, expected in {"ci_low": low, "ci_high": high, "p_value": p, "q_value": q_values(p)}.items():
        np.testing.assert_array_equal(scores.dataset[name].values, expected)
    assert scores.missing == (HeadId(1, 2),)
    assert all(np.isnan(scores["L1H2"][name]) for name in COLUMNS[2:])
    assert (scores.n_layers, scores.n_heads, scores.extra_dims) == (2, 3, ())
    np.testing.assert_array_equal(prompt_values(scores), values)
    assert scores.dataset["cluster"].values.tolist() == cluster


def test_from_scores_keeps_what_it_is_given():
    score, p = np.array([[1.0, 2.0]]), np.array([[0.01, 0.04]])
    scores = HeadScores.from_scores(
        score,
        interval=(score - 1, np.full_like(score, np.nan)),
        p_value=p,
        **METADATA,
    ).assign(rank=(("layer", "head"), np.array([[2, 1]])))
    assert scores["L0H1"] == pytest.approx(
        dict(zip(COLUMNS, (0, 1, 2.0, 1.0, np.nan, 0.04, 0.04, np.nan), strict=True)), nan_ok=True
    )
    assert scores.values is None
    assert from_values().values is not None
    assert scores.dataset["rank"].values.tolist() == [[2, 1]]


def test_a_head_is_a_row_or_with_labels_a_table():
    plain = from_values()
    assert plain["L1H2"] == plain[1, 2] == plain[HeadId(1, 2)]
    labelled = from_values((2, 3, 2, 6), extra={"relation": ["capital", "plural"]})
    table = labelled["L1H2"]
    assert table.columns.tolist() == ["relation", *COLUMNS[2:]]
    assert table["relation"].tolist() == ["capital", "plural"]
    assert table["score"].tolist() == labelled.scores.values[1, 2].tolist()
    with pytest.raises(ValueError, match=r"head L2H0 is out of range: this model has layers 0\.\.1 with heads 0\.\.2"):
        plain["L2H0"]


def test_top_and_heads_rank_by_score_or_size():
    score = np.array([[1.0, -5.0, 3.0], [3.0, np.nan, 0.0]])
    scores = HeadScores.from_scores(score, **METADATA)
    assert scores.heads(3) == (HeadId(0, 2), HeadId(1, 0), HeadId(0, 0))
    assert scores.heads(2, by="absolute") == (HeadId(0, 1), HeadId(0, 2))
    assert scores.top(10)["score"].tolist() == [3.0, 3.0, 1.0, 0.0, -5.0]
    several = HeadScores.from_scores(np.array([[[3.0, 2.0], [1.0, 0.0]]]), extra={"pos": [0, 1]}, **METADATA)
    assert several.top(2)[["head", "pos"]].values.tolist() == [[0, 0], [0, 1]]
    assert several.heads(2) == (HeadId(0, 0), HeadId(0, 1))


@settings(max_examples=30)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=False), min_size=6, max_size=6), st.integers(1, 8))
def test_top_is_sorted_and_leaves_out_the_unmeasured(numbers, k):
    scores = HeadScores.from_scores(np.array(numbers).reshape(2, 3), **METADATA)
    measured = sorted((x for x in numbers if not np.isnan(x)), reverse=True)
    assert scores.top(k)["score"].tolist() == measured[:k]
    sizes = sorted(map(abs, measured), reverse=True)
    assert scores.top(k, by="absolute")["score"].abs().tolist() == sizes[:k]


def test_select_by_label():
    scores = from_values((2, 3, 2, 2, 6), extra={"relation": ["x", "y"], "pos": [0, 5]})
    part = scores.select(relation="y", pos=5)
    assert part.extra_dims == ()
    np.testing.assert_array_equal(part.scores.values, scores.scores.values[:, :, 1, 1])
    kept = scores.select(relation=["y", "x"])
    assert kept.extra_dims == ("relation", "pos")
    np.testing.assert_array_equal(kept.scores.values, scores.scores.values[:, :, ::-1])


numbers = st.floats(-100, 100).filter(lambda x: abs(x) > 0.01)


@settings(max_examples=10)
@given(st.integers(0, 1000), numbers)
def test_arithmetic_follows_the_laws_of_means(seed, number):
    a, b = from_values(seed=seed), from_values(seed=seed + 1)

    def same(left, right):
        for name in ("score", "ci_low", "ci_high", "p_value"):
            np.testing.assert_allclose(left.dataset[name], right.dataset[name], atol=1e-9)

    same(a + b, b + a)
    same(a + a, 2 * a)
    same(a + b - b, a)
    same((a + b) * number, a * number + b * number)
    np.testing.assert_allclose((a - b).scores, a.scores - b.scores, atol=1e-12)
    np.testing.assert_allclose((a - a).scores, 0, atol=1e-12)
    assert ((a - a).dataset["p_value"] == 1).all()
    np.testing.assert_allclose((number - a).scores, number - a.scores, atol=1e-9)
    np.testing.assert_allclose((a / number).dataset["p_value"], a.dataset["p_value"])
    np.testing.assert_allclose((a + number).dataset["p_value"], a.dataset["p_value"])
    ends = np.stack([a.dataset["ci_low"], a.dataset["ci_high"]]) * number
    np.testing.assert_allclose((number * a).dataset["ci_low"], ends.min(0), atol=1e-9)
    np.testing.assert_allclose((number * a).dataset["ci_high"], ends.max(0), atol=1e-9)


def test_untested_scores_are_tested_in_their_difference():
    values = np.random.default_rng(0).normal(size=(2, 2, 3, 6))
    a, b = (HeadScores(of_means(each, None, METADATA, null=None, bounds=None)) for each in values)
    np.testing.assert_array_equal((a - b).dataset["p_value"], sign_flip_p(prompt_values(a) - prompt_values(b)))
    assert np.isnan((a + b).dataset["p_value"]).all()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (from_values((3, 3, 6)), "do not align: n_layers is 2 and 3"),
        (from_values((2, 4, 6)), "do not align: n_heads is 3 and 4"),
        (from_values((2, 3, 1, 6), extra={"pos": [0]}), r"do not align: extra_dims is \(\) and \('pos',\);"),
        (from_values((2, 3, 7)), "do not align: 6 and 7 prompts"),
        (from_values(cluster=list("aabbcc")), "do not align: their prompts' clusters differ"),
        (from_values(unit="nats"), "'effect' is in logits and 'effect' in nats; '.' needs scores in the same unit"),
        (HeadScores.from_scores(np.ones((2, 3)), **METADATA), "only one of them is a mean over prompts"),
    ],
)
def test_scores_that_do_not_align_are_refused(other, message):
    with pytest.raises(ValueError, match=message):
        from_values() - other


def test_labels_must_align_too_and_only_numbers_and_scores_combine():
    left = from_values((2, 3, 1, 6), extra={"pos": [0]})
    with pytest.raises(ValueError, match="do not align: their labels of pos differ"):
        left.compare(from_values((2, 3, 1, 6), extra={"pos": [1]}))
    with pytest.raises(TypeError):
        left + "1"  # type: ignore[operator]
    with pytest.raises(ValueError, match="'effect' cannot be divided by zero"):
        left / 0


def test_nul_is_saved_as_its_sign(tmp_path):
    scores = from_values((2, 3, 1, 6), name="a\0", unit="\0", extra={"pos": ["\0"]})
    loaded = HeadScores.load(scores.assign(token=("pos", ["b\0c"])).save(tmp_path / "s.nc"))
    assert (loaded.name, loaded.unit, loaded.dataset["pos"].item()) == ("a\u2400", "\u2400", "\u2400")
    assert loaded.dataset["token"].item() == "b\u2400c"


letters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
text = st.text(letters, max_size=8) | st.sampled_from(["", "Ġthe", "é\u0301", "\n", "nan"])


@pytest.mark.slow
@settings(max_examples=20)
@given(
    labels=st.lists(text, min_size=1, max_size=4, unique=True),
    cluster=st.lists(text.filter(bool), min_size=3, max_size=3),
    name=text,
    note=text,
)
def test_save_and_load_is_identity_for_any_text(tmp_path_factory, labels, cluster, name, note):
    values = np.random.default_rng(0).normal(size=(1, 2, len(labels), 3))
    values[0, 1, 0, 2] = np.nan
    scores = HeadScores.from_values(
        values,
        name=name,
        unit=name,
        kind="demo",
        cluster=cluster,
        extra={"relation": labels},
        provenance={"note": note, "tokens": labels},
    ).assign(shown=("relation", labels), pairs=("relation", np.arange(len(labels))))
    path = tmp_path_factory.mktemp("scores") / "scores.nc"
    assert scores.save(path) == path
    loaded = HeadScores.load(path)
    xr.testing.assert_identical(loaded.dataset.drop_vars("shown"), scores.dataset.drop_vars("shown"))
    assert loaded.dataset["shown"].values.tolist() == scores.dataset["shown"].values.tolist()
    assert loaded.dataset["relation"].values.tolist() == labels
    assert loaded.dataset["cluster"].values.tolist() == cluster
    assert loaded.provenance == {"note": note, "tokens": labels}
    assert loaded.dataset.attrs == scores.dataset.attrs
    assert [p.name for p in path.parent.iterdir()] == ["scores.nc"]
    np.testing.assert_array_equal((loaded - scores).scores, 0 * scores.scores)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        (
            "scores.csv",
            r"write .save\('scores.nc'\); for a table, scores.to_dataframe\(\) and result.table have .to_csv$",
        ),
        ("heads.PNG", r"write .save\('heads.nc'\)$"),
    ],
)
def test_scores_are_not_saved_by_the_name_of_another_kind_of_file(tmp_path, name: str, advice: str) -> None:
    with pytest.raises(ValueError, match=rf"path is '{name}', but save writes netCDF; {advice}"):
        from_values().save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"extra": {"pos": [0, 1]}},
            r"shape \(2, 3\), but layers, heads and extra labels need \(layer, head, pos: 2\)",
        ),
        ({"cluster": ["a"]}, "cluster has 1 labels for 6 prompts"),
        ({"shape": (2, 3, 0)}, "needs at least one prompt"),
        ({"shape": (2, 3, 2, 6), "extra": {"pos": ["x", "x"]}}, r"extra\['pos'\] contains a label twice"),
        ({"shape": (2, 3, 2, 6), "extra": {"pos": ["x", 1]}}, "must be all text or all numbers"),
        ({"shape": (2, 3, 1, 6), "extra": {"prompt": ["x"]}}, "prompt cannot name an extra dimension"),
        ({"name": "\ud800"}, "name contains .* not valid Unicode"),
        ({"shape": (2, 3, 1, 6), "extra": {"pos": ["\udfff"]}}, "pos contains .* not valid Unicode"),
    ],
)
def test_bad_input_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        from_values(**options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.top(0), "k is 0; it must be at least 1"),
        (lambda s: s.top(by="size"), "by is 'size'; choose one of 'score', 'absolute'"),
        (lambda s: s.select(layer=1), r"no dimension 'layer' to select from; choose among \['relation'\]"),
        (lambda s: s.select(relation="z"), "relation has no label 'z'; it has 'x', 'y'"),
        (lambda s: HeadScores(xr.Dataset()), r"no variable 'score' over \(layer, head"),
        (lambda s: s.assign(score=1), "score cannot be assigned: its intervals and p would stay"),
        (lambda s: s.assign(cluster=1), "cluster cannot be assigned: its intervals and p would stay"),
        (lambda s: HeadScores(s.dataset.drop_attrs()), "lacks the attributes name, unit, kind, provenance"),
        (
            lambda s: HeadScores.from_scores(np.ones((2, 3)), interval=(np.ones((3, 2)),) * 2, **METADATA),
            r"interval\[0\] has shape \(3, 2\); score has \(2, 3\)",
        ),
    ],
)
def test_bad_requests_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(from_values((2, 3, 2, 6), extra={"relation": ["x", "y"]}))


@pytest.mark.parametrize(
    ("kind", "papers"),
    [
        ("relations", ["2412.11965"]),
        ("generalized_ships", ["2410.13708"]),
        ("roles", ["2505.13737"]),
        ("ships+labels", ["2410.13708", "2412.11965"]),
        ("my own", []),
    ],
)
def test_citation_names_the_papers_and_versions(kind, papers):
    scores = from_values(kind=kind, provenance={"versions": {"mechheads": "0.1.0", "torch": "2.13.0"}})
    found = scores.citation()
    assert all(paper in found for paper in papers)
    assert found.count("@") == len(papers) + 1
    assert found.count("{") == found.count("}")
    assert "nanda2022transformerlens" in found
    assert found.endswith("% Computed with mechheads 0.1.0, torch 2.13.0.")
    assert "% Computed with mechheads " in from_values().citation()


def test_rows_beyond_the_smallest_effect_have_their_whole_interval_there():
    rng = np.random.default_rng(0)
    values = rng.normal([[[0.2], [-0.5], [0.04], [0.06], [0.0]]], 0.02, size=(1, 5, 8))
    scores = HeadScores.from_values(values, name="made", unit="share restored", kind="demo")
    table = scores.to_dataframe()
    outside = (table["ci_low"] >= 0.05) | (table["ci_high"] <= -0.05)
    assert scores.beyond().index.tolist() == ["L0H1", "L0H0"] and set(table[outside].index) == {"L0H0", "L0H1"}
    assert scores.beyond(at_least=0.3).index.tolist() == ["L0H1"]
    assert str(scores).splitlines()[1].startswith("at_least: 0.05 share restored")
    assert len(scores.beyond(at_least=2)) == 0 and len(scores.top(4)) == 4
    own = HeadScores.from_values(values, name="made", unit="logits", kind="demo")
    with pytest.raises(ValueError, match=r"at_least: scores in logits have no smallest effect; give one"):
        own.beyond()
    assert own.beyond(at_least=0.05).index.tolist() == ["L0H1", "L0H0"]
    with pytest.raises(ValueError, match="at_least is -1"):
        own.beyond(at_least=-1)
    none = HeadScores.from_values(values / 100, name="made", unit="nats", kind="demo")
    assert "at_least: 0.1 nats\nNo head beyond the smallest effect worth naming." in str(none)


def test_beyond_counts_from_the_null_of_relations_and_keeps_labels():
    score, ends = np.array([[[0.5, 0.05], [0.3, 0.1]]]), (np.array([[[0.4, 0.0], [0.2, 0.0]]]), np.ones((1, 2, 2)))
    given = {"extra": {"relation": ["a", "b"]}, "interval": ends, "kind": "relations", "name": "phi"}
    variables = {"null_phi": (("layer", "head", "relation"), np.array([[[0.1, 0.0], [0.15, 0.0]]]))}
    found = HeadScores.from_scores(score, **given).assign(**variables).beyond()
    assert [(*row,) for row in found[["relation", "score"]].itertuples()] == [("L0H0", "a", 0.5)]


def test_few_values_equal_values_and_one_that_carries_a_score_are_told():
    values = np.abs(np.random.default_rng(0).normal(size=(1, 3, 8)))
    few = HeadScores.from_values(values[..., :4], name="made", unit="nats", kind="ships")
    assert repr(few).endswith("4 requests in 4 clusters, too few for intervals>")
    said = str(few).splitlines()
    assert "6 or more independent prompts allow a test over heads." in said
    rows = [line for line in said if line.startswith("L0")]
    assert len(rows) == 3 and all("too few" in row for row in rows) and np.isnan(few.top(1)["ci_low"].to_numpy()).all()
    assert "too few" in repr(few.top(2)) and "too few" in few.top(2)._repr_html_()
    values[0, 0], values[0, 1] = 0.5, [0] * 7 + [9]
    lone = HeadScores.from_values(values, name="made", unit="logits", kind="demo")
    rows = {line.split()[0]: line for line in str(lone).splitlines() if line.startswith("L0")}
    assert "all 8 equal" in rows["L0H0"] and "one prompt carries it" in rows["L0H1"]
    assert "carries" not in rows["L0H0"] + rows["L0H2"]
