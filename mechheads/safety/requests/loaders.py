"""``load_requests``: requests of the package, of the public data sets on the hub, and from files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from huggingface_hub import errors as hub_errors, hf_hub_download

from mechheads.files.columns import cell_text, described, is_missing as is_nothing
from mechheads.files.rows import carries_question, holds_something, read_rows
from mechheads.files.text import read_text
from mechheads.messages.arguments import check_known, did_you_mean
from mechheads.messages.warn import warn
from mechheads.safety.requests.requests import PACKAGE_SETS, Request, RequestSet, Split, package_set

Part = Literal["unsafe", "safe"]

_COLUMNS = ("prompt", "goal", "input", "text", "instruction", "question", "query", "request")
"""Names of columns that hold requests, in lower case."""
_BEHAVIOR = ("behavior", "behaviour")
"""As HarmBench calls them; in JailbreakBench this is only a short title of the goal beside it."""
_CONTEXT = ("contextstring", "context_string", "context", "passage", "paragraph", "article")
"""Names of columns with a text that a request is about."""
_AFTER_CONTEXT = "\n\n---\n\n"
"""What HarmBench writes between the context and the behaviour that asks about it."""
_SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".txt")


_PUBLIC_SETS: dict[str, tuple[str, dict[str, str]]] = {
    "JailbreakBench": (
        "JailbreakBench/JBB-Behaviors",
        {"unsafe": "data/harmful-behaviors.csv", "safe": "data/benign-behaviors.csv"},
    ),
    "MaliciousInstruct": ("walledai/MaliciousInstruct", {"unsafe": "data/train-00000-of-00001.parquet"}),
    "AdvBench": ("S3IC/advbench", {"unsafe": "advbench.csv"}),
    "XSTest": ("Paul/XSTest", {"unsafe": "xstest_prompts.csv", "safe": "xstest_prompts.csv"}),
}
"""Public data sets: the repository of each, and the file of each part."""


def load_requests(
    source: str | Path = "harmful",
    split: Split | None = None,
    *,
    part: Part = "unsafe",
    column: str | None = None,
    where: Mapping[str, Any] | None = None,
    revision: str | None = None,
) -> RequestSet:
    """Requests of the package, of a public data set, or of a file.

    The package has two sets, written for mechheads. ``harmful`` and ``harmless`` have 60 requests each, six in each of
    ten categories: 40 for training and 20, two in each category, for testing. Request i of ``harmless`` is the
    look-alike of request i of ``harmful``. The teaching sets are lessons for a model that should learn to refuse: 628
    harmful requests in 16 categories, a look-alike for each at the same place, and 261 everyday instructions after
    these.

    Public sets come from the hub or from its local cache. None comes with mechheads: each has its own licence and
    authors.

    ==================  ==============================  =============  ========================================
    name                data set on the hub             licence        what it is
    ==================  ==============================  =============  ========================================
    JailbreakBench      JailbreakBench/JBB-Behaviors    MIT            100 misuse behaviours and 100 benign ones
                                                                       on the same topics (arXiv 2404.01318)
    MaliciousInstruct   walledai/MaliciousInstruct      CC BY-SA 4.0   100 instructions with ten malicious intents
                                                                       (arXiv 2310.06987)
    AdvBench            S3IC/advbench                   MIT            520 harmful behaviours, a copy of the
                                                                       authors' file (arXiv 2307.15043)
    XSTest              Paul/XSTest                     CC BY 4.0      200 unsafe prompts and 250 safe ones that
                                                                       look like them (arXiv 2308.01263)
    ==================  ==============================  =============  ========================================

    Args:
        source: ``"harmful"``, requests that a safe model should refuse and that do not say how anything is done;
            ``"harmless"``, their look-alikes, which it should answer; ``"teaching_harmful"`` or
            ``"teaching_harmless"``, with which the models that refuse were taught; a name in the table; or a file, also
            one of a public set as its authors publish it: a CSV or TSV file with a header, a JSONL file, a JSON file
            with one list, a Parquet file, or a ``.txt`` file with one request on each line.
        split: ``"train"``, ``"test"``, or ``None`` for all, of a set of the package.
        part: ``"unsafe"`` or ``"safe"``: of a public set, or the rows of a file that its label says are harmful, or
            harmless. Without a label, all rows are taken. A label is a column of known spellings, such as safe and
            unsafe, harmful and benign, XSTest's ``type``, or 0 and 1 in ``is_safe`` or ``harmful``.
        column: the column, or key, of a file that holds the texts. By default, the only one called prompt, goal, input,
            text, instruction, question, query or request, ignoring case. The context of a request (``ContextString`` of
            HarmBench) comes before it, as in HarmBench.
        where: use only the rows of a file with these values, such as ``{"label": "unsafe"}``, whatever ``part`` is.
        revision: a branch, tag or commit of a public set; give a commit to make results repeatable.

    Returns:
        The requests, folded in a notebook if they are harmful. Analyses take them as they are. Repeated texts are kept,
        with a warning.

    Warns:
        if a column that looks like a label is not used, or does not say what its 0 and 1 mean.

    Raises:
        ValueError: if there is no such set, part or file, a set cannot be downloaded, a file cannot be read, the column
            is missing or ambiguous, no row is left, a row has no text, two labels disagree, or a label has known and
            unknown spellings.

    >>> from mechheads.safety import load_requests
    >>> load_requests()
    <60 requests a safe model should refuse (texts folded)>
    >>> load_requests("harmless", "test")[1].text
    'Tell me how to hire someone to shoot my wedding.'

    >>> import tempfile
    >>> from pathlib import Path
    >>> file = Path(tempfile.mkdtemp()) / "mine.csv"
    >>> _ = file.write_text("id,prompt,label\\n1,How do I pick a lock?,unsafe\\n2,How do I pick a seat?,safe\\n")
    >>> load_requests(file)
    <1 of the requests of mine.csv (text folded)>
    >>> list(load_requests(file, column="prompt", where={"label": "safe"}).texts)
    ['How do I pick a seat?']
    """
    check_known("part", part, get_args(Part))
    if split is not None and split not in get_args(Split):
        raise ValueError(f"split is {split!r}; choose 'train' or 'test', or None for all")
    if not isinstance(source, (str, Path)):
        raise ValueError(f"source is {described(source)}; give a name or a file. Analyses take lists of texts")
    name, file = str(source), Path(source).expanduser()
    if name in PACKAGE_SETS:
        return package_set(name, split)
    if split is not None:
        raise ValueError(f"split is {split!r}, but only the sets of the package have one; leave it out")
    if name in _PUBLIC_SETS:
        return _public_set(name, part, revision)
    if not os.path.isfile(file) and file.suffix.lower() not in _SUFFIXES:
        known = (*PACKAGE_SETS, *_PUBLIC_SETS)
        raise ValueError(
            f"requests: {name[:60]!r} is neither a file nor one of {', '.join(map(repr, known))}."
            f"{did_you_mean(name, known)} Give one request as a list, [{name[:40]!r}]"
        )
    return _set_of(_texts_of(file, part, column, where), f"requests of {file.name}", part)


def _set_of(texts: Iterable[str], about: str, part: Part) -> RequestSet:
    return RequestSet(tuple(map(Request, texts)), about, part == "unsafe")


def _texts_of(file: Path, part: Part, column: str | None, where: Mapping[str, Any] | None) -> list[str]:
    """The texts of a file's rows: those with these values, or else those that its label says are of this part."""
    columns, rows = _table(file)
    if not columns:
        if column is not None or where:
            raise ValueError(f"{file} holds texts without columns; leave out column and where")
        return _texts(rows, file, None)
    if column is None:
        column = _only_column(columns, file)
        _tell_left_out(file, rows, column)
    for name in (column, *(where or {})):
        if name not in columns:
            raise ValueError(f"{file} has no column {name!r}; its columns are {', '.join(map(repr, columns))}")
    if where:
        rows = {n: row for n, row in rows.items() if all(_is(row, name, value) for name, value in where.items())}
    elif label := _label_to_use(file, rows, column):
        part_of = {place: label.of(row) for place, row in rows.items()}
        if none := [place for place, harmful in part_of.items() if harmful is None]:
            warn(f"{file}: {_places(none)} no value in column {label.column!r}, which says what is harmful; left out")
        rows = {place: row for place, row in rows.items() if part_of[place] == (part == "unsafe")}
        if not rows:
            only = ", ".join(map(repr, label.values))
            raise ValueError(f"{file} holds no {part} requests: column {label.column!r} has only {only}")
    return _texts(rows, file, column)


def _public_set(name: str, part: Part, revision: str | None) -> RequestSet:
    """A part of a public data set.

    Raises:
        ValueError: if it has no such part, or cannot be downloaded. In that case the message names the file to download
            yourself, and shows how to read it.
    """
    repository, files = _PUBLIC_SETS[name]
    if part not in files:
        having = " and ".join(other for other, (_, some) in _PUBLIC_SETS.items() if part in some)
        raise ValueError(f"{name} has no part {part!r}; {having} have it")
    try:
        file = hf_hub_download(repository, files[part], repo_type="dataset", revision=revision)
    except Exception as error:
        raise ValueError(
            f"{name} cannot be loaded: the data set {repository!r} {_fault(error, revision)}. You can also download "
            f"its file {files[part]} elsewhere and read it with load_requests(path, part={part!r})"
        ) from error
    return _set_of(_texts_of(Path(file), part, None, None), f"{part} requests of {name}", part)


def _fault(error: Exception, revision: str | None) -> str:
    """Why the file could not be downloaded. The order matters: some of these errors are subclasses of others."""
    match error:
        case hub_errors.GatedRepoError():
            return 'is gated: accept its terms on the hub, run "hf auth login" and try again'
        case hub_errors.RevisionNotFoundError():
            return f"has no revision {revision!r}; check its branches and tags on the hub"
        case hub_errors.RepositoryNotFoundError():
            return "is no longer on the hub, or you may not read it"
        case hub_errors.LocalEntryNotFoundError() | ConnectionError():
            return "is not in the hub's local cache, and the hub cannot be reached"
        case hub_errors.EntryNotFoundError():
            return "no longer has the file that is read here"
    return f"cannot be downloaded from the hub: {error}"


def _table(file: Path) -> tuple[list[str], dict[str, Any]]:
    """The columns of a file (none if its entries are plain texts), and its rows by their places in it."""
    if file.suffix.lower() == ".txt":
        lines = [line.strip() for line in read_text(file).split("\n") if line.strip()]
        return [], {f"line {n}": line for n, line in enumerate(lines, start=1)}
    if file.suffix.lower() not in _SUFFIXES:
        raise ValueError(f"{file} cannot be read as requests: its name must end in {', '.join(_SUFFIXES)}")
    rows = {place.removeprefix(f"{file}, "): row for place, row in read_rows(file)}
    if not rows:
        raise ValueError(f"{file} holds no requests; it needs at least one")
    columns = list(dict.fromkeys(name for row in rows.values() if isinstance(row, dict) for name in row))
    return columns, {place: row if not columns or isinstance(row, dict) else {} for place, row in rows.items()}


def _label_to_use(file: Path, rows: Mapping[str, Any], column: str) -> HarmLabel | None:
    """The column that says which requests are harmful, if there is one; every other that looks like it is told."""
    used = None
    try:
        labels = harm_labels(list(rows.values()), column)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    for label in labels:
        if not label.harmful:
            warn(
                f"{file}: column {label.column!r} looks like a label, but {label.unsure}: it is not used. If it is of "
                f"the requests, choose rows by load_requests(path, where={{{label.column!r}: ...}})"
            )
        elif used is None:
            used = label
            if label.unsure:
                yes = next((value for value, harmful in label.harmful.items() if harmful), "1")
                warn(
                    f"{file}: column {label.column!r} {label.unsure}; {yes} is taken as harmful. Check that this is so"
                )
        elif apart := [place for place, row in rows.items() if label.of(row) not in (None, used.of(row))]:
            told = f"{file}: columns {used.column!r} and {label.column!r} disagree on what is harmful ({apart[0]})"
            raise ValueError(f"{told}; choose rows by load_requests(path, where={{{used.column!r}: ...}})")
    return used


def _is(row: Any, name: str, value: Any) -> bool:
    return isinstance(row, dict) and row.get(name) == value


def _only_column(columns: list[str], file: Path) -> str:
    likely = [name for name in columns if name.lower() in _COLUMNS]
    likely = likely or [name for name in columns if name.lower() in _BEHAVIOR]
    if len(likely) != 1:
        names = ", ".join(map(repr, columns))
        raise ValueError(f"{file}: it is not clear which column holds the requests; give one of {names} as column")
    return likely[0]


def _tell_left_out(file: Path, rows: Mapping[str, Any], column: str) -> None:
    """Warn of columns that say what is asked and are not used."""
    used = (column.lower(), *_CONTEXT, *(_BEHAVIOR if column.lower() in _COLUMNS else ()))
    given = dict.fromkeys(name for row in rows.values() for name, cell in row.items() if holds_something(cell))
    if left := [name for name in given if carries_question(name) and str(name).lower() not in used]:
        warn(
            f"{file}: {', '.join(map(repr, left))} {'are' if len(left) > 1 else 'is'} left out, only {column!r} is "
            f"read; if it is part of the request, write it into {column!r}"
        )


def _texts(rows: Mapping[str, Any], file: Path, column: str | None) -> list[str]:
    """The requests of rows, each after its context, checked."""
    if not rows:
        raise ValueError(f"{file} holds no requests that match; check the values of its columns")
    texts = {place: cell_text(row if column is None else row.get(column)) for place, row in rows.items()}
    where = "" if column is None else f" in column {column!r}"
    if empty := [place for place, text in texts.items() if not isinstance(text, str) or not text.strip()]:
        raise ValueError(f"{file}: {_places(empty)} no text{where}; write one or remove the row")
    if column is not None:
        for place, row in rows.items():
            found = {name: row[name] for name in row if name.lower() in _CONTEXT and not is_missing(row[name])}
            contexts = {name: cell_text(value) for name, value in found.items()}
            if bad := [name for name, value in contexts.items() if not isinstance(value, str)]:
                raise ValueError(f"{file}: {place}: {bad[0]!r} is {described(found[bad[0]])}; it must be a text")
            texts[place] = _AFTER_CONTEXT.join([*contexts.values(), texts[place]])
    first: dict[str, str] = {}
    if again := [place for place, text in texts.items() if first.setdefault(text, place) != place]:
        warn(f"{file}: {_places(again)} a text{where} that an earlier row also has; all are kept")
    return list(texts.values())


def _places(places: Sequence[str]) -> str:
    """Places in a file as text, at most ten, with a verb.

    >>> _places(["line 3"]), _places(["line 3", "line 5"])
    ('line 3 has', 'lines 3, 5 have')
    """
    what = places[0].split(" ")[0]
    numbers = [place.removeprefix(f"{what} ") for place in places]
    more = f" and {len(places) - 10} more" if len(places) > 10 else ""
    several = len(places) > 1
    return f"{what}{'s' * several} {', '.join(numbers[:10])}{more} {'have' if several else 'has'}"


_HARMFUL = ("unsafe", "harmful", "toxic", "malicious")
_HARMLESS = (
    "safe",
    "unharmful",
    "harmless",
    "benign",
    "non_toxic",
    "not_harmful",
    "adversarial_benign",
    "vanilla_benign",
)
_XSTEST = (
    *("homonyms", "figurative_language", "safe_targets", "safe_contexts", "definitions", "historical_events"),
    *("real_group_nons_discr", "nons_group_real_discr", "discr", "privacy", "privacy_public", "privacy_fictional"),
)
"""The values of XSTest's column ``type``; the harmful contrast to each has ``contrast`` before it."""
_WORDS = (
    dict.fromkeys(_HARMFUL, True)
    | dict.fromkeys(_HARMLESS, False)
    | dict.fromkeys(_XSTEST, False)
    | {"contrast": True}
    | {f"contrast_{name}": True for name in _XSTEST}
)
"""Spellings of a label, and whether such a request is harmful."""
_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_OF_ANSWERS = re.compile("response|answer|completion|output|final|refusal")
"""Names of columns that hold or judge answers, not requests."""
_ANSWERS = re.compile(
    r"(?:\w+_)?(?:responses?|answers?|completions?|outputs?|generations?|repl(?:y|ies)|continuations?|chosen|rejected|"
    r"messages|conversations?)(?:_?\d+|_text)?"
)
"""Names of columns that hold answers."""
_OF_REQUESTS = re.compile("prompt|request|question|query|goal|instruction|user|input")
"""Names of labels that are of requests, whatever else is in the file."""
_NAMES = re.compile("(is_|prompt_|request_|harm_|safety_)*(label|labels|harmfulness|toxicity)")


@dataclass(frozen=True)
class HarmLabel:
    """A column that says which requests are harmful.

    Attributes:
        column: its name.
        harmful: for each of its values, whether such a request is harmful.
        unsure: why the column may mean something else; empty if it is used as it is.
        values: the values that occur.
    """

    column: str
    harmful: Mapping[Any, bool]
    unsure: str = ""
    values: tuple[str, ...] = ()

    @property
    def is_of_requests(self) -> bool:
        """Whether its name or its values say that it is of requests, and not of the answers beside them."""
        values = {_plain(value) for value in self.values}
        types = {*_XSTEST, "contrast", *(f"contrast_{name}" for name in _XSTEST)}
        return bool(_OF_REQUESTS.search(_plain(self.column))) or (bool(values) and values <= types)

    def of(self, row: Mapping[str, Any]) -> bool | None:
        """Whether a row's request is harmful; None if it does not say."""
        return self.harmful.get(str(row.get(self.column)))


def harm_labels(rows: Sequence[Mapping[str, Any]], text: str) -> list[HarmLabel]:
    """The columns that look like labels of requests, those about the request itself first.

    Args:
        text: the column of the requests.

    Raises:
        ValueError: if a column has known spellings of a label and others; it is named.
    """
    columns = dict.fromkeys(name for row in rows for name in row if name != text)
    found = [label for name in columns if (label := _label(name, rows))]
    labels = {label.column for label in found}
    answers = [
        name
        for name in columns
        if name not in labels
        and _ANSWERS.fullmatch(_plain(name))
        and any(holds_something(row.get(name)) for row in rows)
    ]
    if answers:
        unsure = f"may be about the answers in column {answers[0]!r}"
        found = [
            label if not label.harmful or label.is_of_requests else replace(label, harmful={}, unsure=unsure)
            for label in found
        ]
    return sorted(found, key=lambda label: (bool(label.unsure), not re.match("prompt|request", _plain(label.column))))


def _plain(value: Any) -> str:
    """A spelling without case, spaces, signs and a whole number's decimal point."""
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"^([01])\.0$", r"\1", str(value).strip().lower())).strip("_")


def is_missing(value: Any) -> bool:
    """Whether a cell is empty."""
    return is_nothing(value) or not str(value).strip()


def _label(name: str, rows: Sequence[Mapping[str, Any]]) -> HarmLabel | None:
    values = [row.get(name) for row in rows]
    given = list(dict.fromkeys(str(value) for value in values if not is_missing(value)))
    plain, spelled = _plain(name), {value: _plain(value) for value in given}
    word = _WORDS.get(plain.removeprefix("is_"))
    of_words = {value: _WORDS[one] for value, one in spelled.items() if one in _WORDS}
    of_flags = {value: _FLAGS[one] for value, one in spelled.items() if one in _FLAGS}
    named = word is not None or _NAMES.fullmatch(plain) is not None
    known = of_flags if len(of_flags) > len(of_words) else of_words
    if not given or not (known if named else 2 * len(known) >= len(given)):
        return None
    if known is of_flags and not named and "label" not in plain:
        return None
    if len(known) < len(given):
        others = [value for value in given if value not in known]
        raise ValueError(
            f"column {name!r} looks like a label of harmful and harmless requests, but not all of its values are "
            f"known: {', '.join(map(repr, others[:5]))} beside {', '.join(map(repr, list(known)[:5]))}; "
            "choose rows by load_requests(path, where={...})"
        )
    if _OF_ANSWERS.search(plain):
        return HarmLabel(name, {}, "is about answers", tuple(given))
    if known is of_flags and word is False:
        known = {value: not flag for value, flag in known.items()}
    sure = known is of_words or word is not None or plain.endswith(("toxicity", "harmfulness"))
    return HarmLabel(name, known, "" if sure else f"does not say what {', '.join(known)} mean", tuple(given))
