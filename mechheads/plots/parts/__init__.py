"""Parts that the figures share: axes, text, traces."""
