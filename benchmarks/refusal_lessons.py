"""What a model taught to refuse reaches with fewer lessons: ``python -m benchmarks.refusal_lessons``.

The six heads of ``smollm2-135m-refusal`` are taught for the first round only, with a quarter, a half and all of the
requests. A smaller share is part of a larger one.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from random import Random

from benchmarks.refusal import PLACE
from benchmarks.refusal_independent import counts, sets, write
from benchmarks.taught import taught
from mechheads.safety.answers.teaching import HEADS, ROUNDS, requests_to_teach, taught_model

SHARES = {"a quarter": 1 / 4, "all": 1.0, "a half": 1 / 2}
"""In the order of the work: the ends first, in case there is no time for all."""


def main() -> None:
    """Teach with each share, count what is refused, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PLACE, help="what it already has is not measured again")
    parser.add_argument("--deltas", type=Path, default=Path("taught"), help="a folder for what was taught")
    parser.add_argument("--unsafe", type=Path, nargs="*", default=[], help="files with requests to refuse")
    parser.add_argument("--safe", type=Path, nargs="*", default=[], help="files with requests to answer")
    given = parser.parse_args()
    asked = sets(given.unsafe, given.safe)
    found = json.loads(given.out.read_text()) if given.out.exists() else {}
    of_shares = found.setdefault("lessons", {})
    for name, share in SHARES.items():
        if name not in of_shares:
            requests = some(requests_to_teach("harmful"), share), some(requests_to_teach("harmless"), share)
            delta = taught(given.deltas / f"lessons-{share:g}.safetensors", HEADS, ROUNDS[0], requests=requests)
            of_shares[name] = {"requests": list(map(len, requests)), "answers": counts(taught_model(delta), asked)}
            write(given.out, found, of_shares[name])


def some(requests: list[str], share: float) -> list[str]:
    """A share of requests, in their own order."""
    order = list(range(len(requests)))
    Random(0).shuffle(order)
    return [requests[i] for i in sorted(order[: round(share * len(requests))])]


if __name__ == "__main__":
    main()
