"""Messages to the user: checks of arguments, warnings, "did you mean"."""
