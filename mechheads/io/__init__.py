"""Reading the rows of files: ``mechheads.io.rows``."""

from mechheads.io.rows import rows

__all__ = ["rows"]
