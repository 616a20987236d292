"""Writing files: each is written completely or not at all."""
