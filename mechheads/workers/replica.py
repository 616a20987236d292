"""The worker: it loads a model from its source, gets ready for some work, and computes units."""

from __future__ import annotations

import pickle
import sys
import warnings

import torch

from mechheads.limits import settings
from mechheads.model.load import load_again
from mechheads.model.model import Model
from mechheads.workers.messages import Answer, Ready, Request, Setup


class Replica:
    """One worker, with one model. It writes nothing: the driver does.

    Args:
        threads: how many threads of a CPU it uses.
    """

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        warnings.simplefilter("ignore")  # the driver has prepared the same work and has warned
        self._model: Model | None = None
        self._ready: tuple[str, Ready] | None = None

    def set_up(self, setup: Setup) -> Answer:
        """Load the model, if that was not done, and get ready for some work."""
        sys.path += [folder for folder in setup.path if folder not in sys.path]
        with settings(progress=False):
            if self._model is None:
                self._model = load_again(setup.source, setup.device)
            if self._ready is None or self._ready[0] != setup.key:
                self._ready = None
                self._ready = setup.key, pickle.loads(setup.recipe).ready(self._model)
        return Answer()

    def compute(self, request: Request) -> Answer:
        """Compute some units."""
        if self._ready is None:
            raise RuntimeError("the worker is not set up")
        ready = self._ready[1]
        with settings(progress=False):
            return Answer(ready.compute(request.cut, request.batch, request.chunk), ready.chunk)
