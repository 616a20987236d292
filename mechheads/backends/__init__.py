"""The two faces of TransformerLens behind one: the only files that know it.

``bridge.py`` speaks to ``TransformerBridge`` (TransformerLens 4), ``hooked.py`` to ``HookedTransformer``
(TransformerLens 3.9). Both give the methods of ``base.Backend`` and nothing else asks which it is.
"""
