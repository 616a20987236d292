"""Cached runs of a model: the activations of every head."""
