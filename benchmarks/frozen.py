"""Whether every number is still what it was: ``python -m benchmarks.frozen save FOLDER``, then ``... compare FOLDER``.

Every public analysis runs on tiny random models of four architectures, and a sample also on real models, which
``--on`` names: ``--on default --on gemma-3-270m.gguf``. ``save`` keeps all numbers and texts of the results with what
they came from; ``compare`` runs the analyses again and names every result that differs, with the largest difference. A
change that should change no number is checked against the commit before it, on one machine: other processors round
otherwise.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import xarray as xr

import mechheads as mh

ROOT = Path(__file__).absolute().parent.parent
TINY = ("gpt2", "llama", "gemma", "bloom")
HARMFUL, HARMLESS = ["The capital of France is", "Spain and Germany"], ["The store is big", "John gave a book"]
BARE: dict[str, Any] = {"template": "bare"}

Analysis = Callable[[mh.Model], Any]


@mh.settings(progress=False)
def main() -> None:
    """Save or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("save", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--on", action="append", default=[], help="a sample on this model as well; default is one")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    different = 0
    for name, results in everything(asked.folder / "models", asked.on):
        at = asked.folder / f"{name}.npz"
        if asked.what == "save":
            np.savez_compressed(at, allow_pickle=False, **results)
            print(f"{name}: {len(results)} arrays")
            continue
        if not at.exists():
            print(f"{name}: not in {asked.folder}")
            continue
        with np.load(at) as kept:
            lines = list(differences(dict(kept), results))
        different += len(lines)
        print(f"{name}: {'the same' if not lines else ''}", *lines, sep="\n  ")
    sys.exit(bool(different))


def everything(models: Path, real: Sequence[str]) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """The numbers of every analysis on every model, by ``model, analysis``; results name the folder of their model."""
    warnings.simplefilter("ignore")  # random models prefer wrong answers
    sys.path.insert(0, str(ROOT / "tests"))
    tiny, tried = map(importlib.import_module, ("support.tiny", "support.every_analysis"))
    for name in TINY:
        tiny.build(name, models / name)
        compared = {name: one.numbers for name, one in (tried.ANALYSES | tried.MORE).items()}
        whole = {f"the whole of {name}": one.run for name, one in tried.FURTHER.items()}
        of_all = compared | whole | results_of(tried.PAIRS, tried.WORD_PAIRS)
        yield from on_one_model(name, partial(mh.load, models / name), lambda _, some=of_all: some)
    for name in real:
        yield from on_one_model(
            Path(name).stem, mh.load if name == "default" else partial(mh.load, name), some_analyses
        )


def on_one_model(
    name: str, load: Callable[[], mh.Model], analyses: Callable[[mh.Model], dict[str, Analysis]]
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """The numbers of analyses on a model, or why a release of TransformerLens cannot read it."""
    model = attempt(load)
    if isinstance(model, str):
        yield f"{name}, loading", dict(numbers(model))
        return
    for analysis, run in analyses(model).items():
        yield f"{name}, {analysis}", dict(numbers(attempt(partial(run, model))))


def attempt(run: Callable[[], Any]) -> Any:
    """The result, or the error as a text: what is refused stays refused."""
    try:
        return run()
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


def results_of(pairs: mh.PromptPairs, words: list[tuple[str, str]]) -> dict[str, Analysis]:
    """Analyses that give more than one array."""
    clean, corrupted = (list(map(str, side)) for side in (pairs.clean, pairs.corrupted))
    task = mh.Task(clean, [" Paris", " Madrid", " store"])
    other = mh.Task(corrupted, [" Rome", " Berlin", " book"])
    fit: dict[str, Any] = {"seeds": 2, "updates": 4}

    def gates(model: mh.Model) -> Any:
        return mh.fit_gates(model, task, seeds=2, updates=(4, 2, 2))

    return {
        "matrix": lambda model: mh.path_matrix(model, pairs, receivers=["L2H1.q", "L2H3.v"]),
        "ablations": lambda model: mh.safety.compare_ablations(model, HARMFUL, 3, **BARE),
        "safety heads": lambda model: mh.safety_heads(model, HARMFUL, 3, **BARE),
        "refusal attribution": lambda model: mh.safety.refusal_attribution(
            model, HARMFUL, openings=[" I cannot"], **BARE
        ),
        "text loss": lambda model: mh.safety.text_loss(model, clean),
        "examples": lambda model: mh.behaviour.head_examples(model, [list(range(3, 60))], window=16),
        "labels": lambda model: mh.label_heads(
            mh.relation_scores(model, [mh.Relation("words", "Knowledge", words)], min_pairs=1)
        ),
        "salient": lambda model: mh.labels.salient_operations(model, "L1H2"),
        "effects": lambda model: {
            kind: mh.gating.ablation_effects(model, task, intervention=kind) for kind in ("zero", "mean", "resample")
        },
        "gates": gates,
        "roles": lambda model: mh.head_roles(gates(model)),
        "contrast": lambda model: mh.gating.contrast_gates(model, task, other, **fit),
    }


def some_analyses(model: mh.Model) -> dict[str, Analysis]:
    """A sample that takes a minute."""
    clean = ["The capital of France is", "The capital of Spain is"]
    pairs = mh.PromptPairs(
        clean,
        ["The capital of Italy is", "The capital of Japan is"],
        answer=[" Paris", " Madrid"],
        wrong=[" Rome", " Tokyo"],
    )
    last, heads = model.n_layers - 1, model.n_heads
    some = [f"L{5 * last // 6}H{1 % heads}", f"L{last}H{3 % heads}", "L5H0"]
    task = mh.Task(clean, [" Paris", " Madrid"])
    answers = mh.safety.AnswerSettings(
        lambda request, answer: "refused" if len(answer) % 2 else "complied", "bare", max_new_tokens=8
    )
    return {
        "given": lambda model: mh.activation_patch(model, pairs, heads=some[:2], given=some[2:]),
        "circuit": lambda model: mh.patching.faithfulness(model, pairs, some),
        "sets": lambda model: mh.patching.patch_sets(model, pairs, [some[:1], some]),
        "text": lambda model: mh.profile_heads(model, [model.tokenizer(clean[0] * 8)["input_ids"]], window=16),
        "logits": lambda model: mh.behaviour.logit_attribution(model, pairs),
        "attention": lambda model: mh.behaviour.attention_attribution(model, pairs, some[0], key=0),
        "contribution": lambda model: mh.safety.refusal_contribution(model, HARMFUL, HARMLESS, heads=some, **BARE),
        "refusal attribution": lambda model: mh.safety.refusal_attribution(model, HARMFUL, heads=some, **BARE),
        "angle": lambda model: mh.safety.generalized_ships(model, HARMFUL, heads=some, **BARE),
        "refusal test": lambda model: mh.safety.refusal_test(
            model, some, HARMFUL, HARMLESS, intervention="zero", draws=1, answers=answers, texts=[clean[0] * 8]
        ),
        "text written": lambda model: mh.generate(model, clean, 8),
        "gates": lambda model: mh.fit_gates(model, task, seeds=1, updates=2),
        "effects": lambda model: mh.gating.ablation_effects(model, task, intervention="mean", heads=some),
        "dynamic": lambda model: mh.labels.dynamic_scores(model, "country_to_capital", heads=some),
        "patching": lambda model: mh.activation_patch(model, pairs),
        "paths": lambda model: mh.path_patch(model, pairs, receivers=[f"L{last}H1.v"], senders=some),
        "ablation": lambda model: mh.ablate(model, clean, heads=some),
        "ships": lambda model: mh.ships(model, clean, heads=some),
        "attribution": lambda model: mh.patching.attribution_patch(model, pairs),
        "relation": lambda model: mh.relation_scores(model, "country_to_capital"),
    }


def numbers(result: Any, name: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Every array, number and text in a result, by where it is."""
    if isinstance(result, (xr.Dataset, xr.DataArray)):
        yield from numbers(_arrays(result), name)
    elif isinstance(result, pd.DataFrame):
        yield from numbers({str(key): result[key].to_numpy() for key in result}, name)
    elif isinstance(result, torch.Tensor):
        yield name or "value", result.detach().double().cpu().numpy()
    elif isinstance(result, Mapping):
        for key, value in result.items():
            yield from numbers(value, f"{name}.{key}")
    elif isinstance(result, np.ndarray):
        yield (
            name or "value",
            result if result.dtype.kind in "fiub" else np.array(list(map(str, result.flat))).reshape(result.shape),
        )
    elif isinstance(result, (str, bytes, bool, int, float, np.generic)) or result is None:
        yield name or "value", np.asarray(str(result) if result is None or isinstance(result, bytes) else result)
    elif hasattr(result, "dataset"):
        yield from numbers(result.dataset, f"{name}.dataset")
        yield from numbers(result.provenance, f"{name}.provenance")
    elif dataclasses.is_dataclass(result):
        for field in dataclasses.fields(result):
            yield from numbers(getattr(result, field.name), f"{name}.{field.name}")
    elif isinstance(result, Sequence):
        for index, value in enumerate(result):
            yield from numbers(value, f"{name}[{index}]")
    else:
        yield name or "value", np.asarray(repr(result))


def _arrays(result: xr.Dataset | xr.DataArray) -> dict[str, np.ndarray]:
    if isinstance(result, xr.DataArray):
        return {"value": result.to_numpy()}
    return {str(key): value.to_numpy() for key, value in result.variables.items()}


def differences(kept: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray]) -> Iterator[str]:
    """One line for each array that differs."""
    for name in sorted(kept.keys() | found.keys()):
        if name not in kept or name not in found:
            yield f"{name}: only {'now' if name in found else 'before'}"
        elif kept[name].shape != found[name].shape or kept[name].dtype.kind != found[name].dtype.kind:
            yield f"{name}: {kept[name].dtype}{list(kept[name].shape)} is {found[name].dtype}{list(found[name].shape)}"
        elif kept[name].dtype.kind != "f":
            if (kept[name] != found[name]).any():
                at = kept[name] != found[name]
                yield f"{name}: {json.dumps(str(kept[name][at][0]))} is {json.dumps(str(found[name][at][0]))}"
        elif not np.array_equal(kept[name], found[name], equal_nan=True):
            off = np.nanmax(np.abs(kept[name] - found[name]))
            yield f"{name}: off by {off:.2g}, of {np.nanmax(np.abs(kept[name])):.2g}"


if __name__ == "__main__":
    main()
