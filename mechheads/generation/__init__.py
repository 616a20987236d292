"""What a model writes, as it is or with heads changed."""
