"""Sites: the activations of a head that can be read and changed."""

from __future__ import annotations

SITES = ("z", "pattern", "q", "k", "v")
"""The sites that users name; the others are used by the engine only."""
HEAD_SITES = (*SITES, "scored_q", "scored_k")
KEY_SITES = ("k", "v", "scored_k")
"""The sites with one entry for each key/value head; a change at one position affects every later token."""
RUN_SITES = ("resid_pre", "keys", "values")
"""Further activations that resuming a run needs: the residual stream, and keys and values after rotation."""
INNER_SITES = (*RUN_SITES, "mlp_out")
"""The activations that have no heads, or are used by the engine only; ``mlp_out`` is what an MLP adds to the stream."""
