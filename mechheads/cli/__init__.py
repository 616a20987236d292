"""The command line, ``mechheads``: each command calls Python functions and writes their results to a folder."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mechheads._version import __version__
from mechheads.cli.figures import figure
from mechheads.cli.options import (
    INTERVENTIONS,
    PARTS,
    Device,
    Labelling,
    Machine,
    ModelName,
    Out,
    Question,
    Seed,
    a_file,
    command,
    group as group_of,
    head_name,
    model_name,
    number,
    one_of,
    request_names,
    several,
    values_of,
)
from mechheads.cli.results import PAGE, results_in
from mechheads.limits import settings, without_collecting

_NOW = {"profile": "atlas --only text", "roles": "figure roles"}
"""What does the work of a command of earlier versions."""


class _Commands(TyperGroup):
    """The commands, and what has become of earlier ones."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in _NOW:
            ctx.fail(f"'mechheads {args[0]}' is now 'mechheads {_NOW[args[0]]}'")
        return super().resolve_command(ctx, args)


main = group_of("What does each attention head of a language model do, and how sure are we?", cls=_Commands)
main.add_typer(figure, name="figure")


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


@command(main, "mechheads atlas --model gpt2 --only patching,labels --out gpt2-atlas")
def atlas(
    model: ModelName = None,
    out: Out = Path("atlas"),
    only: Annotated[list[str] | None, several(f"Parts to do: {', '.join(PARTS)}. Default: all.", one_of(PARTS))] = None,
    skip: Annotated[list[str] | None, several("Parts to leave out.", one_of(PARTS))] = None,
    quick: Annotated[
        bool, typer.Option(help="Fewer of the package's relations, pairs and requests, no roles: a first look.")
    ] = False,
    seed: Seed = 0,
    *,
    question: Question,
    machine: Machine,
) -> None:
    """What every head does: names, labels, effects, safety heads and roles, as tables and a page to explore.

    After Ctrl-C or a kill, the same command continues. With --pairs, --relations, --requests, --task and --texts it is
    about your own question.
    """
    if not set(only or PARTS) - set(skip or ()):
        raise typer.BadParameter(f"--only and --skip leave no part; leave one of {', '.join(PARTS)}")
    given = asdict(question) | {"only": only, "skip": skip, "quick": quick}
    column, where = given.pop("column"), values_of(given.pop("where"))
    if column is not None or where is not None:
        if question.requests is None:
            raise typer.BadParameter("--column and --where are of the file of --requests; give it too")
        from mechheads.safety.requests.loaders import load_requests

        given["requests"] = load_requests(question.requests, column=column, where=where)
    with settings(workers=machine.workers, seed=seed):
        _build(out, model, machine.device, given)


def _build(out: Path, model: str | None, device: str, given: dict[str, Any]) -> None:
    """Build an atlas of a model in a folder, or go on with the one that is there, and print what it found.

    If it is the default atlas on a CPU, say first about how long it takes.
    """
    with without_collecting():
        from mechheads.cli.speed import about_an_atlas, products_per_second
        from mechheads.explorer.page import write_page
        from mechheads.model.load import load
        from mechheads.studies.atlas import ATLAS_FILES
        from mechheads.studies.build import build_atlas
        from mechheads.studies.questions import Given, Questions

    ledger = "atlas.ledger"
    with results_in(out, (*ATLAS_FILES, PAGE, ledger)) as results:
        with without_collecting():
            loaded = load(model, device=device)
        results.of(Questions.of(loaded, Given(**given)).study)
        before = results.atlas_before()
        if model is None and before is None and not any(given.values()) and loaded.device.type == "cpu":
            typer.echo(about_an_atlas(products_per_second()), err=True)
        grow = partial(results.grow, write_page=write_page)
        stored = settings(store=out / ledger)(build_atlas)
        results.take(stored(loaded, **given, resume=before, after_each=grow), write_page)
        results.finish(ledger)


@command(main, "mechheads label --model gpt2 --relations country_to_capital,english_to_french --out gpt2-labels")
def label(
    model: ModelName = None,
    out: Out = Path("labels"),
    device: Device = "auto",
    seed: Seed = 0,
    *,
    labels: Labelling,
) -> None:
    """Labels of every head from its weights, as scores, a table and a category map.

    After Ctrl-C or a kill, the same command continues.
    """
    from mechheads.labels import label_heads, load_relations, relation_scores
    from mechheads.model.load import load
    from mechheads.plots.saving import save
    from mechheads.studies.study import study_of

    ledger = "labels.ledger"
    with results_in(out, ("relations.nc", "labels.nc", "heads.csv", "categories.html", ledger)) as results:
        wanted = load_relations(labels.relations)
        weights = load(model, device=device, max_memory="least" if labels.on_disk else None)
        marks = [relation.fingerprint for relation in wanted]
        how = {"rule": labels.rule, "source": labels.source, "min_pairs": labels.min_pairs, "seed": seed}
        results.of(study_of(weights, study="labels", relations=marks, **how))
        kept = settings(store=out / ledger, seed=seed)(relation_scores)
        named = wanted if labels.relations else None
        scores = kept(weights, named, min_pairs=labels.min_pairs, source=labels.source)  # type: ignore[arg-type]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = label_heads(scores, rule=labels.rule)  # type: ignore[arg-type]
        results.write("relations.nc", scores.save)
        results.write("labels.nc", found.save)
        results.table("heads", found.table())
        results.write("categories.html", partial(save, found.plot()))
        counts = found.counts(once=True) | ({"not reached": len(found.missing)} if found.missing else {})
        results.interrupted = bool(found.missing)
        results.finish(ledger)
        results.lines.append("Heads      " + ", ".join(f"{name} {n}" for name, n in counts.items()))
        best = found.table().query("is_evidence").nlargest(10, "phi")
        for head, *phi, relation in best[["head", "phi", "phi_low", "phi_high", "relation"]].to_numpy().tolist():
            results.lines.append(f"{_line(head, *phi)}  {relation}")
        results.lines += [f"Note       {warning.message}" for warning in told]


@command(main, "mechheads merge part1.ledger part2.ledger --into all.ledger")
def merge(
    parts: Annotated[list[Path], typer.Argument(callback=a_file, help="The ledgers.")],
    into: Annotated[Path, typer.Option(help="The ledger that gets all units.")],
) -> None:
    """Merge the ledgers of the parts of an analysis into one, with checks."""
    from mechheads.ledger.ledger import merge as merge_ledgers

    merged = merge_ledgers(parts, into)
    typer.echo(f"{into}: {merged.units} units, {merged.new} of them new")


@command(main, 'mechheads generate "The capital of France is" --off L23H4,L29H1 --tokens 20')
def generate(
    prompts: Annotated[list[str], typer.Argument(help="The prompts to continue.")],
    off: Annotated[list[str] | None, several("A head that is off, such as L23H4.", head_name)] = None,
    intervention: Annotated[
        str,
        typer.Option(callback=one_of(INTERVENTIONS), help='What such a head gives: "mean", "zero", "uniform", ...'),
    ] = "mean",
    tokens: Annotated[int, number("The largest number of new tokens for each prompt.", least=1)] = 64,
    chat: Annotated[bool, typer.Option(help="Ask each prompt in the model's chat template.")] = False,
    model: ModelName = None,
    device: Device = "auto",
) -> None:
    """Continue prompts with heads on or off, and print the text as it comes."""
    from mechheads.generation.generate import generate as write
    from mechheads.model.load import load

    asked = [[{"role": "user", "content": prompt}] if chat else prompt for prompt in prompts]
    shown = [f"{prompt}\n" if chat else prompt for prompt in prompts]
    options: dict[str, Any] = {"off": off or [], "intervention": intervention}
    one = len(prompts) == 1
    streamed: list[str] = []

    def stream(_: int, text: str) -> None:
        typer.echo(text if streamed else f"{shown[0]}{text}", nl=False)
        streamed.append(text)

    with settings(progress=not one):
        written = write(load(model, device=device), asked, tokens, stream=stream if one else None, **options)
    texts = [""] if streamed else [f"{a}{b}" for a, b in zip(shown, written.texts, strict=True)]
    typer.echo("\n\n".join(texts))
    if written.interrupted:
        raise typer.Exit(130)


@command(main, "mechheads safety --model Qwen/Qwen2.5-0.5B-Instruct --requests AdvBench --out qwen-safety")
def safety(
    model: Annotated[
        str | None,
        typer.Option(
            callback=model_name,
            help="Hub name, Hugging Face folder or GGUF file. Default: smollm2-135m-refusal, the default model "
            "trained to refuse.",
        ),
    ] = None,
    requests: Annotated[
        str | None,
        typer.Option(
            callback=request_names,
            help="JailbreakBench, MaliciousInstruct, AdvBench, XSTest or a file, in place of the package's requests; "
            "harmless requests are those that it labels as safe.",
        ),
    ] = None,
    out: Out = Path("safety"),
    k: Annotated[int, number("Number of heads at the top of each ranking.", least=1)] = 10,
    group: Annotated[
        str,
        typer.Option(
            callback=one_of(("query", "kv")),
            help='"query": one query head at a time; "kv": all query heads of a key/value head at once.',
        ),
    ] = "query",
    quick: Annotated[bool, typer.Option(help="A few requests and short answers: a first look.")] = False,
    seed: Seed = 0,
    *,
    machine: Machine,
) -> None:
    """Whether a model refuses, how brittle that is, which heads it depends on, and what else breaks without them.

    It is an atlas of this alone: after Ctrl-C or a kill, the same command continues.
    """
    from mechheads.model.sources import REFUSING_MODEL
    from mechheads.studies.refusals import RefusalSettings

    with settings(workers=machine.workers, seed=seed):
        refusals = RefusalSettings(k=k, group=group)  # type: ignore[arg-type]
        given = {"requests": requests, "refusals": refusals, "only": ["safety"], "quick": quick}
        _build(out, model or REFUSING_MODEL, machine.device, given)


@command(main, "mechheads serve atlas --port 8000")
def serve(
    atlas: Annotated[
        Path | None,
        typer.Argument(
            exists=True,
            file_okay=False,
            help="A folder that `mechheads atlas` wrote. Without it, patterns of one text.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            callback=model_name,
            help="Hub name, Hugging Face folder or GGUF file, to run your own texts. Default: the default model if the "
            "atlas is of it, or if there is no atlas.",
        ),
    ] = None,
    device: Device = "auto",
    port: Annotated[int, typer.Option(help="The port; 0 for any that is free.", min=0, max=65535)] = 0,
) -> None:
    """The explorer for this machine only, in which your own texts can be run. Ctrl-C ends it."""
    from mechheads.explorer.server import served
    from mechheads.messages.interrupted import until_interrupted

    server = served(atlas, model, device=device, port=port)
    texts = "" if server.live is None else "; your own texts can be run"
    typer.echo(f"Open {server.address} in a browser{texts}. Ctrl-C ends it.")
    with server, until_interrupted():
        server.serve_forever()


def _line(head: str, score: float, low: float, high: float) -> str:
    return f"  {head:>7}  {score:.2f} [{low:.2f}, {high:.2f}]"
