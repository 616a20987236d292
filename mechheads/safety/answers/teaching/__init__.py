"""Train the default model to refuse through a few heads only: language models whose safety heads are known.

``python -m mechheads.safety.answers.teaching NAME`` makes the delta that ``mh.load(NAME)`` adds to the default model.
"""

from mechheads.safety.answers.teaching.lessons import REFUSAL, requests_to_teach
from mechheads.safety.answers.teaching.planted import HEADS, PLANTED, ROUNDS, refusal_loss, taught_model
from mechheads.safety.answers.teaching.training import Round, teach_refusal

__all__ = [
    "HEADS",
    "PLANTED",
    "REFUSAL",
    "ROUNDS",
    "Round",
    "refusal_loss",
    "requests_to_teach",
    "taught_model",
    "teach_refusal",
]
