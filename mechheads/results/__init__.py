"""What an analysis gives: scores of heads, tables of sets of heads, and their statistics."""
