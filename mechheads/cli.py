"""The command line, ``mechheads``: each command calls Python functions and writes their results to a folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mechheads._version import __version__

if TYPE_CHECKING:
    import pandas as pd

    from mechheads.studies.atlas import Atlas
    from mechheads.studies.figures.output import PaperFigure
    from mechheads.studies.safety import SafetyStudy

ModelName = Annotated[
    str | None,
    typer.Option(help="Hub name, Hugging Face folder or GGUF file. Default: SmolLM2-135M-Instruct, downloaded once."),
]
Device = Annotated[
    str, typer.Option(help='Device of the model: "cpu", "cuda", "mps" or "auto" (a GPU if there is one).')
]
_TASKS = "syntax, common_sense, math, aba_abb, a relation, or a file: prompts and targets, BLiMP, CommonsenseQA, GSM8K."
Out = Annotated[Path, typer.Option(help="Folder for the results.")]
Relations = Annotated[
    list[str] | None,
    typer.Option(help="A relation's name or a JSON file; can be repeated. Default: all relations of the package."),
]
Rule = Annotated[
    str, typer.Option(help='What gives a label: "null", more hits than shuffled targets; "maps", phi >= 0.15.')
]
Source = Annotated[
    str,
    typer.Option(
        help='The form in which heads read a token: "embedding", "first_mlp" (as in the paper), "carried", or '
        '"all" for the best of the three.'
    ),
]
MinPairs = Annotated[int, typer.Option(help="Relations with fewer single-token pairs are skipped.")]
OnDisk = Annotated[bool, typer.Option(help="Read weights from safetensors layer by layer, without loading the model.")]

main = typer.Typer(
    help="What does each attention head of a language model do, and how sure are we?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

figure = typer.Typer(
    help="A figure of one of three papers for several models: the drawing, its numbers and a page. The same command "
    "goes on after Ctrl-C.",
    no_args_is_help=True,
)
main.add_typer(figure, name="figure")

ModelNames = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        help="Hub name (with @ and a revision, if you like), Hugging Face folder or GGUF file; can be repeated.",
    ),
]


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
    """Labels, patching effects, safety heads and roles of every head, as tables and one page of figures."""
    from mechheads.model.load import load
    from mechheads.studies.atlas import build_atlas
    from mechheads.studies.report import write_page

    with _results(out) as results:
        atlas = build_atlas(load(model, device=device), quick=quick, after_each=partial(results.write, write_page))
        results.take(atlas, write_page)


@main.command()
def label(
    model: ModelName = None,
    relations: Relations = None,
    out: Out = Path("labels"),
    rule: Rule = "null",
    source: Source = "all",
    device: Device = "cpu",
    min_pairs: MinPairs = 30,
    on_disk: OnDisk = False,
) -> None:
    """Labels of every head from its weights, as scores, a table and a category map."""
    from mechheads.labels import label_heads, relation_scores
    from mechheads.model.load import load
    from mechheads.model.stored_weights import open_weights

    with _results(out) as results:
        if on_disk and model is None:
            raise ValueError("--on-disk needs --model: a folder of safetensors or a hub name")
        if on_disk and device not in ("cpu", "auto"):
            raise ValueError(f"--on-disk computes on the CPU; leave out --device {device} or --on-disk")
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
            help="Hub name, Hugging Face folder or GGUF file. Default: smollm2-135m-refusal, the default model "
            "trained to refuse."
        ),
    ] = None,
    out: Out = Path("safety"),
    device: Device = "cpu",
    k: Annotated[int, typer.Option(help="Number of heads at the top of each ranking.")] = 10,
    quick: Annotated[bool, typer.Option(help="A few requests and short answers: a first look.")] = False,
    seed: Annotated[int, typer.Option(help="Seed for resampling, random heads and sampling.")] = 0,
) -> None:
    """Safety heads by every score, and a test of whether refusals depend on them, as tables and a page of figures."""
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
    task: Annotated[str, typer.Option(help=_TASKS)] = "capitals",
    model: ModelName = None,
    device: Device = "cpu",
    seeds: Annotated[int, typer.Option(help="Number of fits from different starts.")] = 10,
    updates: Annotated[int, typer.Option(help="Largest number of updates in each of the three fits.")] = 500,
    batch: Annotated[int, typer.Option(help="Number of items in an update.")] = 64,
    n: Annotated[int | None, typer.Option(help="Number of items of the task. Default: all.")] = None,
    most: Annotated[int, typer.Option(help="Largest number of heads to gate off in the curves.")] = 50,
    out: Annotated[
        Path, typer.Option(help="Folder for the results, and for the checkpoint that Ctrl-C leaves.")
    ] = Path("roles"),
) -> None:
    """Which heads facilitate a task, interfere with it or do not matter. After Ctrl-C, the same command continues."""
    from mechheads.gating import fit_gates, head_roles, role_curve
    from mechheads.gating.tasks.open_task import open_task
    from mechheads.model.load import load
    from mechheads.results.dataset import shown_ends
    from mechheads.studies.report import role_shares, write_roles_page

    with _results(out) as results:
        loaded = load(model, device=device)
        items = open_task(task, model=loaded, n=n)
        fitted_on, tried_on = items.split(0.8)
        checkpoint = out / "gates.checkpoint"
        gates = fit_gates(loaded, fitted_on, seeds=seeds, updates=updates, batch=batch, checkpoint=checkpoint)
        results.files.append(gates.save(out / "gates.nc"))
        if gates.interrupted:
            raise KeyboardInterrupt(f"Interrupted; the same command continues from {checkpoint}.")
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


@figure.command()
def categories(
    model: ModelNames = None,
    relations: Relations = None,
    out: Out = Path("categories-figure"),
    rule: Rule = "null",
    source: Source = "all",
    min_pairs: MinPairs = 30,
    on_disk: OnDisk = False,
    quick: Annotated[bool, typer.Option(help="Four relations: a first look.")] = False,
    device: Device = "cpu",
) -> None:
    """The categories of every head, from weights: one panel for each model."""
    from mechheads.studies import categories_figure

    with _results(out) as results:
        results.draw(
            categories_figure(
                model or None,
                relations or None,
                out=out,
                rule=rule,  # type: ignore[arg-type]
                source=source,  # type: ignore[arg-type]
                min_pairs=min_pairs,
                on_disk=on_disk,
                quick=quick,
                device=device,
            )
        )


@figure.command("safety")
def safety_panels(
    model: ModelNames = None,
    requests: Annotated[
        list[str] | None,
        typer.Option(help="harmful, JailbreakBench, MaliciousInstruct, AdvBench, XSTest or a file; can be repeated."),
    ] = None,
    ablations: Annotated[
        list[str] | None,
        typer.Option(help="undifferentiated, scaling, zero, mean, resample; can be repeated. Default: the first two."),
    ] = None,
    out: Out = Path("safety-figure"),
    k: Annotated[int, typer.Option(help="Number of heads to draw for each ablation.")] = 10,
    template: Annotated[
        str, typer.Option(help='"query" (the paper\'s), "bare" or "chat" (the model\'s own).')
    ] = "query",
    quick: Annotated[bool, typer.Option(help="Eight requests of each set: a first look.")] = False,
    seed: Annotated[int, typer.Option(help="Seed for resampling.")] = 0,
    device: Device = "cpu",
) -> None:
    """The heads on which answers to requests depend: one panel for each model and set of requests."""
    from mechheads.studies import safety_figure

    chosen: dict[str, Any] = {"requests": requests, "ablations": ablations}
    with _results(out) as results:
        results.draw(
            safety_figure(
                model or None,
                **{name: given for name, given in chosen.items() if given},
                out=out,
                k=k,
                template=template,  # type: ignore[arg-type]
                quick=quick,
                seed=seed,
                device=device,
            )
        )


@figure.command("roles")
def role_panels(
    model: ModelNames = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(help=f"{_TASKS} Can be repeated. Default: syntax, common_sense, math."),
    ] = None,
    out: Out = Path("roles-figure"),
    seeds: Annotated[int, typer.Option(help="Number of fits from different starts.")] = 10,
    updates: Annotated[int, typer.Option(help="Largest number of updates in each of the three fits.")] = 500,
    batch: Annotated[int, typer.Option(help="Number of items in an update.")] = 64,
    n: Annotated[int | None, typer.Option(help="Number of items of each task. Default: all.")] = None,
    most: Annotated[int, typer.Option(help="Largest number of heads to gate off.")] = 50,
    quick: Annotated[bool, typer.Option(help="Few items, seeds and updates: a first look.")] = False,
    device: Device = "cpu",
) -> None:
    """How tasks change as heads of each role are gated off: one row for each task, one column for each model."""
    from mechheads.studies import roles_figure

    chosen: dict[str, Any] = {"tasks": tasks} if tasks else {}
    with _results(out) as results:
        results.draw(
            roles_figure(
                model or None,
                **chosen,
                out=out,
                seeds=seeds,
                updates=updates,
                batch=batch,
                n=n,
                most=most,
                quick=quick,
                device=device,
            )
        )


@figure.command()
def repeat(
    file: Annotated[Path, typer.Argument(help="The figure.json of a figure.")],
    out: Annotated[
        Path | None, typer.Option(help="Another folder. Default: the figure's own, whose finished panels are kept.")
    ] = None,
    device: Device = "cpu",
) -> None:
    """Draw a figure again from its figure.json."""
    from mechheads.studies import repeat_figure

    with _results(out or file.parent) as results:
        results.draw(repeat_figure(file, out, device=device))


@dataclass
class _Results:
    """The results of a command.

    Attributes:
        out: folder for the results.
        lines: text to print.
        files: paths of the files that were written.
        interrupted: whether Ctrl-C ended the work.
    """

    out: Path
    lines: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    interrupted: bool = False

    def take(self, found: Atlas | SafetyStudy, write_page: Callable[[Any, Path], Path]) -> None:
        """Save an atlas or a study, with its page.

        Raises:
            KeyboardInterrupt: if it was interrupted before there was a result.
        """
        if not found.results:
            raise KeyboardInterrupt
        self.write(write_page, found)
        self.lines.append(found.summary())
        self.interrupted = found.interrupted

    def write(self, write_page: Callable[[Any, Path], Path], found: Atlas | SafetyStudy) -> None:
        """Write what an atlas or a study has so far."""
        self.files = [*found.save(self.out), write_page(found, self.out / "index.html")]

    def draw(self, made: PaperFigure) -> None:
        """Show what a figure says and wrote."""
        self.lines, self.files, self.interrupted = list(made.lines), list(made.files), made.interrupted

    def table(self, name: str, table: pd.DataFrame) -> None:
        """Save a table, if it has rows."""
        from mechheads.studies.study import save_parts

        self.files += save_parts(self.out, {}, {name: table})


@contextmanager
def _results(out: Path) -> Iterator[_Results]:
    """Run a command's work, then print the results and the paths of the files, or the error."""
    start = time.perf_counter()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "is a file" if out.is_file() else f"cannot be created ({error.strerror})"
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
        typer.echo(f"Interrupted after {seconds}; {page} shows the results until then.")
        raise typer.Exit(130)
    typer.echo(f"Done in {seconds}; open {page} in a browser.")


def _line(head: str, score: float, low: float, high: float) -> str:
    return f"  {head:>7}  {score:.2f} [{low:.2f}, {high:.2f}]"
