"""Write a file completely or not at all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path in the same folder to write to; what is there at the end of the block replaces the file.

    A reader sees either the old file or the new one, never a part of it. After an error the old file stays.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "note.txt")
    >>> with replacing(file) as unfinished:
    ...     _ = unfinished.write_text("whole")
    >>> file.read_text()
    'whole'
    """
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
