"""Beyond one process: workers that compute the units of an analysis, and the ledgers of analyses that ran in parts."""

from mechheads.ledger.ledger import Ledger
from mechheads.scale.ray_cluster import Ray

__all__ = ["Ledger", "Ray"]
