"""What tables of README and the docs rest on, the check that no number changed, and the search for mistakes.

They use the tiny models and the plain loops of ``tests/support``.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).absolute().parent.parent / "tests"))
