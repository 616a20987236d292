"""One run of a model: the cached activations of every head."""
