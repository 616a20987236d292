"""The explorer: a page about the heads of a model, and a notebook widget that also runs the reader's texts."""
