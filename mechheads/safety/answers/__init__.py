"""Answers of a model with some heads changed, and whether they are refusals."""
