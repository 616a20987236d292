"""The engine: every experiment is a job, and only what a change reaches is computed again."""
