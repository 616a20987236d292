"""Compile RASP programs to the files in ``compiled``, from which ``compiled_weights.py`` makes models.

It needs tracr with jax, which the package does not: ``pip install tracr-pypi==1.0.0 safetensors`` in an environment of
its own (Python 3.11, jax 0.10.2 and dm-haiku 0.0.17 were used), then ``python benchmarks/truth/compile_programs.py``.
tracr (Lindner et al. 2023, arXiv 2301.05062) has the Apache licence, version 2.0; its weights follow from the program
alone.

Each program is causal, and is written here as it is shipped. Of each head the name of the variable that it computes is
kept, from the labels of the directions of the residual stream that it writes to. Before a file is written, the compiled
model is run on random words and must give what RASP's own interpreter gives.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tracr.compiler.compiling import COMPILER_BOS, compile_rasp_to_model  # pyright: ignore[reportMissingImports]
from tracr.rasp.causal_eval import CausalEvaluator  # pyright: ignore[reportMissingImports]
from tracr.rasp.rasp import (  # pyright: ignore[reportMissingImports]
    Aggregate,
    Comparison,
    LinearSequenceMap,
    Map,
    Select,
    SelectorWidth,
    SequenceMap,
    categorical,
    indices,
    is_numerical,
    numerical,
    tokens,
)

FOLDER = Path(__file__).parent / "compiled"
LETTERS = tuple("abcdefgh")
LENGTH = 15
EXACTNESS = 2000.0
"""How steep the steps of an MLP are. tracr's 100 does not tell the shares 1/15 and 1/16 apart."""
TRIALS = 100


def reverse() -> Any:
    """After a bar, the words before it from the last to the first, if each is appended in turn: a b c | c b a."""
    is_bar = Select(tokens, tokens, lambda key, query: key == "|")
    bar = Aggregate(is_bar, indices).named("bar")
    source = SequenceMap(lambda bar, index: 2 * bar - 1 - index, bar, indices).named("source")
    return Aggregate(Select(indices, source, Comparison.EQ), tokens).named("reverse")


def induction() -> Any:
    """The word that followed this word earlier."""
    is_previous = Select(indices, indices, lambda key, query: key == query - 1)
    before = Aggregate(is_previous, tokens).named("before")
    return Aggregate(Select(before, tokens, Comparison.EQ), tokens).named("induction")


def pattern() -> Any:
    """Whether this word and the two before it are a b c."""
    is_previous = Select(indices, indices, lambda key, query: key == query - 1)
    before = Aggregate(is_previous, tokens).named("before")
    a_b = SequenceMap(lambda first, second: first + second == "ab", before, tokens).named("a_b")
    after_a_b = Aggregate(is_previous, a_b).named("after_a_b")
    return SequenceMap(lambda after, word: "yes" if after and word == "c" else "no", after_a_b, tokens).named("pattern")


def histogram() -> Any:
    """How many words so far, this one included, had come as often when they came as this one has now."""
    times = SelectorWidth(Select(tokens, tokens, Comparison.EQ)).named("times")
    return SelectorWidth(Select(times, times, Comparison.EQ)).named("histogram")


def distinct() -> Any:
    """How many different words there are so far."""
    times = SelectorWidth(Select(tokens, tokens, Comparison.EQ)).named("times")
    new = Map(lambda times: times == 1, times).named("new")
    return SelectorWidth(Select(new, new, lambda key, query: key)).named("distinct")


def majority() -> Any:
    """Which of the words a and b has come more often so far."""
    so_far = Select(indices, indices, Comparison.LEQ)
    a = numerical(Aggregate(so_far, numerical(Map(lambda word: word == "a", tokens)), default=0)).named("share_of_a")
    b = numerical(Aggregate(so_far, numerical(Map(lambda word: word == "b", tokens)), default=0)).named("share_of_b")
    more = numerical(LinearSequenceMap(a, b, 1, -1)).named("more")
    return categorical(Map(lambda more: "a" if more > 1e-6 else "b" if more < -1e-6 else "tie", more)).named("majority")


def brackets() -> Any:
    """Whether the brackets so far are closed, some are open, or one was closed that had not been opened: wrong."""
    opened = SelectorWidth(Select(tokens, tokens, lambda key, query: key == "(")).named("opened")
    closed = SelectorWidth(Select(tokens, tokens, lambda key, query: key == ")")).named("closed")
    state = SequenceMap(lambda o, c: "closed" if o == c else "open" if o > c else "wrong", opened, closed).named(
        "state"
    )
    wrongs = SelectorWidth(Select(state.named("state"), state, lambda key, query: key == "wrong")).named("wrongs")
    return SequenceMap(lambda state, wrongs: "wrong" if wrongs else state, state, wrongs).named("brackets")


def indirect_object() -> Any:
    """After "to", the one of the two names that has come once: a and b , b to a."""
    times = SelectorWidth(Select(tokens, tokens, Comparison.EQ)).named("times")
    again = SequenceMap(lambda word, times: word in LETTERS and times == 2, tokens, times).named("again")
    subject = Aggregate(Select(again, tokens, lambda key, query: key and query == "to"), tokens).named("subject")
    is_other = Select(tokens, subject, lambda key, query: key in LETTERS and key != query)
    return Aggregate(is_other, tokens).named("indirect_object")


PROGRAMS: dict[Callable[[], Any], tuple[tuple[str, ...], str]] = {
    reverse: ((*LETTERS, "|"), "a b c d | d c b"),
    induction: (LETTERS, "a b c d a"),
    pattern: (LETTERS[:4], "a b c d a b a b c"),
    histogram: (LETTERS[:4], "a b c a b a a"),
    distinct: (LETTERS[:6], "a b a c f"),
    majority: (LETTERS[:4], "a a b c b b"),
    brackets: (("(", ")", "x"), "( x ( ) ) )"),
    indirect_object: ((*LETTERS, "and", ",", "to"), "a and b , b to"),
}
"""Each program, its words, and a text on which every variable has a value."""


class Defined(CausalEvaluator):
    """RASP's interpreter, with None for what has no value: nothing is selected by it, and a mean of words is none."""

    def eval_select(self, sel: Any, xs: Sequence[Any]) -> list[list[bool]]:
        keys, queries = self.evaluate(sel.keys, xs), self.evaluate(sel.queries, xs)
        return [[None not in (key, query) and bool(sel.predicate(key, query)) for key in keys] for query in queries]

    def eval_aggregate(self, sop: Any, xs: Sequence[Any]) -> list[Any]:
        values, rows = self.evaluate(sop.sop, xs), self.evaluate(sop.selector, xs)
        selected = [[value for value, taken in zip(values, row, strict=True) if taken] for row in rows]
        if is_numerical(sop):
            return [np.mean(some) if some else sop.default for some in selected]
        return [some[0] if len(set(some)) == 1 else None for some in selected]


def check(program: Any, compiled: Any, words: Sequence[str], example: str) -> int:
    """How many values of the compiled model were compared with the interpreter's, on random texts and the example.

    Raises:
        ValueError: if one differs.
    """
    rng = np.random.default_rng(0)
    texts = [rng.choice(words, rng.integers(1, LENGTH + 1)).tolist() for _ in range(TRIALS)]
    for _ in range(TRIALS):
        other = dict(zip(LETTERS, rng.permutation(LETTERS).tolist(), strict=True))
        texts.append([other.get(word, word) if set(LETTERS) <= set(words) else word for word in example.split()])
    compared = 0
    for text in texts:
        wanted, got = Defined().evaluate(program, text), compiled.apply([COMPILER_BOS, *text]).decoded[1:]
        different = [(a, b) for a, b in zip(wanted, got, strict=True) if a is not None and a != b]
        if different:
            raise ValueError(f"{text}: the interpreter gives {wanted}, the model {got}")
        compared += len([value for value in wanted if value is not None])
    return compared


def parts(compiled: Any) -> tuple[dict[str, np.ndarray], list[tuple[int, str]]]:
    """The matrices of a compiled model, without its heads that are all zero, and each head's layer and variable.

    Raises:
        ValueError: if a bias is not zero, or the directions that a head writes belong to several variables.
    """
    params = {name: {key: np.asarray(value) for key, value in each.items()} for name, each in compiled.params.items()}
    if any(each["b"].any() for each in params.values() if "b" in each):
        raise ValueError("a bias is not zero")
    config, labels = compiled.model_config, compiled.residual_labels
    matrices = {"embedding": params["token_embed"]["embeddings"], "positions": params["pos_embed"]["embeddings"]}
    heads = []
    for layer in range(config.num_layers):
        block = f"transformer/layer_{layer}"
        for own in np.split(np.arange(config.num_heads * config.key_size), config.num_heads):
            written = params[f"{block}/attn/linear"]["w"][own]
            if not written.any():
                continue
            variables = {variable(labels[i]) for i in np.flatnonzero(written.any(0))}
            if len(variables) > 1:
                raise ValueError(f"a head of layer {layer} writes {variables}")
            heads.append((layer, variables.pop()))
            for name in ("query", "key", "value"):
                matrices[f"{layer}.{heads[-1][1]}.{name}"] = params[f"{block}/attn/{name}"]["w"][:, own]
            matrices[f"{layer}.{heads[-1][1]}.output"] = written
        matrices |= {f"{layer}.mlp.{i}": params[f"{block}/mlp/linear_{i}"]["w"] for i in (1, 2)}
    return matrices, heads


def variable(label: str) -> str:
    """The variable of a direction of the residual stream: tracr numbers variables and adds ``:value``."""
    return re.sub(r"_\d+$", "", label.partition(":")[0].removesuffix("_selector_width_attn_output"))


def compile_program(make: Callable[[], Any], words: Sequence[str], example: str) -> None:
    """Compile and check one program, and write its file."""
    name, program = make.__name__, make()
    compiled = compile_rasp_to_model(program, set(words), LENGTH, causal=True, mlp_exactness=EXACTNESS)
    compared = check(program, compiled, words, example)
    matrices, heads = parts(compiled)
    labels = compiled.residual_labels
    values = {str(value): at for value, at in compiled.output_encoder.encoding_map.items()}
    ends = [label for label in labels if variable(label) == name and "selector_width" not in label]
    matrices["unembedding"] = np.zeros((len(labels), len(values)), np.float32)
    for label in ends:
        matrices["unembedding"][labels.index(label), values[label.partition(":")[2]]] = 1
    ids = compiled.input_encoder.encoding_map
    matrices["embedding"] = matrices["embedding"][[ids[word] for word in (COMPILER_BOS, *words)]]
    about = {
        "words": words,
        "answers": sorted(values, key=lambda value: values[value]),
        "heads": heads,
        "shapes": {key: matrix.shape for key, matrix in matrices.items()},
    }
    tensors = {}
    for key, matrix in matrices.items():
        at = np.nonzero(matrix)
        tensors |= {f"{key}.at": np.stack(at, 1).astype(np.int16), f"{key}.value": matrix[at].astype(np.float32)}
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.safetensors"
    save_file(tensors, path, {"program": inspect.getsource(make), "about": json.dumps(about)})
    print(f"{name}: heads {heads}, {compared} values compared, {path.stat().st_size} bytes")


if __name__ == "__main__":
    for make, (words, example) in PROGRAMS.items():
        if make.__name__ in (sys.argv[1:] or [each.__name__ for each in PROGRAMS]):
            compile_program(make, words, example)
