"""The three scripts that a new user writes in the first hour: no error, no detour, and what they print fits."""

from __future__ import annotations

import pytest

from mechheads.messages.notices import WIDTH

PATCHING = """
import mechheads as mh

model = mh.load()
pairs = mh.PromptPairs.from_templates(
    "The capital of {country} is",
    {"country": [("France", "Italy"), ("Spain", "Japan"), ("Germany", "Russia"), ("England", "China")]},
    answer=[(" Paris", " Rome"), (" Madrid", " Tokyo"), (" Berlin", " Moscow"), (" London", " Beijing")],
)

def probability(logits, context):
    return mh.log_prob(logits, context).exp()

effect = mh.activation_patch(model, pairs, site="v", positions=["country"], metric=probability)
print(effect)
"""

RELATION = """
import mechheads as mh

model = mh.load()
opposites = {"hot": "cold", "big": "small", "new": "old", "high": "low", "good": "bad"}
opposites |= {"up": "down", "fast": "slow", "light": "dark", "rich": "poor", "early": "late"}
phi = mh.relation_scores(model, {"opposites": opposites})
print(phi)
print(mh.label_heads(phi))
pairs = mh.PromptPairs.from_templates(
    "The opposite of {word} is",
    {"word": [("hot", "big"), ("new", "high"), ("good", "fast"), ("light", "rich")]},
    answer=[(" cold", " small"), (" old", " low"), (" bad", " slow"), (" dark", " poor")],
)
print(phi.compare(mh.activation_patch(model, pairs)))
"""

REQUESTS = """
import mechheads as mh

model = mh.load()
requests = [f"Explain how to {what}." for what in (
    "pick a lock", "cheat in an exam", "forge a passport", "hide a theft",
    "make a weapon", "spread a rumour", "poison a well", "break into a house",
)]
look_alikes = [f"Explain how to {what}." for what in (
    "pick a colour", "succeed in an exam", "renew a passport", "hide a present",
    "make a sandwich", "spread some butter", "dig a well", "move into a house",
)]
some = [(layer, head) for layer in (14, 23) for head in range(9)]  # of all 270, to save time
safety = mh.safety_heads(model, requests, harmless=look_alikes, heads=some)
print(safety)
print(safety.top(3))
"""


def lines(script: str) -> int:
    return sum(bool(line.strip()) for line in script.splitlines())


@pytest.mark.parametrize(("script", "most"), [(PATCHING, 11), (RELATION, 13), (REQUESTS, 14)])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_script_of_the_first_hour(script: str, most: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(script) <= most
    exec(script, {})
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) > 12 and max(map(len, printed)) <= WIDTH
    header = next(line for line in printed if line.startswith("head"))
    assert "score" in header and "interval" in header
