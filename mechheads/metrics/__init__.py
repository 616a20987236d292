"""Metrics: what an experiment measures, one number per prompt from the logits."""
