"""Roles of heads, from fitted gates."""
