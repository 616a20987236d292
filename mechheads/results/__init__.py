"""Results of analyses: scores of heads, tables about sets of heads, and their statistics."""
