"""Fingerprints: the same metric, intervention or model has the same one in another process, a changed one another.

What is hashed is what decides the result: a function's bytecode and constants, its defaults and closure, and the
global values it reads; a frozen dataclass' fields and its class' code. Names from installed libraries count by name
and version. Line numbers, file paths, addresses and Python's hash seed do not count. What a function finds by a name
made as it runs (``eval``, ``globals()[...]``) is not seen.
"""

from mechheads.fingerprints.models import model_fingerprint, weights_fingerprint
from mechheads.fingerprints.walk import fingerprint

__all__ = ["fingerprint", "model_fingerprint", "weights_fingerprint"]
