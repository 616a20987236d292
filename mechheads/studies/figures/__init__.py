"""The figures of three papers for several models: which heads have which category, safety score or role."""
