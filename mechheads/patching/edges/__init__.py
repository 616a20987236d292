"""Edge attribution patching: how much each head and MLP does through each of its readers."""
