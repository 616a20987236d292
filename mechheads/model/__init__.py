"""Models: loading, weights, and the adapters to TransformerLens (no other folder imports it)."""
