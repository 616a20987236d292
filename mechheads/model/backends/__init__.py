"""Adapters that give both kinds of TransformerLens model one interface, ``base.Backend``.

``bridge.py`` adapts ``TransformerBridge`` (TransformerLens 4), ``hooked.py`` adapts ``HookedTransformer``
(TransformerLens 3.9). No other file depends on which of the two a model is.
"""
