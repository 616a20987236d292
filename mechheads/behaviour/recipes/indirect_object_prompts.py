"""Sentences whose last word is the indirect object, and the same sentences about three other people.

Wang et al. 2022, "Interpretability in the Wild: a Circuit for Indirect Object Identification in GPT-2 Small", arXiv
2211.00593, section 2 and appendix: p_IOI names two people and one of them again; in p_ABC all three names are new, so
that it says neither who is named twice nor who is named once. Our sentences are our own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np

from mechheads.messages.arguments import check_at_least, check_several
from mechheads.model.model import Model
from mechheads.patching.task_items import NAMES, TEMPLATES, sentences
from mechheads.prompts.encoding import single_token
from mechheads.prompts.prompts import PromptPairs
from mechheads.prompts.tokens import encode, locate


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
    for i, one in enumerate(islice(sentences(templates, usable, rng), n)):
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
