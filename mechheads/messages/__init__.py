"""Messages to the user: progress bars, warnings, "did you mean"."""
