"""Fingerprints: hashes of metrics, interventions and models that are the same in every process until one changes."""

from mechheads.ledger.fingerprints.models import (
    carried_hooks,
    model_fingerprint,
    structure_fingerprint,
    weights_fingerprint,
)
from mechheads.ledger.fingerprints.walk import fingerprint

__all__ = ["carried_hooks", "fingerprint", "model_fingerprint", "structure_fingerprint", "weights_fingerprint"]
