"""Patching: from one run into another."""
