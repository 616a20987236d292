"""Files: ``mechheads.io.rows`` reads tables; other modules read text, JSON and cells, and write files."""

from mechheads.io.rows import rows

__all__ = ["rows"]
