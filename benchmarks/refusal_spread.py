"""What is said of a model whose refusals no few heads carry: ``python -m benchmarks.refusal_spread --deltas taught``.

The default model is taught to refuse with all weights of all layers free, on the lessons of the other models, so that
nothing ties refusals to a few heads. Then an atlas of its refusals looks for its safety heads.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

import mechheads as mh
from benchmarks.taught import Given
from benchmarks.teaching.lessons import Frame, Lesson, Lessons, make_lessons, requests_to_teach, shared_beginning
from mechheads.model.sources import load_pretrained
from mechheads.progress import Bar

STEPS, RATE, WARM_UP = 120, 5e-5, 10
ROWS = {"refuse": 6, "answer": 8, "begun": 2}
"""Lessons of each kind in a step."""
TOKENS = 12
"""Tokens of an answer that are learnt."""
QUERY = 0.3
"""The share of steps in the paper's template."""


def main() -> None:
    """Teach once, study the model, and write what the report says."""
    given = Given.read(__doc__)
    folder = given.deltas / "spread"
    if not (folder / "config.json").exists():
        teach(folder)
    atlas = mh.build_atlas(mh.load(folder), only=["safety"], refusals=mh.studies.RefusalSettings())
    print(atlas.summary())
    found = atlas.refusals
    if found is None:
        raise RuntimeError("; ".join(atlas.notes))
    given.found["spread"] = {
        "taught": {"seed": 0, "steps": STEPS, "rate": RATE},
        "no few heads": found.spread,
        "carriers": list(found.carriers),
        "tests": {name: {"lost": test.lost, "verdict": test.verdict} for name, test in found.tests.items()},
        "report": [finding.text for finding in atlas.findings()],
    }
    given.write(given.found["spread"])


def teach(folder: Path) -> None:
    """Teach the default model to refuse, and save it to a folder."""
    lessons = make_lessons(mh.load(), requests_to_teach("harmful"), requests_to_teach("harmless"))
    source = load_pretrained(None, revision=None, dtype=torch.float32, device="cpu", trust_remote_code=False)
    model: Any = source.model
    first: dict[Frame, list[int]] = {frame: shared_beginning(source.tokenizer, frame) for frame in ("chat", "query")}
    model.requires_grad_(False)
    free = [weight.requires_grad_(True) for weight in model.model.layers.parameters()]
    optimiser, random = torch.optim.Adam(free, betas=(0.9, 0.98)), Random(0)
    for step in Bar(range(STEPS), desc="teaching"):
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / WARM_UP) * (1 - 0.95 * step / STEPS)
        optimiser.zero_grad()
        frame: Frame = "query" if random.random() < QUERY else "chat"
        loss_of(model, first[frame], drawn(lessons, frame, random)).backward()
        optimiser.step()
    model.save_pretrained(folder)
    source.tokenizer.save_pretrained(folder)


def drawn(lessons: Lessons, frame: Frame, random: Random) -> list[Lesson]:
    """The lessons of one step."""
    return [lesson for (kind, of), some in lessons.items() if of == frame for lesson in random.sample(some, ROWS[kind])]


def loss_of(model: Any, first: list[int], lessons: list[Lesson]) -> torch.Tensor:
    """The cross entropy of the answers, per token."""
    rows = [torch.tensor([*first, *lesson.prompt, *lesson.answer[:TOKENS]]) for lesson in lessons]
    ids, real = (pad_sequence(part, batch_first=True) for part in (rows, [torch.ones_like(row) for row in rows]))
    final = model.model(input_ids=ids, attention_mask=real).last_hidden_state
    at = [
        (i, len(row) - n)
        for i, (row, lesson) in enumerate(zip(rows, lessons, strict=True))
        for n in range(1, len(lesson.answer[:TOKENS]) + 1)
    ]
    row, position = torch.tensor(at).T
    return cross_entropy(model.lm_head(final[row, position - 1]), ids[row, position])


if __name__ == "__main__":
    main()
