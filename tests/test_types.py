"""Annotations and jaxtyping shapes hold at run time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_main_paths_hold_their_annotations(tiny):
    script = Path(__file__).parent / "support" / "typed_run.py"
    done = subprocess.run([sys.executable, script, tiny("llama")], capture_output=True, text=True, check=False)
    assert done.stdout.strip().endswith("typed"), done.stderr[-4000:]
