"""Scores of which heads refusals depend on."""
