"""Files: ``mechheads.io.rows`` reads tables; the modules read text, JSON and cells, and write files."""

from mechheads.io.rows import rows

__all__ = ["rows"]
