"""Named heads of the literature: one paper a file, each a few steps over the engine, each with its controls."""
