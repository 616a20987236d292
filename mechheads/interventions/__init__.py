"""What becomes of a head: every intervention is a new value for its z."""
