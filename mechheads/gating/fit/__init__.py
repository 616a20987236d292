"""Fit gates by gradient descent."""
