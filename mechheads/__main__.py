"""``python -m mechheads`` is the command ``mechheads``."""

from mechheads.cli import main

main()
