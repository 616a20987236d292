"""A machine that looks for what nobody thought of: ``python -m benchmarks.differential --minutes 10 --seed 0``.

It draws a case: a tiny model, a tokenizer, a chat template, what is wrong or special about the files, what happens to
the model after loading, what the prompts come in, and an analysis. The case is run with mechheads' public functions,
and again with plain transformers and torch. It must end *equal*, or *refused* in a sentence that names the argument.
Anything else is a finding: it is made as small as possible, and printed as a script.
"""
