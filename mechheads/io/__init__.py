"""Reading files: ``mechheads.io.rows`` for tables, and what reads text, JSON and cells."""

from mechheads.io.rows import rows

__all__ = ["rows"]
