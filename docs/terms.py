"""Write ``front/src/terms.ts``, the words that the explorer's page explains: ``python -m docs.terms``."""

from __future__ import annotations

import json
import re
from pathlib import Path

from docs.contract import WRITTEN as CONTRACT

GLOSSARY = Path(__file__).parent / "glossary.md"
WRITTEN = CONTRACT.parent / "terms.ts"
_EXPLAINED = """
ablation; activation patching; atlas; category; circuit; direct effect; facilitation; faithfulness; family p; gate;
induction head; interference; irrelevance; KL divergence; label; logit difference; look-alike; nat; null; OV circuit;
path patching; phi; q value; reading; Refusal attribution; Refusal Contribution; relation; residual stream; rival;
Sahara; self-repair; Ships; verdict; view
"""


def explained() -> dict[str, str]:
    """The words and what the glossary says of them, without markup."""
    blocks = re.findall(r"^```{glossary}\n(.*?)^```", GLOSSARY.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    entries: dict[str, str] = {}
    for words, said in re.findall(r"((?:^\S.*\n)+)((?:^  .*\n)+)", "\n".join(blocks), re.MULTILINE):
        entries |= dict.fromkeys(words.splitlines(), _plain(said))
    return {word: entries[word] for word in re.split(r";\s+", _EXPLAINED.strip())}


def _plain(said: str) -> str:
    said = re.sub(r"\{\w+\}`([^`<]+?)(?: <[^`]*>)?`", r"\1", " ".join(said.split()))
    said = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", said)
    return re.sub(r"[`*]", "", said)


def text() -> str:
    """The whole file."""
    lines = [f"  {json.dumps(word)}: {json.dumps(said, ensure_ascii=False)}," for word, said in explained().items()]
    head = "/** Written by `python -m docs.terms` from docs/glossary.md: words that the page explains. */"
    return "\n".join([head, "export const TERMS: Readonly<Record<string, string>> = {", *lines, "};", ""])


if __name__ == "__main__":
    WRITTEN.write_text(text(), encoding="utf-8")
