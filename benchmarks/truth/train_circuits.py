"""Train the models that ``mh.testing.trained_model`` loads: ``python -m benchmarks.truth.train_circuits``.

It trains one small GPT-2 for each program of ``causal_programs.py``, by strict interchange-intervention training (SIIT;
Gupta et al. 2024, InterpBench, arXiv 2407.14494; Geiger et al. 2022, arXiv 2112.00826). Each step has three losses, all
of them cross-entropies of the answer after the last word:

- behaviour: the answer to a text;
- interchange: one head or MLP that computes a variable gets what it gave in another text, at all positions. The answer
  must be what the program gives if this variable has the value of the other text;
- strictness: heads and MLPs without a variable, each with a chance of one half, get what they gave in another text. The
  answer must not change.

The weights are written to ``mechheads/data/known``, and what is measured on texts that training does not see to
``trained.json``: ``"accuracy"``; ``"interchange"``, of each variable how often the answer after an interchange is the
program's; ``"moves"``, of each variable how often an interchange changes the answer; ``"changes"``, the same of every
other head and MLP.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.random import Generator, default_rng
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

from benchmarks.truth import causal_programs
from benchmarks.truth.causal_programs import CAUSAL_PROGRAMS, CausalProgram
from benchmarks.truth.files import KNOWN, N_TEXTS as N_KNOWN, draw_pairs, write_known
from benchmarks.truth.planted import blank_gpt2
from mechheads.testing.known import KnownNode, word_tokenizer

MEASURED = Path(__file__).with_name("trained.json")
N_HEADS, D_MODEL, D_MLP = 4, 40, 80
N_TEXTS, ROWS, RATE = 20_000, 96, 3e-3
STEPS = {"induction": 1000, "indirect_object": 1200, "comparison": 2500}
_POSITIONS = "transformer.wpe.weight"
NONE = -100
"""The target where the program has no value; ``cross_entropy`` leaves it out."""
Outputs = dict[str, Tensor]


class Texts:
    """Texts of a program, with the values of its variables.

    Attributes:
        ids: tokens [text, pos], beginning with ``<bos>``.
        values: of all variables, a dictionary for each text.
    """

    def __init__(self, program: CausalProgram, tokenizer: Any, n: int, rng: Generator, *, held_out: bool) -> None:
        self.program, self.vocabulary = program, tokenizer.vocab
        self.words = [program.draw_one(rng, held_out=held_out) for _ in range(n)]
        self.values = [program.values(words) for words in self.words]
        self.ids: Int[Tensor, "text pos"] = torch.tensor(
            [[tokenizer.bos_token_id, *(self.vocabulary[f"▁{word}"] for word in words)] for words in self.words]
        )

    def targets(self, texts: Int[np.ndarray, "text"]) -> Int[Tensor, "text"]:
        """The tokens of the answers."""
        return self._tokens(self.values[i][self.program.variables[-1].name] for i in texts)

    def interchanged(
        self, texts: Int[np.ndarray, "text"], others: Int[np.ndarray, "text"], names: Sequence[str]
    ) -> Int[Tensor, "text"]:
        """The tokens of the answers if a variable, one for each text, has its value from the other text."""
        triples = zip(texts, others, names, strict=True)
        return self._tokens(self.program.answer(self.words[i], {at: self.values[j][at]}) for i, j, at in triples)

    def _tokens(self, answers: Iterator[str | None]) -> Int[Tensor, "text"]:
        return torch.tensor([NONE if answer is None else self.vocabulary[f"▁{answer}"] for answer in answers])


def run(
    gpt2: Any,
    ids: Int[Tensor, "row pos"],
    swap: Bool[Tensor, "row layer node"] | None = None,
    source: Outputs | None = None,
) -> tuple[Float[Tensor, "row token"], Outputs]:
    """Logits after the last word, and what all heads (z) and MLPs of each layer gave.

    Args:
        swap: which nodes, in each row, give what ``source`` holds for this row: the heads of a layer, then its MLP.
        source: from an earlier run.
    """
    outputs: Outputs = {}

    def put(value: Tensor, layer: int, kind: str) -> Tensor:
        if swap is not None and source is not None:
            own = swap[:, layer, :-1].repeat_interleave(D_MODEL // N_HEADS, 1) if kind == "z" else swap[:, layer, -1:]
            value = torch.where(own[:, None], source[f"{layer}.{kind}"], value)
        outputs[f"{layer}.{kind}"] = value
        return value

    def before(module: Any, inputs: tuple[Tensor], layer: int) -> tuple[Tensor]:
        return (put(inputs[0], layer, "z"),)

    def after(module: Any, inputs: Any, output: Tensor, layer: int) -> Tensor:
        return put(output, layer, "mlp")

    with ExitStack() as hooks:
        for layer, block in enumerate(gpt2.transformer.h):
            hooks.callback(block.attn.c_proj.register_forward_pre_hook(partial(before, layer=layer)).remove)
            hooks.callback(block.mlp.register_forward_hook(partial(after, layer=layer)).remove)
        return gpt2(ids, use_cache=False, logits_to_keep=1).logits[:, -1], outputs


def blank(program: CausalProgram, tokenizer: Any) -> Any:
    """A GPT-2 whose weights are all zero."""
    sizes = {"vocab_size": len(tokenizer), "n_positions": tokenizer.model_max_length, "n_inner": D_MLP}
    return blank_gpt2(program.n_layers, N_HEADS, D_MODEL, **sizes)


def make(program: CausalProgram, tokenizer: Any, generator: torch.Generator) -> Any:
    """A GPT-2 with random weights."""
    gpt2 = blank(program, tokenizer)
    with torch.no_grad():
        for name, weight in gpt2.named_parameters():
            if ".ln_" in name and name.endswith("weight"):
                weight.fill_(1)
            elif weight.dim() == 2:
                weight.normal_(0, 0.3 if "transformer.w" in name else D_MODEL**-0.5, generator=generator)
    return gpt2


def place(program: CausalProgram, rng: Generator) -> dict[str, tuple[int, int]]:
    """The node of each variable: its layer, and its head or ``N_HEADS`` for the MLP."""
    drawn = {variable.name: int(rng.integers(N_HEADS)) for variable in program.variables}
    return {each.name: (each.layer, drawn[each.name] if each.kind == "head" else N_HEADS) for each in program.variables}


def train(gpt2: Any, texts: Texts, nodes: dict[str, tuple[int, int]], steps: int, rng: Generator) -> None:
    """Train a model to a program, with the rate falling to zero."""
    optimizer = torch.optim.AdamW(gpt2.parameters(), lr=RATE, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 100, 1 - step / steps))
    for step in range(steps):
        losses = draw_losses(gpt2, texts, nodes, rng)
        optimizer.zero_grad()
        losses.sum().backward()
        torch.nn.utils.clip_grad_norm_(gpt2.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"  step {step + 1}: " + ", ".join(f"{loss:.4f}" for loss in losses.tolist()), flush=True)


def draw_losses(gpt2: Any, texts: Texts, nodes: dict[str, tuple[int, int]], rng: Generator) -> Float[Tensor, "loss=3"]:
    """The losses of behaviour, interchange and strictness on texts drawn at random."""
    rows, order = rng.integers(len(texts.ids), size=ROWS), rng.permutation(ROWS)
    names = rng.choice(list(nodes), ROWS).tolist()
    swap = torch.zeros(2 * ROWS, texts.program.n_layers, N_HEADS + 1, dtype=torch.bool)
    swap[ROWS:] = torch.from_numpy(rng.random((ROWS, *swap.shape[1:])) < 0.5)
    for layer, number in nodes.values():
        swap[ROWS:, layer, number] = False
    for row, name in enumerate(names):
        swap[(row, *nodes[name])] = True
    ids, right = texts.ids[rows], texts.targets(rows)
    logits, outputs = run(gpt2, ids)
    source = {at: value[order].repeat(2, 1, 1) for at, value in outputs.items()}
    changed, _ = run(gpt2, ids.repeat(2, 1), swap, source)
    wanted = texts.interchanged(rows, rows[order], names)
    pairs = (logits, right), (changed[:ROWS], wanted), (changed[ROWS:], right)
    return torch.stack([cross_entropy(of, targets) for of, targets in pairs])


@torch.no_grad()
def measure(gpt2: Any, texts: Texts, nodes: dict[str, tuple[int, int]], rng: Generator) -> dict[str, Any]:
    """Accuracy, and for each node the share of answers that are right, or change, when it is interchanged.

    Returns:
        ``accuracy``; ``interchange``: of each variable, how often the answer is the program's; ``moves``: of each
        variable, how often the answer changes; ``changes``: the same of each node without a variable.
    """
    rows, others = np.arange(len(texts.ids)), rng.permutation(len(texts.ids))
    logits, outputs = run(gpt2, texts.ids)
    base, source = logits.argmax(-1), {at: value[others] for at, value in outputs.items()}
    of = {node: name for name, node in nodes.items()}
    found: dict[str, Any] = {"interchange": {}, "moves": {}, "changes": {}}
    found["accuracy"] = share(base == texts.targets(rows))
    for layer, number in np.ndindex(texts.program.n_layers, N_HEADS + 1):
        swap = torch.zeros(len(rows), texts.program.n_layers, N_HEADS + 1, dtype=torch.bool)
        swap[:, layer, number] = True
        answers = run(gpt2, texts.ids, swap, source)[0].argmax(-1)
        name = of.get((layer, number))
        found["changes" if name is None else "moves"][name or show(layer, number)] = share(answers != base)
        if name is not None:
            wanted = texts.interchanged(rows, others, [name] * len(rows))
            found["interchange"][name] = share((answers == wanted)[wanted != NONE])
    return found


def share(true: Bool[Tensor, "row"]) -> float:
    return round(float(true.double().mean()), 4)


def show(layer: int, number: int) -> str:
    return f"L{layer}.mlp" if number == N_HEADS else f"L{layer}H{number}"


def make_file(name: str, seed: int, steps: int, folder: Path, n_texts: int = N_TEXTS) -> dict[str, Any]:
    """Train one model, write its file, and give what is measured."""
    start, program, rng = time.perf_counter(), CAUSAL_PROGRAMS[name], default_rng(seed)
    length = len(program.draw(default_rng(0)))
    tokenizer = word_tokenizer(program.words, name, length + 1)
    gpt2 = make(program, tokenizer, torch.Generator().manual_seed(seed))
    nodes = place(program, rng)
    train(gpt2, Texts(program, tokenizer, n_texts, rng, held_out=False), nodes, steps, rng)
    found = measure(gpt2, Texts(program, tokenizer, n_texts // 5, rng, held_out=True), nodes, rng)
    write(name, gpt2, {at: show(*node) for at, node in nodes.items()}, folder)
    print(f"{name}: {time.perf_counter() - start:.0f} s, {found}")
    return {"seed": seed, "steps": steps, **found}


def write(name: str, gpt2: Any, nodes: dict[str, str], folder: Path) -> None:
    """Write the file of a model, with one more position, of zeros: it makes room for an answer after the text."""
    program, weights = CAUSAL_PROGRAMS[name], gpt2.state_dict()
    weights[_POSITIONS] = pad(weights[_POSITIONS], (0, 0, 0, 1))
    tokenizer = word_tokenizer(program.words, name, len(weights[_POSITIONS]))
    room = blank(program, tokenizer)
    room.load_state_dict(weights)
    does = {nodes[each.name]: KnownNode(each.name, each.does) for each in program.variables}
    draw = partial(program.draw_one, held_out=True)
    texts = [" ".join(draw(rng)) for rng in [default_rng(1)] for _ in range(N_KNOWN)]
    pairs = draw_pairs(draw, program.answer)
    text = Path(causal_programs.__file__).read_text("utf-8")
    write_known(folder / f"trained-{name}.npz", room, tokenizer, does, text, texts, pairs)


def main() -> None:
    """Train all models, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(CAUSAL_PROGRAMS), metavar="name")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="instead of the usual number")
    parser.add_argument("--out", type=Path, default=KNOWN)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
    for name in options.names:
        found[name] = make_file(name, options.seed, options.steps or STEPS[name], options.out)
        MEASURED.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
