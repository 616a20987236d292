"""The command line: a thin shell over the Python functions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mechheads._version import __version__

if TYPE_CHECKING:
    import pandas as pd

    from mechheads.studies.atlas import Atlas
    from mechheads.studies.safety import SafetyStudy

ModelName = Annotated[
    str | None,
    typer.Option(help="Hub name, Hugging Face folder or GGUF file; left out, SmolLM2-135M-Instruct, fetched once."),
]
Device = Annotated[str, typer.Option(help='Where the model runs: "cpu", "cuda", "mps"; "auto": a GPU if there is one.')]
Out = Annotated[Path, typer.Option(help="Folder for the results.")]

main = typer.Typer(
    help="What does each attention head of a language model do, and how sure are we?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@main.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@main.command()
def atlas(
    model: ModelName = None,
    out: Out = Path("atlas"),
    device: Device = "cpu",
    quick: Annotated[bool, typer.Option(help="Fewer relations, pairs and requests, no roles: a first look.")] = False,
) -> None:
    """Label every head, patch, find safety heads and roles; write tables and one page of figures."""
    from mechheads.model.load import load
    from mechheads.studies.atlas import build_atlas
    from mechheads.studies.report import write_page

    with _results(out) as results:
        results.take(build_atlas(load(model, device=device), quick=quick), write_page)


@main.command()
def label(
    model: ModelName = None,
    relations: Annotated[
        list[str] | None,
        typer.Option(help="A relation's name or a JSON file; give it several times. Left out, all of the package."),
    ] = None,
    out: Out = Path("labels"),
    rule: Annotated[str, typer.Option(help='"null": above shuffled targets; "maps": phi >= 0.15.')] = "null",
    source: Annotated[
        str,
        typer.Option(
            help='How heads read a token: "embedding", "first_mlp" (the paper\'s), "carried" or "all" of them.'
        ),
    ] = "all",
    device: Device = "cpu",
    min_pairs: Annotated[int, typer.Option(help="Relations with fewer single-token pairs are skipped.")] = 30,
    on_disk: Annotated[
        bool, typer.Option(help="Read weights from safetensors layer by layer; the model is never loaded.")
    ] = False,
) -> None:
    """Label every head from its weights; write scores, table and category map."""
    from mechheads.labels import label_heads, relation_scores
    from mechheads.model.load import load
    from mechheads.model.stored_weights import open_weights

    with _results(out) as results:
        if on_disk and model is None:
            raise ValueError("--on-disk needs --model, a folder of safetensors or a hub name")
        if on_disk and device not in ("cpu", "auto"):
            raise ValueError(f"--on-disk computes on the CPU; leave out --device {device}, or --on-disk")
        weights = open_weights(model) if on_disk and model else load(model, device=device)
        scores = relation_scores(weights, relations or None, min_pairs=min_pairs, source=source)  # type: ignore[arg-type]
        labels = label_heads(scores, rule=rule)  # type: ignore[arg-type]
        results.files = [scores.save(out / "relations.nc"), labels.save(out / "labels.nc")]
        results.table("heads", labels.table())
        labels.plot().write_html(out / "categories.html")
        results.files.append(out / "categories.html")
        counts = labels.counts() | ({"not reached": len(labels.missing)} if labels.missing else {})
        results.interrupted = bool(labels.missing)
        results.lines.append("Heads      " + ", ".join(f"{name} {n}" for name, n in counts.items()))
        best = labels.table().query("is_evidence").nlargest(10, "phi")
        for head, *phi, relation in best[["head", "phi", "phi_low", "phi_high", "relation"]].to_numpy().tolist():
            results.lines.append(f"{_line(head, *phi)}  {relation}")


@main.command()
def safety(
    model: Annotated[
        str | None,
        typer.Option(
            help="Hub name, Hugging Face folder or GGUF file; left out, the default model taught to refuse, "
            "smollm2-135m-refusal."
        ),
    ] = None,
    out: Out = Path("safety"),
    device: Device = "cpu",
    k: Annotated[int, typer.Option(help="How many heads count as the first.")] = 10,
    quick: Annotated[bool, typer.Option(help="A few requests and short answers: a first look.")] = False,
    seed: Annotated[int, typer.Option(help="Of resampling and random heads.")] = 0,
) -> None:
    """Find safety heads by every score, test whether refusing hangs on them; write tables and one page of figures."""
    from mechheads.model.load import load
    from mechheads.model.sources import REFUSING_MODEL
    from mechheads.studies.report import write_safety_page
    from mechheads.studies.safety import safety_study

    with _results(out) as results:
        results.take(
            safety_study(load(model or REFUSING_MODEL, device=device), k, quick=quick, seed=seed), write_safety_page
        )


@main.command()
def roles(
    task: Annotated[
        str, typer.Option(help="capitals, syntax, common_sense, math, aba_abb, a relation's name, or a JSONL file.")
    ] = "capitals",
    model: ModelName = None,
    device: Device = "cpu",
    seeds: Annotated[int, typer.Option(help="Fits from different starts.")] = 10,
    updates: Annotated[int, typer.Option(help="Of each of the three fits, at most.")] = 500,
    batch: Annotated[int, typer.Option(help="Items of an update.")] = 64,
    n: Annotated[int | None, typer.Option(help="Items of the task; left out, all there are.")] = None,
    most: Annotated[int, typer.Option(help="Heads to gate off at most in the curves.")] = 50,
    out: Annotated[Path, typer.Option(help="Folder for the results, and for the checkpoint of Ctrl-C.")] = Path(
        "roles"
    ),
) -> None:
    """Tell heads that facilitate a task, interfere with it or do not matter; the same command goes on after Ctrl-C."""
    from mechheads.gating import fit_gates, head_roles, role_curve
    from mechheads.gating.tasks.shipped import load_task
    from mechheads.gating.tasks.task_files import read_task
    from mechheads.model.load import load
    from mechheads.results.dataset import shown_ends
    from mechheads.studies.report import role_shares, write_roles_page

    with _results(out) as results:
        loaded = load(model, device=device)
        items = read_task(task) if task.endswith(".jsonl") else load_task(task, model=loaded, n=n)
        fitted_on, tried_on = items.split(0.8)
        checkpoint = out / "gates.checkpoint"
        gates = fit_gates(loaded, fitted_on, seeds=seeds, updates=updates, batch=batch, checkpoint=checkpoint)
        results.files.append(gates.save(out / "gates.nc"))
        if gates.interrupted:
            raise KeyboardInterrupt(f"Interrupted; the same command goes on from {checkpoint}.")
        found = head_roles(gates)
        curves = role_curve(loaded, tried_on, gates, found, most=most)
        results.interrupted = curves.interrupted
        results.table("heads", found.to_dataframe())
        results.table("curves", curves.table)
        results.files.append(write_roles_page(loaded.name, found, curves, out / "index.html"))
        for share, scores in zip(role_shares(found), found.values(), strict=True):
            results.lines.append(share)
            for row in scores.top(5).to_dict("records"):
                head = f"L{row['layer']}H{row['head']}"
                results.lines.append(f"  {head:>7}  {row['score']:.2f}{shown_ends(row, '.2f')}")


@dataclass
class _Results:
    """What a command found.

    Attributes:
        out: the folder.
        lines: what to say of it.
        files: where it lies.
        interrupted: whether there would be more without Ctrl-C.
    """

    out: Path
    lines: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    interrupted: bool = False

    def take(self, found: Atlas | SafetyStudy, write_page: Callable[[Any, Path], Path]) -> None:
        """Save what was found, with its page.

        Raises:
            KeyboardInterrupt: if it was ended before there was a result.
        """
        if not found.results:
            raise KeyboardInterrupt
        self.files = [*found.save(self.out), write_page(found, self.out / "index.html")]
        self.lines.append(found.summary())
        self.interrupted = found.interrupted

    def table(self, name: str, table: pd.DataFrame) -> None:
        """Save a table, if it has rows."""
        from mechheads.studies.study import save_parts

        self.files += save_parts(self.out, {}, {name: table})


@contextmanager
def _results(out: Path) -> Iterator[_Results]:
    """Run a command's work on its folder, and say what was found and where it lies, or what was wrong."""
    start = time.perf_counter()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "is a file" if out.is_file() else f"cannot be made ({error.strerror})"
        typer.echo(f"Error: --out {out} {why}; give a folder", err=True)
        raise typer.Exit(2) from error
    results = _Results(out)
    try:
        yield results
    except ValueError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as stop:
        typer.echo(str(stop) or "Interrupted before there was a result.", err=True)
        raise typer.Exit(130) from stop
    page = next(file for file in results.files if file.suffix == ".html")
    for line in results.lines:
        typer.echo(line)
    typer.echo("Files      " + ", ".join(map(str, results.files)))
    seconds = f"{time.perf_counter() - start:.0f} s"
    if results.interrupted:
        typer.echo(f"Interrupted after {seconds}; {page} shows what was done until then.")
        raise typer.Exit(130)
    typer.echo(f"Done in {seconds}; open {page} in a browser.")


def _line(head: str, score: float, low: float, high: float) -> str:
    return f"  {head:>7}  {score:.2f} [{low:.2f}, {high:.2f}]"
