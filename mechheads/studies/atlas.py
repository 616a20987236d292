"""``Atlas``: the results of several analyses for every head of one model, in one table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mechheads.behaviour import HeadExamples, HeadProfile
from mechheads.behaviour.profile import PROFILED
from mechheads.heads import HeadId, check_heads
from mechheads.io.text import read_json
from mechheads.labels import HeadLabels
from mechheads.messages.arguments import checked
from mechheads.messages.notices import wrapped
from mechheads.results.metadata import SUBJECTS
from mechheads.results.scores import HeadScores
from mechheads.results.shown import head_names, heading, html_table
from mechheads.results.tables import Curves, TableResult
from mechheads.safety.heads.ablations import PAPER_KINDS
from mechheads.safety.heads.safety_heads import SafetyHeads
from mechheads.studies.answers import OwnView, Question, one_line, own_file, own_views, questions
from mechheads.studies.head_patterns import HeadPatterns
from mechheads.studies.questions import CAPITALS
from mechheads.studies.study import Stages, save_parts

if TYPE_CHECKING:
    import xarray as xr


_COLUMNS = {
    "score": "{}",
    "ci_low": "{}_ci_low",
    "ci_high": "{}_ci_high",
    "p_family": "{}_p_family",
    "q_value": "{}_q",
    "range_low": "{}_range_low",
    "range_high": "{}_range_high",
    "generalized_ships": "generalized_{}",
    "generalized_ships_low": "generalized_{}_ci_low",
    "generalized_ships_high": "generalized_{}_ci_high",
}
"""The variables of a view, and the names of their columns in the table; q and family p only if there are some."""
_EFFECTS = ("patching", "direct", "attribution")
"""The names of the study's effects, which columns of your own scores cannot have."""
_OPEN = "mh.explore(atlas) shows every head, mh.head_card(atlas, 'L0H0') one"
_METADATA = "atlas.json"
_TEXTS = ("model", "asked", "pairs", "requests", "seconds", "notes", "interrupted", "study", "done")
_OWN = "own"
"""What ``atlas.json`` contains, and the names of ``own`` in their order."""


@dataclass
class Atlas(Stages):
    """What every head of one model does, from ``mh.build_atlas``: on text, by weights, patched, and after requests.

    Attributes:
        model: name of the model.
        relations: phi of every head and relation, from weights.
        labels: categories of the heads, from ``relations``.
        profile: what each head attends to in ordinary text, with its names, such as induction.
        examples: where each head attends, in texts from each tenth of its activity.
        patching: activation patching of ``pairs``: the share of the logit difference, or of the metric for pairs
            without wrong answers, that each head's z restores, 0 for none and 1 for all of it.
        safety: for each ablation, Ships and Generalized Ships of every head, and for the package's requests the
            contrast with their look-alikes (see ``mh.safety_heads``).
        direct: what each head itself adds to the logit of the answer minus the logit of the wrong answer.
        paths: path patching from the heads with the largest effect to each other's q, k and v and to the logits.
        circuit: the faithfulness of the first k heads by patching, for several k.
        patterns: what each head attends to in the prompts of the patching and in one longer text.
        own: scores of your own, by the name that the table and the page give them.
        asked: what ``pairs`` and ``requests`` ask, in a few words for titles; only of those that were measured.
        pairs: the prompts of the patching: clean, corrupted, answer, wrong; the last two are empty without answers.
        requests: the requests of the safety heads.
        shape: the numbers of layers and of heads in a layer, used if no result has them.
        seconds: time that each stage took.
        notes: what was left out, and why.
        interrupted: whether Ctrl-C ended the work. Heads that were not reached are NaN.
        done: the parts that came to their end, which ``mh.build_atlas(resume=)`` keeps.
    """

    model: str
    relations: HeadScores | None = None
    labels: HeadLabels | None = None
    profile: HeadProfile | None = None
    examples: HeadExamples | None = None
    patching: HeadScores | None = None
    safety: dict[str, SafetyHeads] = field(default_factory=dict)
    direct: HeadScores | None = None
    paths: HeadScores | None = None
    circuit: Curves | None = None
    patterns: HeadPatterns | None = None
    own: dict[str, HeadScores] = field(default_factory=dict)
    asked: dict[str, str] = field(default_factory=dict)
    pairs: list[dict[str, str]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    shape: tuple[int, int] | None = None
    done: list[str] = field(default_factory=list)

    @property
    def sizes(self) -> tuple[int, int]:
        """The numbers of layers and of heads in a layer.

        Raises:
            ValueError: if there is no result yet.
        """
        for scores in self.results.values():
            return scores.n_layers, scores.n_heads
        if self.patterns is not None:
            return self.patterns.first.shape[0], self.patterns.first.shape[1]
        if self.shape is not None:
            return self.shape
        raise ValueError(f"the atlas of {self.model!r} has no result")

    @property
    def results(self) -> dict[str, HeadScores]:
        """The scores of every analysis, by the name of their file without ``.nc``."""
        parts: dict[str, HeadScores | None] = {
            "profile": self.profile,
            "relations": self.relations,
            "labels": self.labels,
            "patching": self.patching,
            "direct": self.direct,
            "paths": self.paths,
        }
        parts |= {f"safety_{ablation}": scores for ablation, scores in self.safety.items()}
        parts |= {own_file(name): scores for name, scores in self.own.items()}
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def views(self) -> dict[str, HeadScores]:
        """The score of every head by each view, by its column: phi, patching, direct effect and Ships."""
        views: dict[str, HeadScores] = {}
        if self.labels is not None:
            views["phi"] = _phi(self.labels)
            if self.asked.get("pairs") == SUBJECTS["pairs"] and CAPITALS in self.labels.dataset["relation"]:
                views[f"phi_{CAPITALS}"] = _phi_of(self.labels, CAPITALS)
        if self.patching is not None:
            views["patching"] = self.patching
        if self.direct is not None:
            views["direct"] = self.direct
        contrasts = {f"ships_contrast_{ablation}": scores.contrast for ablation, scores in self.safety.items()}
        views |= {column: scores for column, scores in contrasts.items() if scores is not None}
        views |= {f"ships_{ablation}": scores for ablation, scores in self.safety.items()}
        return views | {column: view.scores for column, view in self.own_views.items()}

    @property
    def own_views(self) -> dict[str, OwnView]:
        """The views of ``own``, by their columns: one for each label of a further dimension, if there are few."""
        taken = dict[str, Any](_text_columns(self.profile, []))
        if self.labels is not None:
            taken |= {"phi": self.labels}
        if self.patching is not None or self.direct is not None:
            taken |= dict.fromkeys(_EFFECTS)
        return own_views(self.own, taken)

    def to_dataframe(self) -> pd.DataFrame:
        """One row per head: names on text, categories, best relation, and each view's score with its interval.

        Columns: layer, head, names, the shares of attention ``to_first``, ``to_self``, ``to_previous``,
        ``to_duplicate``, ``to_induction`` and ``to_delimiter``, ``by_position``, ``entropy``, ``distance``, ``norm``
        and ``copying`` (see ``mh.profile_heads``), categories, best_relation (empty if the head maps no pair of any),
        then ``phi`` (of the best relation), ``phi_country_to_capital`` for pairs about capitals, ``patching``,
        ``direct``, and your own scores; and for each ablation, ``ships_contrast_undifferentiated`` (against
        look-alikes), ``ships_undifferentiated`` and ``generalized_ships_undifferentiated``. Most also have ``_ci_low``
        and ``_ci_high``, or for two clusters ``_range_low`` and ``_range_high``, and if they were tested ``_q`` and
        ``_p_family``, the p of the head in the family of all heads. Analyses that were not run have no columns.
        """
        heads = check_heads(None, *self.sizes)
        table = pd.DataFrame({"layer": [h.layer for h in heads], "head": [h.head for h in heads]})
        for name, values in _text_columns(self.profile, heads).items():
            table[name] = values
        if self.labels is not None:
            table["categories"] = ["; ".join(self.labels.of(head)) for head in heads]
            best = _best(self.labels)
            table["best_relation"] = np.where(best["score"] > 0, best["best_relation"], "").ravel()
        for name, scores in self.views.items():
            for variable, column in _COLUMNS.items():
                if variable in scores.dataset and _has_column(variable, scores):
                    table[column.format(name)] = scores.dataset[variable].values.ravel()
        return table.set_index(pd.Index(head_names(table)))

    @checked
    def save(self, folder: str | Path) -> list[Path]:
        """Write every result (.nc), the table (heads.csv) and the rest (atlas.json).

        ``Atlas.load`` reads the folder; ``mh.explore`` writes the page.

        Returns:
            The paths of the files.

        Raises:
            ValueError: if the folder holds the atlas of another model, or of other settings, or a file of one of these
                names that no atlas wrote. Nothing is written then.
        """
        parts: dict[str, HeadScores | TableResult] = {**self.results, **self.tables}
        metadata = json.dumps({name: getattr(self, name) for name in _TEXTS} | {_OWN: list(self.own)}, indent=1)
        return save_parts(folder, parts, {"heads": self.to_dataframe()}, self.study, {_METADATA: metadata})

    @classmethod
    @checked
    def load(cls, folder: str | Path) -> Atlas:
        """Read what ``save`` or ``mechheads atlas`` wrote.

        Raises:
            FileNotFoundError: if the folder has no atlas.
            ValueError: if a file is damaged or was written by a newer version.
        """
        folder = Path(folder)
        if not (folder / _METADATA).is_file():
            raise FileNotFoundError(
                f"{folder} has no {_METADATA}; give a folder that `mechheads atlas` or Atlas.save has written"
            )
        metadata = read_json(folder / _METADATA)
        if not isinstance(metadata, dict) or set(metadata) != {*_TEXTS, _OWN}:
            raise ValueError(f"{folder / _METADATA} is damaged: it needs {', '.join((*_TEXTS, _OWN))}")
        own = metadata.pop(_OWN)
        atlas = cls(**metadata)
        paths = {name: folder / f"{own_file(name)}.nc" for name in own}
        atlas.own = {name: HeadScores.load(path) for name, path in paths.items() if path.is_file()}
        for name, kind in _KINDS.items():
            if (path := folder / f"{name}.nc").is_file():
                setattr(atlas, name, kind.load(path))
        for path in sorted(folder.glob("safety_*.nc"), key=lambda path: path.stem, reverse=True):
            atlas.safety[path.stem.removeprefix("safety_")] = SafetyHeads.load(path)
        return atlas

    @property
    def tables(self) -> dict[str, TableResult]:
        """The results that are not scores, by the name of their file without ``.nc``."""
        tables: dict[str, TableResult | None] = {
            "examples": self.examples,
            "patterns": self.patterns,
            "circuit": self.circuit,
        }
        return {name: table for name, table in tables.items() if table is not None}

    def __repr__(self) -> str:
        parts = [*self.results, *self.tables]
        return f"<Atlas of {self.model}{self._size}: {', '.join(parts) or 'no result'}. {_OPEN}>"

    @property
    def _size(self) -> str:
        has_result = self.results or self.tables
        return f", {' x '.join(map(str, self.sizes))} heads" if has_result else ""

    def __str__(self) -> str:
        """A table for each question."""
        parts = [str(question) for question in self.questions()]
        if not parts:
            return wrapped(repr(self))
        return "\n\n".join([f"{one_line(self.model)}{self._size}", *parts, *self._not_measured(), _OPEN])

    def _repr_html_(self) -> str:
        shown = ""
        for question in self.questions():
            title = f"{heading(question.title)} ({question.varies})" if question.varies else heading(question.title)
            notes = "".join(f"<p>{escape(line)}</p>" for line in question.warnings)
            shown += (
                f"<p>{escape(title)}</p>{html_table(question.table(), choose=False) if question.rows else ''}{notes}"
            )
        return f"<p>{escape(repr(self))}</p>{shown}"

    def questions(self, at_least: float | None = None) -> list[Question]:
        """The questions of the atlas, each with a table of the heads whose effect is large enough to name.

        Two scores are about one question if their prompts are the same, or are made from the same relation. A head is
        named if its interval lies beyond the smallest effect worth naming: 5% restored, 0.1 nats, phi 0.1 above its
        null. On text, it is named if it has a name. Without intervals, or a smallest effect, the ten largest are
        listed. The same tables are at the top of the page, in ``print(atlas)`` and in the output of the command line.

        Args:
            at_least: the smallest effect worth naming, in place of these.
        """
        return questions(self, at_least)

    def _not_measured(self) -> list[str]:
        """Lines about an interruption and the analyses that were not run."""
        absent = [name for name, part in self._analyses.items() if not part]
        lines = ["The work was interrupted."] if self.interrupted else []
        return [*lines, f"Not measured: {', '.join(absent)}."] if absent else lines

    @property
    def _analyses(self) -> dict[str, Any]:
        """The result of each analysis that an atlas can have, by its name in a sentence."""
        return {
            "attention on text": self.profile,
            "categories": self.labels,
            "patching": self.patching,
            "direct effects": self.direct,
            "safety heads": self.safety,
        }


_KINDS: dict[str, type[HeadScores] | type[TableResult]] = {
    **dict.fromkeys(("relations", "patching", "direct", "paths"), HeadScores),
    "labels": HeadLabels,
    "profile": HeadProfile,
    "examples": HeadExamples,
    "patterns": HeadPatterns,
    "circuit": Curves,
}
"""The parts of an atlas that have a file of their own, besides safety heads."""
ATLAS_FILES = (
    *(f"{name}.nc" for name in (*_KINDS, *(f"safety_{kind}" for kind in PAPER_KINDS))),
    "heads.csv",
    _METADATA,
)
"""The files that ``save`` writes, besides scores of your own."""


def _has_column(variable: str, scores: HeadScores) -> bool:
    """Whether the table has a column for a variable: p and q values only if there are some."""
    return variable not in ("p_family", "q_value") or bool(np.isfinite(scores.dataset[variable].values).any())


def _text_columns(profile: HeadProfile | None, heads: Sequence[HeadId]) -> dict[str, Any]:
    """The columns of the table that come from the profile."""
    if profile is None:
        return {}
    data = profile.dataset
    columns: dict[str, Any] = {"names": ["; ".join(profile.names(head)) for head in heads]}
    for at, behaviour in enumerate(PROFILED):
        column = f"by_{behaviour}" if behaviour == "position" else f"to_{behaviour}"
        for variable, ending in (("score", ""), ("ci_low", "_ci_low"), ("ci_high", "_ci_high")):
            columns[f"{column}{ending}"] = data[variable].values[..., at].ravel()
    for measure in ("entropy", "distance", "norm", "copying"):
        for variable, ending in (("", ""), ("_low", "_ci_low"), ("_high", "_ci_high")):
            columns[f"{measure}{ending}"] = data[f"{measure}{variable}"].values.ravel()
    return columns


def _best(labels: HeadLabels) -> xr.Dataset:
    """Each head's category with the largest phi."""
    data = labels.dataset
    return data.isel(category=data["score"].fillna(-1).argmax("category"))


def _phi(labels: HeadLabels) -> HeadScores:
    """Phi of each head's best relation."""
    best, data = _best(labels), labels.dataset
    ends = best["ci_low"].values, best["ci_high"].values
    flags = {name: (("layer", "head"), data[name].values.any(-1)) for name in ("member", "below_floor")}
    metadata: dict[str, Any] = {"unit": labels.unit, "kind": labels.kind, "provenance": labels.provenance}
    phi = HeadScores.from_scores(best["score"].values, name="phi of the best relation", interval=ends, **metadata)
    return phi.assign(**flags)


def _phi_of(labels: HeadLabels, relation: str) -> HeadScores:
    """Phi of one relation."""
    data = labels.dataset.sel(relation=relation)
    ends = data["phi_low"].values, data["phi_high"].values
    flags = {"member": data["is_evidence"].values, "below_floor": data["is_below_floor"].values}
    metadata: dict[str, Any] = {"unit": labels.unit, "kind": labels.kind, "provenance": labels.provenance}
    phi = HeadScores.from_scores(data["phi"].values, name=f"phi of {relation}", interval=ends, **metadata)
    phi = phi.assign(**{name: (("layer", "head"), values) for name, values in flags.items()})
    return phi.with_provenance(selected={"relation": relation})
