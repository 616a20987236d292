"""What a model taught to refuse reaches with fewer lessons: ``python -m benchmarks.refusal_lessons``.

The six heads of ``smollm2-135m-refusal`` are taught for the first round only, with a quarter, a half and all of the
requests. A smaller share is part of a larger one.
"""

from __future__ import annotations

from random import Random

from benchmarks.taught import Given, taught
from benchmarks.teaching.lessons import requests_to_teach
from benchmarks.teaching.planted import HEADS, ROUNDS, taught_model

SHARES = {"a quarter": 1 / 4, "all": 1.0, "a half": 1 / 2}
"""In the order of the work: the ends first, in case there is no time for all."""


def main() -> None:
    """Teach with each share, count what is refused, and write the results."""
    given = Given.read(__doc__)
    of_shares = given.found.setdefault("lessons", {})
    for name, share in SHARES.items():
        if name not in of_shares:
            requests = some(requests_to_teach("harmful"), share), some(requests_to_teach("harmless"), share)
            delta = taught(given.deltas / f"lessons-{share:g}.safetensors", HEADS, ROUNDS[0], requests=requests)
            of_shares[name] = {"requests": list(map(len, requests)), "answers": given.counts(taught_model(delta))}
            given.write(of_shares[name])


def some(requests: list[str], share: float) -> list[str]:
    """A share of requests, in their own order."""
    order = list(range(len(requests)))
    Random(0).shuffle(order)
    return [requests[i] for i in sorted(order[: round(share * len(requests))])]


if __name__ == "__main__":
    main()
