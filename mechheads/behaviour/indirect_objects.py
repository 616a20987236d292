"""The roles of heads in indirect object identification, found path by path from the logits backwards.

Wang et al. 2022, arXiv 2211.00593, section 3. In each step one path is patched from p_ABC into p_IOI (the other way
would show which paths are enough):

| step | path | a head is called | if it attends, more than to the others, |
|---|---|---|---|
| ``final`` | to the logits | name mover; negative name mover if the path harms | from the end to the indirect object |
| ``queries`` | to the queries of the name movers | S-inhibition | from the end to a mention of the subject |
| ``values`` | to the values of the S-inhibition heads | duplicate token, induction | from S2 to S1, to S1 + 1 |
| ``keys`` | to the keys of the induction heads | previous token | from S1 + 1 to S1 |
| ``backup`` | to the logits, without the name movers | backup name mover | from the end to the indirect object |

A prompt of p_IOI names two people and one of them again. In p_ABC all three names are new, so that it says neither who
is named twice nor who is named once. The sentences are our own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from mechheads.engine.job import Job, prepare
from mechheads.heads import HeadId, HeadLike, check_head, check_heads
from mechheads.limits import current
from mechheads.messages.arguments import Positive, Share, check_at_least, check_known, check_several
from mechheads.messages.interrupted import stop_if, until_interrupted
from mechheads.messages.warn import warn
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.patching.path import path_patch
from mechheads.prompts.encoding import single_token
from mechheads.prompts.prompts import PromptPairs
from mechheads.prompts.tokens import encode, locate
from mechheads.results.dataset import STATISTICS
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.tables import TableResult
from mechheads.runs.head_cache import HeadCache

TEMPLATES = (
    "When {first} and {second} went to the store, {subject} gave a drink to",
    "When {first} and {second} walked in the garden, {subject} handed a flower to",
    "While {first} and {second} were at the school, {subject} passed a note to",
    "After {first} and {second} came home from the market, {subject} offered an apple to",
    "When {first} and {second} sat in the office, {subject} gave a book to",
    "Then, {first} and {second} waited for the train, and {subject} gave a ticket to",
    "While {first} and {second} were cleaning the kitchen, {subject} threw a towel to",
    "After {first} and {second} had a long walk, {subject} lent a jacket to",
)
_COMMON_NAMES = """
    Mary John Tom James Dan Sarah Michael David Anna Paul Mark Lisa Kate Jack Emma Peter Robert Laura Alice Bob
    Susan Jane George Henry Simon Martin Rachel Linda Karen Kevin Brian Steven Jason Adam Eric Amy Julia Maria
    Richard Thomas William Charles Joseph Daniel Andrew Scott Frank Alex Max Sam Ben Luke Ryan Matthew Victoria Rose
    Helen
"""
NAMES = tuple(_COMMON_NAMES.split())
_ORDERS = ("ABBA", "BABA")
"""The other person is named first, or the subject is."""


class _Sentence(NamedTuple):
    """A template and the people in it.

    Attributes:
        three: other people, for the corrupted prompt.
    """

    template: str
    order: str
    other: str
    subject: str
    three: tuple[str, ...]

    @property
    def named(self) -> tuple[str, str, str]:
        """The names in their order in the text; the last is the subject."""
        first, second = (self.other, self.subject) if self.order == "ABBA" else (self.subject, self.other)
        return first, second, self.subject

    def text(self, names: Sequence[str]) -> str:
        """The template with three names in it."""
        return self.template.format(first=names[0], second=names[1], subject=names[2])


def _sentences(templates: Sequence[str], names: Sequence[str], rng: np.random.Generator) -> Iterator[_Sentence]:
    """Sentences without end, whose templates and orders take turns."""
    for i in count():
        other, subject, *three = (names[int(j)] for j in rng.permutation(len(names))[:5])
        order = _ORDERS[i // len(templates) % 2]
        yield _Sentence(templates[i % len(templates)], order, other, subject, tuple(three))


def indirect_object_pairs(
    model: Model,
    n: int = 32,
    *,
    templates: Sequence[str] = TEMPLATES,
    names: Sequence[str] = NAMES,
    seed: int = 0,
) -> PromptPairs:
    """Pairs for indirect object identification: "When Mary and John went ..., John gave a drink to" -> " Mary".

    The corrupted prompt has three other names, all different: "When Anna and Paul went ..., Mark gave a drink to".
    Templates and the two orders of names take turns.

    Args:
        n: the number of pairs.
        templates: texts that contain ``{first}``, ``{second}`` and ``{subject}`` once each, in this order, each with a
            space before it, and end where the indirect object comes next.
        names: names to draw from; those that are not one token (with a leading space) in this model are left out.
        seed: for drawing names.

    Returns:
        The pairs with ``answer``, the indirect object, and ``wrong``, the subject; and the positions ``io``, ``s1``,
        ``s1_next`` (the token after the subject's first mention) and ``s2``, besides ``last``.

    Raises:
        ValueError: if a template lacks a field, or fewer than 5 names are one token.

    >>> pairs = mh.behaviour.indirect_object_pairs(model, 2)
    >>> print(pairs.clean[0], pairs.answer[0], sep=" ->")
    When Joseph and Lisa went to the store, Lisa gave a drink to -> Joseph
    """
    check_at_least(1, n=n)
    check_several("templates", templates)
    fields = ("{first}", "{second}", "{subject}")
    for template in templates:
        at = [template.find(" " + field) for field in fields]
        if min(at) < 0 or at != sorted(at) or any(template.count(field) != 1 for field in fields):
            raise ValueError(
                f"templates: {template!r} must contain {', '.join(fields)} once each, in this order, each after a space"
            )
    if model.tokenizer is None:
        raise ValueError("model has no tokenizer to tokenise the prompts; give one: mh.wrap(model, tokenizer=...)")
    usable = [name for name in dict.fromkeys(names) if single_token(f" {name}", model.tokenizer) is not None]
    if len(usable) < 5:
        raise ValueError(
            f"names: {len(usable)} of {len(names)} are one token for this model; at least 5 are needed, two for the "
            "clean prompt and three others: give more names"
        )
    rng = np.random.default_rng(seed)
    clean, corrupted, answer, wrong = [], [], [], []
    positions: dict[str, list[int]] = {"io": [], "s1": [], "s1_next": [], "s2": []}
    for i, one in enumerate(islice(_sentences(templates, usable, rng), n)):
        at = _positions(model, one.template, one.named, i)
        clean.append(one.text(one.named))
        corrupted.append(one.text(one.three))
        answer.append(f" {one.other}")
        wrong.append(f" {one.subject}")
        io, s1 = (at[0], at[1]) if one.order == "ABBA" else (at[1], at[0])
        for name, where in {"io": io, "s1": s1, "s1_next": s1 + 1, "s2": at[2]}.items():
            positions[name].append(where)
    return PromptPairs(clean, corrupted, answer, wrong, positions)


def _positions(model: Model, template: str, names: tuple[str, str, str], index: int) -> list[int]:
    """The tokens of the three names, in their order in the text."""
    text, spans = template, []
    for field, name in zip(("{first}", "{second}", "{subject}"), names, strict=True):
        start = text.index(field)
        text = text.replace(field, name)
        spans.append((start, start + len(name)))
    ids, text, offsets = encode(text, index, model)
    return [locate(span, "names", index, ids, text, offsets) for span in spans]


LOOKS = {
    "end to io": ("last", "io"),
    "end to s1": ("last", "s1"),
    "end to s2": ("last", "s2"),
    "s2 to s1": ("s2", "s1"),
    "s2 to s1 + 1": ("s2", "s1_next"),
    "s1 + 1 to s1": ("s1_next", "s1"),
}
"""Where attention is measured: from one position of the clean prompts to another."""
ROLES = (
    "name mover",
    "negative name mover",
    "backup name mover",
    "S-inhibition",
    "duplicate token",
    "induction",
    "previous token",
    "other",
)
STEPS = {"final": "end", "queries": "end", "values": "s2", "keys": "s1 + 1", "backup": "end"}
"""In their order; each with the token from which a head must look to have a role."""
_RECEIVERS = {
    "queries": ("name mover", "q", "last"),
    "values": ("S-inhibition", "v", "s2"),
    "keys": ("induction", "k", "s1_next"),
}
"""The role of the heads whose inputs are the receivers of a step, the site and the position; otherwise the logits."""
_ROLE_OF = {
    ("final", "end to io"): ("name mover", "negative name mover"),
    ("queries", "end to s1"): ("S-inhibition", "other"),
    ("queries", "end to s2"): ("S-inhibition", "other"),
    ("values", "s2 to s1"): ("duplicate token", "other"),
    ("values", "s2 to s1 + 1"): ("induction", "other"),
    ("keys", "s1 + 1 to s1"): ("previous token", "other"),
    ("backup", "end to io"): ("other", "backup name mover"),
}
"""The role of a head in a step by where it looks most: if the path helps, and if it harms; otherwise "other"."""
FDR = 0.05
_LEAST = 0.1
"""The share of attention that a duplicate-token, induction or previous-token head gives to its token at least."""


@dataclass(frozen=True, eq=False, repr=False)
class IndirectObjectRoles(TableResult):
    """The roles of heads in indirect object identification, with the effect behind each.

    Attributes:
        name, unit: the name and unit of the effects.
        table: one row for each head and step with an effect, the largest first within a role: role, head, layer, index,
            step, effect, ci_low, ci_high, p_value, q_value, p_family, share (of the mean logit difference), looks
            (where the head looks most, of the places that the step asks about) and attention (how much).
        steps: the effects of every head in each step.
        attention: the attention of every head between the named positions (layer, head, look).
        provenance: what is needed to repeat it; ``logit_diff`` and ``right`` say how well the model does the task.
    """

    KIND = "indirect_object"

    name: str
    unit: str
    table: pd.DataFrame
    steps: dict[str, HeadScores]
    attention: HeadScores
    provenance: dict[str, Any]

    def heads(self, role: str) -> tuple[HeadId, ...]:
        """The heads with a role, the largest effect first.

        Raises:
            ValueError: if there is no such role.
        """
        check_known("role", role, ROLES)
        return tuple(HeadId.parse(head) for head in self.table["head"][self.table["role"] == role])

    def roles(self, head: HeadLike) -> tuple[str, ...]:
        """The roles of a head; empty if it has none.

        Raises:
            ValueError: if there is no such head.
        """
        found = str(check_head(head, self.attention.n_layers, self.attention.n_heads))
        return tuple(self.table["role"][self.table["head"] == found])


@analysis
def indirect_object_roles(
    model: Model, pairs: PromptPairs | None = None, *, n: Positive = 32, most: Positive = 4, min_share: Share = 0.02
) -> IndirectObjectRoles:
    """Find the roles of heads in indirect object identification, as far as this model has them.

    Every step patches the paths of all heads to some receivers, from the prompts with three other names, and measures
    logit(indirect object) - logit(subject). A head counts if q <= 0.05 over all heads of the step and its effect is at
    least ``min_share`` of the mean logit difference. It has the role of the step if the path helps and its attention is
    what the role says (see the module's table; duplicate-token, induction and previous-token heads also need a tenth of
    their attention there). Otherwise its role is ``"other"``: it matters on this path in another way.

    Senders change at the position whose query, value or key is received: the last token, S2 and S1 + 1. All other heads
    are frozen, so nothing else of them reaches it. The receivers of a step are the ``most`` strongest heads of the role
    that the step before found; if it found none, the steps behind it are left out, with a warning. ``backup``: the name
    movers are all given their z of the other prompts, and what the heads after them then write is patched into the
    intact run, along the path to the logits. A backup name mover raises the logit difference by that. Name movers and
    negative name movers are not counted again.

    Args:
        pairs: from ``indirect_object_pairs``, or others with its positions; by default ``n`` of them.
        n: the number of pairs, if they are not given. With fewer than about 16 no p value is small enough for a role.
        most: the largest number of heads whose inputs are the receivers of a step.
        min_share: the smallest effect that counts.

    Returns:
        The roles. An effect is metric(patched) - metric(intact), so the paths that help have negative effects, and the
        effects of backup name movers are positive. After Ctrl-C, the roles of the finished steps.

    Raises:
        ValueError: if an argument is not valid or the pairs lack a position.
        KeyboardInterrupt: if Ctrl-C came before the first step was finished.

    Wang et al. 2022 (arXiv 2211.00593); Goldowsky-Dill et al. 2023 (arXiv 2304.05969).

    >>> roles = mh.behaviour.indirect_object_roles(model, n=16, most=1)
    >>> "L23H3" in set(roles.table["head"])  # it lowers the name that was mentioned last
    True
    """
    pairs = indirect_object_pairs(model, n, seed=current().seed) if pairs is None else pairs
    if missing := [name for name in ("io", "s1", "s1_next", "s2") if name not in pairs.positions]:
        raise ValueError(
            f"pairs have no position {missing[0]!r}; give pairs from mh.behaviour.indirect_object_pairs, or name the "
            "positions io, s1, s1_next and s2"
        )
    job = prepare(model, pairs, sites=("z", "q", "k", "v", "pattern"))
    attention = _attention(job)
    steps: dict[str, HeadScores] = {}
    rows: list[dict[str, Any]] = []

    def measure(step: str, job: Job, **paths: Any) -> None:
        found = path_patch(job, **paths)
        stop_if(found.provenance["interrupted"])
        rows.extend([*_with_roles(step, found, attention, min_share)])
        steps[step] = found

    def heads(role: str) -> list[HeadId]:
        """All heads with a role, the largest effect first."""
        of_role = sorted((row for row in rows if row["role"] == role), key=lambda row: -abs(row["effect"]))
        return [HeadId.parse(row["head"]) for row in of_role]

    with until_interrupted() as interrupts:
        measure("final", job, receivers="final")
        for step, (role, site, position) in _RECEIVERS.items():
            strongest = heads(role)[:most]
            if receivers := [f"{head}.{site}" for head in strongest if head.layer]:
                measure(step, job, receivers=receivers, positions=position)
            elif len(steps) == list(STEPS).index(step):
                why = "all of them are in layer 0" if strongest else "there is none"
                warn(f"the step {step!r} goes to {role} heads, but {why}; it is left out, and so are those behind it")
        movers, direct = sorted(heads("name mover")), {*heads("name mover"), *heads("negative name mover")}
        every = check_heads(None, model.n_layers, model.n_heads)
        if later := [head for head in every if movers and head.layer > movers[0].layer and head not in direct]:
            measure("backup", _ablated(job, movers), receivers="final", senders=later)
    interrupts.stop_unless(steps)
    interrupts.warn(f"{len(steps)} of {len(STEPS)} steps", "the roles of the others are missing")
    rows.sort(key=lambda row: (ROLES.index(row["role"]), -abs(row["effect"])))
    lead = steps["final"].dataset["base_metric"].values
    columns = ("role", "head", "layer", "index", "step", "effect", *STATISTICS[1:])
    return IndirectObjectRoles(
        "roles in indirect object identification",
        "logits",
        pd.DataFrame(rows, columns=[*columns, "share", "looks", "attention"]),
        steps,
        attention,
        make_provenance(
            model,
            prompts=job,
            n_prompts=len(job.tokens),
            logit_diff=float(lead.mean()),
            right=float((lead > 0).mean()),
            interrupted=interrupts.interrupted,
        ),
    )


def _with_roles(step: str, effects: HeadScores, attention: HeadScores, min_share: float) -> Iterator[dict[str, Any]]:
    """A row of the table for each head with an effect."""
    lead = abs(float(effects.dataset["base_metric"].values.mean()))
    for head in check_heads(None, effects.n_layers, effects.n_heads):
        row = effects[head]
        if not (row["q_value"] <= FDR and abs(row["score"]) >= min_share * lead):
            continue
        looks = dict(zip(LOOKS, attention[head]["score"].tolist(), strict=True))
        where = max((look for look in LOOKS if look.startswith(f"{STEPS[step]} to")), key=lambda look: looks[look])
        role = _ROLE_OF.get((step, where), ("other", "other"))[row["score"] >= 0]
        if step in ("values", "keys") and looks[where] < _LEAST:
            role = "other"
        yield {
            "role": role,
            "head": str(head),
            "layer": head.layer,
            "index": head.head,
            "step": step,
            "effect": row["score"],
            **{name: row[name] for name in STATISTICS[1:]},
            "share": abs(row["score"]) / lead,
            "looks": where,
            "attention": looks[where],
        }


def _attention(job: Job) -> HeadScores:
    """The attention of every head between the named positions, in the clean prompts."""
    run, where = job.base, job.tokens.positions
    row = torch.arange(len(job.tokens), device=job.tokens.ids.device)
    of_layers = [
        torch.stack([run.pattern.layer(layer)[row, :, where[a], where[b]].T for a, b in LOOKS.values()], dim=1)
        for layer in range(job.model.n_layers)
    ]
    return HeadScores.from_values(
        torch.stack(of_layers).double().cpu().numpy(),
        name="attention between the names",
        unit="share of attention",
        kind="indirect_object",
        cluster=job.tokens.cluster,
        extra={"look": list(LOOKS)},
        null=None,
        provenance=make_provenance(job.model, prompts=job, n_prompts=len(job.tokens)),
    )


def _ablated(job: Job, heads: Sequence[HeadId]) -> Job:
    """The job with another source run: the clean prompts, while some heads have their z of the corrupted prompts."""
    source = job.runs.run("corrupted", ("z",), job.spec.limits)
    z = {head: source.z[head] for head in heads}
    return replace(job, runs=job.runs.with_run("corrupted", HeadCache.run(job.model, job.tokens, sites=("z",), held=z)))
