"""What makes the models of ``mechheads/data/known``, and how well methods find their heads.

- ``python -m benchmarks.truth`` scores methods on them.
- ``compile_programs.py`` and ``compile_phi3.py`` compile programs to the files in ``compiled``, in environments of
  their own; ``python -m benchmarks.truth.compiled_weights`` makes models of these.
- ``python -m benchmarks.truth.train_circuits`` trains models.
- ``python -m benchmarks.truth.behaving`` computes the weights of a behaving model.
"""
