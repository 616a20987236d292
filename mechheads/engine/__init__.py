"""The engine: runs every experiment as a job and recomputes only what a change can reach."""
