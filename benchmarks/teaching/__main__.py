"""Teach one of the package's refusing models: ``python -m benchmarks.teaching smollm2-135m-refusal``."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.teaching.planted import PLANTED, ROUNDS
from benchmarks.teaching.training import teach_refusal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=tuple(PLANTED))
    parser.add_argument("--out", type=Path, help="the file to write; by default, the name with .safetensors")
    given = parser.parse_args()
    out, delta = given.out or Path(f"{given.name}.safetensors"), None
    for each in ROUNDS:
        delta = teach_refusal(PLANTED[given.name], by=each, start=delta)
        delta.save(out)
    print(f"{out}: {out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
