"""Tasks: prompts, each with its target."""
