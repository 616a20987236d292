"""The command line, ``mechheads``: each command calls Python functions and writes their results to a folder."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from mechheads._version import __version__
from mechheads.cli.figures import figure
from mechheads.cli.options import (
    TASKS,
    Device,
    MinPairs,
    ModelName,
    OnDisk,
    Only,
    Out,
    Pairs,
    Relations,
    Requests,
    Rule,
    Skip,
    Source,
    Texts,
    WorkersOption,
)
from mechheads.cli.results import PAGE, errors_shown, results_in
from mechheads.cli.runs import merge, run, runs
from mechheads.limits import settings, without_collecting

main = typer.Typer(
    help="What does each attention head of a language model do, and how sure are we?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
main.add_typer(figure, name="figure")
main.add_typer(runs, name="runs")
main.command()(run)
main.command()(merge)


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
    device: Device = "auto",
    pairs: Pairs = None,
    relations: Relations = None,
    requests: Requests = None,
    task: Annotated[str | None, typer.Option(help=f"Default: naming capitals. Or: {TASKS}")] = None,
    texts: Texts = None,
    only: Only = None,
    skip: Skip = None,
    quick: Annotated[
        bool, typer.Option(help="Fewer of the package's relations, pairs and requests, no roles: a first look.")
    ] = False,
    workers: WorkersOption = "1",
) -> None:
    """What every head does: names, labels, effects, safety heads and roles, as tables and a page to explore.

    After Ctrl-C or a kill, the same command continues. With --pairs, --relations, --requests, --task and --texts it is
    the same study of your own question.
    """
    with without_collecting():
        from mechheads.explorer.page import write_page
        from mechheads.model.load import load
        from mechheads.studies.atlas import ATLAS_FILES
        from mechheads.studies.build import build_atlas
        from mechheads.studies.questions import Given, Questions, chosen

    ledger = "atlas.ledger"
    with results_in(out, (*ATLAS_FILES, PAGE, ledger)) as results, settings(workers=workers):
        given: dict[str, Any] = {"pairs": pairs, "relations": relations or None, "requests": requests, "task": task}
        given |= {"texts": texts, "only": _names(only), "skip": _names(skip), "quick": quick}
        chosen(given["only"], given["skip"])
        with without_collecting():
            loaded = load(model, device=device)
        results.of(Questions.of(loaded, Given(**given)).study)
        grow = partial(results.grow, write_page=write_page)
        stored = settings(store=out / ledger)(build_atlas)
        results.take(stored(loaded, **given, resume=results.atlas_before(), after_each=grow), write_page)
        results.finish(ledger)


@main.command()
def label(
    model: ModelName = None,
    relations: Relations = None,
    out: Out = Path("labels"),
    rule: Rule = "null",
    source: Source = "all",
    device: Device = "auto",
    min_pairs: MinPairs = 30,
    on_disk: OnDisk = False,
) -> None:
    """Labels of every head from its weights, as scores, a table and a category map.

    After Ctrl-C or a kill, the same command continues, unless weights are read from disk.
    """
    from mechheads.labels import label_heads, load_relations, relation_scores
    from mechheads.model.load import load
    from mechheads.model.stored_weights import open_weights
    from mechheads.plots.saving import save
    from mechheads.studies.study import study_of

    ledger = "labels.ledger"
    with results_in(out, ("relations.nc", "labels.nc", "heads.csv", "categories.html", ledger)) as results:
        if on_disk and model is None:
            raise ValueError("--on-disk needs --model: a folder of safetensors or a hub name")
        if on_disk and device not in ("cpu", "auto"):
            raise ValueError(f"--on-disk computes on the CPU; leave out --device {device} or --on-disk")
        wanted = load_relations(relations or None)
        weights = open_weights(model) if on_disk and model else load(model, device=device)
        marks = [relation.fingerprint for relation in wanted]
        results.of(study_of(weights, study="labels", relations=marks, rule=rule, source=source, min_pairs=min_pairs))
        kept = settings(store=None if on_disk else out / ledger)(relation_scores)
        scores = kept(weights, wanted, min_pairs=min_pairs, source=source)  # type: ignore[arg-type]
        labels = label_heads(scores, rule=rule)  # type: ignore[arg-type]
        results.write("relations.nc", scores.save)
        results.write("labels.nc", labels.save)
        results.table("heads", labels.table())
        results.write("categories.html", partial(save, labels.plot()))
        counts = labels.counts(once=True) | ({"not reached": len(labels.missing)} if labels.missing else {})
        results.interrupted = bool(labels.missing)
        results.finish(ledger)
        results.lines.append("Heads      " + ", ".join(f"{name} {n}" for name, n in counts.items()))
        best = labels.table().query("is_evidence").nlargest(10, "phi")
        for head, *phi, relation in best[["head", "phi", "phi_low", "phi_high", "relation"]].to_numpy().tolist():
            results.lines.append(f"{_line(head, *phi)}  {relation}")


@main.command()
def generate(
    prompts: Annotated[list[str], typer.Argument(help="The prompts to continue.")],
    off: Annotated[list[str] | None, typer.Option(help="A head that is off, such as L23H4; can be repeated.")] = None,
    ablation: Annotated[str, typer.Option(help='What such a head gives: "mean", "zero" or "uniform".')] = "mean",
    tokens: Annotated[int, typer.Option(help="The largest number of new tokens for each prompt.")] = 64,
    chat: Annotated[bool, typer.Option(help="Ask each prompt in the model's chat template.")] = False,
    model: ModelName = None,
    device: Device = "auto",
) -> None:
    """Continue prompts with heads on or off, and print the text as it comes."""
    from mechheads.generation.generate import generate as write
    from mechheads.model.load import load

    with errors_shown():
        asked = [[{"role": "user", "content": prompt}] if chat else prompt for prompt in prompts]
        shown = [f"{prompt}\n" if chat else prompt for prompt in prompts]
        options = {"off": off or [], "ablation": ablation}
        if len(prompts) == 1:
            typer.echo(shown[0], nl=False)
            options["stream"] = lambda prompt, text: typer.echo(text, nl=False)
        with settings(progress=len(prompts) > 1):
            written = write(load(model, device=device), asked, tokens, **options)
        texts = [""] if len(prompts) == 1 else [f"{a}{b}" for a, b in zip(shown, written.texts, strict=True)]
        typer.echo("\n\n".join(texts))
        if written.interrupted:
            raise typer.Exit(130)


@main.command()
def safety(
    model: Annotated[
        str | None,
        typer.Option(
            help="Hub name, Hugging Face folder or GGUF file. Default: smollm2-135m-refusal, the default model "
            "trained to refuse."
        ),
    ] = None,
    requests: Annotated[
        str | None,
        typer.Option(
            help="JailbreakBench, MaliciousInstruct, AdvBench, XSTest or a file, in place of the package's requests; "
            "harmless requests are those that it labels as safe."
        ),
    ] = None,
    out: Out = Path("safety"),
    device: Device = "auto",
    k: Annotated[int, typer.Option(help="Number of heads at the top of each ranking.")] = 10,
    group: Annotated[
        str, typer.Option(help='"query": one query head at a time; "kv": all query heads of a key/value head at once.')
    ] = "query",
    quick: Annotated[bool, typer.Option(help="A few requests and short answers: a first look.")] = False,
    seed: Annotated[int, typer.Option(help="Seed for resampling, random heads and sampling.")] = 0,
    workers: WorkersOption = "1",
) -> None:
    """Whether a model refuses, how brittle that is, which heads it depends on, and what else breaks without them."""
    from mechheads.model.load import load
    from mechheads.model.sources import REFUSING_MODEL
    from mechheads.studies.report import write_safety_page
    from mechheads.studies.safety import CRITICAL, safety_settings, safety_study
    from mechheads.studies.safety_result import SAFETY_FILES

    ledger = "safety.ledger"
    with results_in(out, (*SAFETY_FILES, PAGE, ledger)) as results, settings(workers=workers, seed=seed):
        loaded = load(model or REFUSING_MODEL, device=device)
        options: dict[str, Any] = {"quick": quick, "k": k, "critical": CRITICAL, "group": group}
        results.of(safety_settings(loaded, requests, **options, seed=seed))
        study = settings(store=out / ledger)(safety_study)(loaded, requests=requests, **options)
        results.take(study, write_safety_page)
        results.finish(ledger)


@main.command()
def profile(
    model: ModelName = None,
    texts: Texts = None,
    tokens: Annotated[int, typer.Option(help="How many tokens to read.")] = 20_000,
    window: Annotated[int | None, typer.Option(help="Tokens in a window. Default: 256.")] = None,
    out: Out = Path("profile"),
    device: Device = "auto",
    workers: WorkersOption = "1",
) -> None:
    """What every head does on ordinary text. After Ctrl-C, the same command continues."""
    from mechheads.behaviour import profile_heads
    from mechheads.behaviour.head_profile import NAMES
    from mechheads.files.checksums import file_sha256
    from mechheads.model.load import load
    from mechheads.plots.saving import save
    from mechheads.studies.study import study_of

    ledger = "profile.ledger"
    names = ("profile.nc", "heads.csv", "profile.html", ledger)
    with results_in(out, names) as results, settings(workers=workers):
        if texts is not None and not texts.is_file():
            raise ValueError(f"--texts {texts} is not a file; give a text file with empty lines between the texts")
        loaded = load(model, device=device)
        read = "of the package" if texts is None else file_sha256(texts)
        results.of(study_of(loaded, study="profile", texts=read, tokens=tokens, window=window))
        found = settings(store=out / ledger)(profile_heads)(loaded, texts, window=window, n_tokens=tokens)
        results.interrupted = found.provenance["interrupted"]
        results.write("profile.nc", found.save)
        results.table("heads", found.table())
        results.write("profile.html", partial(save, found.plot()))
        results.finish(ledger)
        for name in NAMES.values():
            heads = found.named(name)
            shown = ", ".join(map(str, heads[:8])) + (", ..." if len(heads) > 8 else "")
            results.lines.append(f"{name:<16}{len(heads):>4}  {shown}".rstrip())


@main.command()
def roles(
    task: Annotated[str, typer.Option(help=TASKS)] = "capitals",
    model: ModelName = None,
    device: Device = "auto",
    seeds: Annotated[int, typer.Option(help="Number of fits from different starts.")] = 10,
    updates: Annotated[int, typer.Option(help="Largest number of updates in each of the three fits.")] = 500,
    batch: Annotated[int, typer.Option(help="Number of items in an update.")] = 64,
    n: Annotated[int | None, typer.Option(help="Number of items of the task. Default: all.")] = None,
    most: Annotated[int, typer.Option(help="Largest number of heads to gate off in the curves.")] = 50,
    out: Annotated[Path, typer.Option(help="Folder for the results, and for the ledger that keeps the fits.")] = Path(
        "roles"
    ),
    workers: WorkersOption = "1",
) -> None:
    """Which heads facilitate a task, interfere with it or do not matter. After Ctrl-C, the same command continues."""
    from mechheads.gating import fit_gates, head_roles, role_curve
    from mechheads.gating.tasks.open_task import open_task
    from mechheads.ledger.fingerprints import fingerprint
    from mechheads.model.load import load
    from mechheads.results.dataset import shown_ends
    from mechheads.studies.report import role_shares, write_roles_page
    from mechheads.studies.study import study_of

    ledger = out / "gates.ledger"
    names = ("gates.nc", "heads.csv", "curves.csv", PAGE, ledger.name)
    with results_in(out, names) as results, settings(workers=workers):
        loaded = load(model, device=device)
        items = open_task(task, model=loaded, n=n)
        fitted_on, tried_on = items.split(0.8)
        fit: dict[str, Any] = {"seeds": seeds, "updates": updates, "batch": batch}
        results.of(study_of(loaded, study="roles", task=fingerprint(items, "task"), most=most, **fit))
        gates = settings(store=ledger)(fit_gates)(loaded, fitted_on, **fit)
        results.write("gates.nc", gates.save)
        if gates.interrupted:
            raise KeyboardInterrupt(f"Interrupted; the same command continues from {ledger}.")
        found = head_roles(gates)
        curves = role_curve(loaded, tried_on, gates, found, most=most)
        results.interrupted = curves.interrupted
        results.table("heads", found.to_dataframe())
        results.table("curves", curves.table)
        results.write(PAGE, partial(write_roles_page, loaded.name, found, curves))
        for share, scores in zip(role_shares(found), found.values(), strict=True):
            results.lines.append(share)
            for row in scores.top(5).to_dict("records"):
                head = f"L{row['layer']}H{row['head']}"
                results.lines.append(f"  {head:>7}  {row['score']:.2f}{shown_ends(row, '.2f')}")


@main.command()
def serve(
    atlas: Annotated[
        Path | None, typer.Argument(help="A folder that `mechheads atlas` wrote. Without it, patterns of one text.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Hub name, Hugging Face folder or GGUF file, to run your own texts. Default: the default model if the "
            "atlas is of it, or if there is no atlas."
        ),
    ] = None,
    device: Device = "auto",
    port: Annotated[int, typer.Option(help="The port; 0 for any that is free.", min=0, max=65535)] = 0,
) -> None:
    """The explorer for this machine only, in which your own texts can be run. Ctrl-C ends it."""
    from mechheads.explorer.server import served
    from mechheads.messages.interrupted import until_interrupted

    with errors_shown():
        server = served(atlas, model, device=device, port=port)
        texts = "" if server.live is None else "; your own texts can be run"
        typer.echo(f"Open {server.address} in a browser{texts}. Ctrl-C ends it.")
        with server, until_interrupted():
            server.serve_forever()


def _names(asked: str | None) -> list[str] | None:
    """The names of an option that takes several."""
    return None if asked is None else [name.strip() for name in asked.split(",") if name.strip()]


def _line(head: str, score: float, low: float, high: float) -> str:
    return f"  {head:>7}  {score:.2f} [{low:.2f}, {high:.2f}]"
