"""Requests: their sources, and their prompts."""
