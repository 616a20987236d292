"""One tool in a process of its own: ``python -m benchmarks.worker TOOL`` reads one JSON request per line from stdin.

The first request is ``{"spec": ..., "threads": ...}``; all later ones are ``{"workload": ..., "heads": ...}``. The
answer to each is one line on stdout: the result, or ``{"error": ...}``.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any

import torch

from benchmarks.runner import Local
from benchmarks.workloads import ModelSpec, Workload


def main() -> None:
    key, loaded = sys.argv[1], []

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if "spec" in request:
            torch.set_num_threads(request["threads"])
            loaded.append(Local(key, ModelSpec.from_json(request["spec"])))
            return loaded[0].about
        heads = [(layer, head) for layer, head in request["heads"]]
        done = loaded[0].run(Workload.from_json(request["workload"]), heads)
        return asdict(done) | {"values": done.values.tolist()}

    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)  # text that libraries print goes to stderr, not among the answers
        for line in sys.stdin:
            try:
                reply = answer(json.loads(line))
            except Exception as error:
                reply = {"error": f"{type(error).__name__}: {error}"}
            out.write(json.dumps(reply) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
