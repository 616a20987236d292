"""Fingerprints: hashes of metrics, interventions and models that are the same in every process until one changes.

A fingerprint covers what decides the result: a function's bytecode and constants, its defaults and closure, and the
global values it reads; a frozen dataclass's fields and its class's code. Names from installed libraries count by name
and version. Line numbers, file paths, addresses and Python's hash seed do not count. What a function looks up by a name
computed at run time (``eval``, ``globals()[...]``) is not covered.
"""

from mechheads.ledger.fingerprints.models import (
    carried_hooks,
    model_fingerprint,
    structure_fingerprint,
    weights_fingerprint,
)
from mechheads.ledger.fingerprints.walk import fingerprint

__all__ = ["carried_hooks", "fingerprint", "model_fingerprint", "structure_fingerprint", "weights_fingerprint"]
