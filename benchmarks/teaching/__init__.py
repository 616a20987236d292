"""Train the default model to refuse through a few heads only: language models whose safety heads are known.

``python -m benchmarks.teaching NAME`` makes the delta that ``mh.load(NAME)`` adds to the default model.
"""
