"""Beyond one process: workers that compute the units of an analysis, and analyses that run in parts."""

from mechheads.ledger.ledger import merge
from mechheads.scale.analysis_file import read_analysis, write_analysis
from mechheads.workers.ray_cluster import Ray

__all__ = ["Ray", "merge", "read_analysis", "write_analysis"]
