"""Workers compute with the model of their driver, or not at all."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from mechheads.ledger.fingerprints import model_fingerprint
from mechheads.model.backends.state import arithmetic
from mechheads.model.model import Model, source_of
from mechheads.workers.messages import Setup
from mechheads.workers.ray_cluster import library


@dataclass(frozen=True)
class SameModel:
    """What a worker's model must have in common with the driver's.

    Attributes:
        mark: the fingerprint of the model.
        device: the kind of device that it is on.
    """

    mark: str
    device: str

    @classmethod
    def of(cls, model: Model, mark: str | None = None) -> SameModel:
        """What another model must have in common with this one.

        Args:
            mark: the model's fingerprint, if it is known.

        Raises:
            ValueError: if the model carries hooks.
        """
        return cls(mark or model_fingerprint(model.model, "workers"), arithmetic(model.device))

    def check(self, model: Model) -> None:
        """Check a worker's model.

        Raises:
            ValueError: if it is another model, or on another kind of device.
        """
        if (here := arithmetic(model.device)) != self.device:
            raise ValueError(
                f"workers: the model is on {self.device} in this process and on {here} on a worker, which rounds "
                'differently; load it on the same kind of device, such as mh.load(device="cuda")'
            )
        if model_fingerprint(model.model, "workers") != self.mark:
            raise ValueError(
                f"workers: model {model.name!r} on the worker is not the model of this process: its weights were "
                "changed after it was loaded, or the worker has other files or other libraries. Save a changed model "
                "with save_pretrained and load the folder with mh.load, or leave workers out"
            )


def setup_of(model: Model, recipe: object) -> Setup:
    """What workers need for work on a model: a ``Recipe``.

    Raises:
        ValueError: if workers cannot load the model, or the recipe cannot be sent.
    """
    source = source_of(model)
    try:
        packed = library().cloudpickle.dumps(recipe)
    except Exception as error:  # the class of anything that is sent may raise what it likes
        raise ValueError(
            f"workers: this analysis cannot be sent to another process ({type(error).__name__}: {error}); define its "
            "functions and classes in a file of their own and import them, or leave workers out"
        ) from error
    return Setup(hashlib.sha256(packed).hexdigest(), source, model.device.type, packed)
