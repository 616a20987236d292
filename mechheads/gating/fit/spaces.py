"""A warning for targets that lack the space before them: they are tokens that no text has there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from mechheads.engine.answer_check import AnswerWarning
from mechheads.gating.tasks.task import Task
from mechheads.messages.warn import warn
from mechheads.prompts.tokens import shorten

_SAMPLE = 16
_MUCH_MORE_LIKELY = float(np.log(10))


def warn_of_missing_spaces(task: Task, log_probs: Callable[[Task], Float[np.ndarray, " item"]]) -> None:
    """Warn if most of a task's targets would be much more likely with a leading space.

    Args:
        log_probs: the log-probability of each whole target; NaN for items that cannot be used.
    """
    at = [i for i in range(len(task)) if _could_lack_a_space(task.prompts[i], task.targets[i])][:_SAMPLE]
    if not at:
        return
    some = task.items(at)
    spaced = Task(some.prompts, [f" {target}" for target in some.targets], name=task.name)
    try:
        given, better = log_probs(some), log_probs(spaced)
    except ValueError:  # none of them can be used in one of the two forms
        return
    much = better - given > _MUCH_MORE_LIKELY
    if 2 * much.sum() > len(at):
        i = int(much.argmax())
        warn(
            f"targets: with a leading space, {int(much.sum())} of {len(at)} are much more likely, such as "
            f"{spaced.targets[i]!r} ({better[i]:.2g} nats) than {some.targets[i]!r} ({given[i]:.2g} nats) after "
            f"{shorten(some.prompts[i])}. Write targets exactly as they continue the prompt",
            AnswerWarning,
        )


def _could_lack_a_space(prompt: object, target: object) -> bool:
    if not isinstance(prompt, str) or not isinstance(target, str):
        return False
    return not prompt[-1:].isspace() and not target[:1].isspace()
