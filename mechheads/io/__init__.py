"""Files: ``mechheads.io.rows`` for tables, what reads text, JSON and cells, and what writes."""

from mechheads.io.rows import rows

__all__ = ["rows"]
