"""The heads that a model's refusals depend on: scores (Ships, Refusal Contribution), groups, answers, requests."""

from mechheads.model.sources.default import taught_heads
from mechheads.results.agreement import overlap
from mechheads.safety.heads.contribution import refusal_contribution
from mechheads.safety.heads.refusal_attribution import refusal_attribution
from mechheads.safety.heads.safety_heads import SafetyHeads, compare_ablations, safety_heads
from mechheads.safety.heads.sahara import HeadGroup, sahara
from mechheads.safety.heads.ships import generalized_ships, ships
from mechheads.safety.judge import rule_judge, verdict, verdicts
from mechheads.safety.openings import OPENING
from mechheads.safety.refusal import (
    AnswerSettings,
    RefusalTest,
    attack_curve,
    ordinary_texts,
    refusal_test,
    text_loss,
)
from mechheads.safety.requests import TEMPLATES, TextSet, folded, load_requests, request_prompts

__all__ = [
    "OPENING",
    "TEMPLATES",
    "AnswerSettings",
    "HeadGroup",
    "RefusalTest",
    "SafetyHeads",
    "TextSet",
    "attack_curve",
    "compare_ablations",
    "folded",
    "generalized_ships",
    "load_requests",
    "ordinary_texts",
    "overlap",
    "refusal_attribution",
    "refusal_contribution",
    "refusal_test",
    "request_prompts",
    "rule_judge",
    "safety_heads",
    "sahara",
    "ships",
    "taught_heads",
    "text_loss",
    "verdict",
    "verdicts",
]
