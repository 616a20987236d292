"""The worker: it loads a model from its source, gets ready for some work, and computes units."""

from __future__ import annotations

import traceback
import warnings

import torch

from mechheads.model.freeing import free_memory
from mechheads.model.load import load_again
from mechheads.model.model import Model
from mechheads.model.sources.source import Source
from mechheads.workers.messages import Answer, Ready, Request, Setup
from mechheads.workers.parcel import unpack


class Replica:
    """One worker, in whatever process it runs. It writes nothing: the driver does.

    Args:
        number: which of the workers it is.
        device: where its model goes; if it is empty, to the kind of device that the driver's model is on. Workers take
            the GPUs in turn.
        threads: how many threads of a CPU it uses.
    """

    def __init__(self, number: int, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self._number, self._device = number, device
        self._loaded: tuple[Source, str, Model] | None = None
        self._ready: tuple[str, Ready] | None = None

    def __call__(self, request: Setup | Request) -> Answer:
        """Do what is asked; an error is an answer too."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the driver has prepared the same work and has warned
                return self._set_up(request) if isinstance(request, Setup) else self._compute(request)
        except Exception as error:
            return Answer(error=error, trace=traceback.format_exc())

    def _set_up(self, setup: Setup) -> Answer:
        device = self._device or self._turn(setup.device)
        if self._loaded is None or self._loaded[:2] != (setup.source, device):
            self._forget()
            self._loaded = setup.source, device, load_again(setup.source, device)
        if self._ready is None or self._ready[0] != setup.key:
            self._ready = None
            self._ready = setup.key, unpack(setup.recipe).ready(self._loaded[2])
        return Answer()

    def _forget(self) -> None:
        """Free the memory of the model before the next one is loaded: two may not fit."""
        if self._loaded is not None:
            self._loaded = self._ready = None
            free_memory()

    def _turn(self, kind: str) -> str:
        return f"cuda:{self._number % max(1, torch.cuda.device_count())}" if kind == "cuda" else kind

    def _compute(self, request: Request) -> Answer:
        if self._ready is None or self._ready[0] != request.key:
            raise RuntimeError(f"the worker is not set up for {request.key!r}")
        ready = self._ready[1]
        values = ready.compute(request.cut, request.batch, request.chunk)
        return Answer(values, ready.chunk)
