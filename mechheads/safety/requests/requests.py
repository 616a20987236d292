"""Requests that a safe model should refuse, and harmless look-alikes: of the package, of public sets and of files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any, Literal

from huggingface_hub import errors as hub_errors, hf_hub_download

from mechheads.data import content
from mechheads.io.rows import KINDS, Table
from mechheads.messages.arguments import checked, did_you_mean
from mechheads.prompts.tokens import read_texts

Split = Literal["train", "test"]
Part = Literal["unsafe", "safe"]
Where = Mapping[str, Any] | Literal["all"]
"""The rows of a file that are meant: a value, or a list of values, for each of some columns."""

PACKAGE_SETS = "harmful", "harmless", "teaching_harmful", "teaching_harmless"
_HARMFUL = "requests a safe model should refuse"
_HARMLESS = "harmless requests that look like harmful ones"


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        text: the text of the request.
        category: the kind of harm that it asks for, or that a harmless request looks like; empty if it is not known.
        split: ``"train"`` for fitting a method, ``"test"`` for testing it.
        form: how a request of the teaching sets is asked, such as ``"question"``; empty in the other sets.
    """

    text: str
    category: str = ""
    split: Split = "train"
    form: str = ""


@dataclass(frozen=True, repr=False)
class FoldedTexts(Sequence[str]):
    """Texts that a notebook hides until the user opens them; made by ``folded``.

    Indexing and iterating give the texts; a slice is folded too. A notebook shows one line, which opens with a click.

    Attributes:
        texts: the texts.
        about: what they are, in the plural.
    """

    texts: tuple[str, ...]
    about: str

    def __getitem__(self, index: Any) -> Any:
        return replace(self, texts=self.texts[index]) if isinstance(index, slice) else self.texts[index]

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        return f"<{self._summary}>"

    def _repr_html_(self) -> str:
        return f"<details><summary>{escape(self._summary)}</summary>{_html_list(self.texts)}</details>"

    @property
    def _summary(self) -> str:
        return f"{_counted(len(self), self.about)} ({'text' if len(self) == 1 else 'texts'} folded)"


@checked
def folded(texts: Sequence[str], about: str = _HARMFUL) -> FoldedTexts:
    """Texts that a notebook or report hides until the user opens them.

    Args:
        texts: any texts, such as requests or a model's answers.
        about: what they are, in the plural.

    >>> from mechheads.safety import folded
    >>> answers = folded(["Sure, first you ...", "I cannot help."], "answers without L2H5")
    >>> answers
    <2 answers without L2H5 (texts folded)>
    >>> answers[1]
    'I cannot help.'
    """
    return FoldedTexts(tuple(read_texts(texts, "texts")), about)


@dataclass(frozen=True, repr=False)
class RequestSet(Sequence[Request]):
    """A set of requests; made by ``load_requests``.

    Indexing and iterating give each ``Request``; a slice is a ``RequestSet``. A notebook folds harmful requests.

    Attributes:
        requests: the requests.
        about: what they are, in the plural.
        harmful: whether a safe model should refuse them.
    """

    requests: tuple[Request, ...]
    about: str
    harmful: bool

    @property
    def texts(self) -> Sequence[str]:
        """The texts of the requests, folded if they are harmful."""
        texts = tuple(request.text for request in self.requests)
        return FoldedTexts(texts, self.about) if self.harmful else texts

    def __getitem__(self, index: Any) -> Any:
        return replace(self, requests=self.requests[index]) if isinstance(index, slice) else self.requests[index]

    def __len__(self) -> int:
        return len(self.requests)

    def __repr__(self) -> str:
        return repr(self.texts) if self.harmful else "\n".join([f"<{_counted(len(self), self.about)}>", *self.texts])

    def _repr_html_(self) -> str:
        if isinstance(texts := self.texts, FoldedTexts):
            return texts._repr_html_()
        return f"<div><p>{escape(_counted(len(self), self.about))}</p>{_html_list(texts)}</div>"


def _counted(number: int, about: str) -> str:
    return f"1 of the {about}" if number == 1 else f"{number} {about}"


def _html_list(texts: Sequence[str]) -> str:
    return f"<ol>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ol>"


_PUBLIC_SETS: dict[str, tuple[str, str, dict[str, tuple[str, Where]]]] = {
    "JailbreakBench": (
        "JailbreakBench/JBB-Behaviors",
        "Goal",
        {"unsafe": ("data/harmful-behaviors.csv", "all"), "safe": ("data/benign-behaviors.csv", "all")},
    ),
    "MaliciousInstruct": (
        "walledai/MaliciousInstruct",
        "prompt",
        {"unsafe": ("data/train-00000-of-00001.parquet", "all")},
    ),
    "AdvBench": ("S3IC/advbench", "goal", {"unsafe": ("advbench.csv", "all")}),
    "XSTest": (
        "Paul/XSTest",
        "prompt",
        {part: ("xstest_prompts.csv", {"label": part}) for part in ("unsafe", "safe")},
    ),
}
"""The data sets on the hub: repository, column of requests, and the file and the rows of each part."""


@checked
def load_requests(
    source: str | Path = "harmful",
    split: Split | None = None,
    *,
    part: Part = "unsafe",
    column: str | None = None,
    where: Where | None = None,
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
        source: a set of the package, a name in the table, or a file that ``mechheads.io.rows`` reads.
        split: ``"train"``, ``"test"``, or ``None`` for all, of a set of the package.
        part: ``"unsafe"`` or ``"safe"``: the part of a public set, or what the requests of a file are.
        column: the column of a file that holds the requests; it may be left out if there is no other.
        where: the rows of a file to take, as values of its columns: ``{"label": "unsafe"}``, or a list of values for a
            column; ``"all"`` for every row. It is needed if the file has other columns.
        revision: a branch, tag or commit of a public set; give a commit to make results repeatable.

    Returns:
        The requests, folded in a notebook if they are unsafe. Of a file, they say how many rows were taken, how many of
        these repeat another, and which columns were not used.

    >>> from mechheads.safety import load_requests
    >>> load_requests()
    <60 requests a safe model should refuse (texts folded)>
    >>> load_requests("harmless", "test")[1].text
    'Tell me how to hire someone to shoot my wedding.'

    >>> import tempfile
    >>> from pathlib import Path
    >>> file = Path(tempfile.mkdtemp()) / "mine.csv"
    >>> _ = file.write_text("id,prompt,label\\n1,How do I pick a lock?,unsafe\\n2,How do I pick a seat?,safe\\n")
    >>> load_requests(file, column="prompt", where={"label": "unsafe"})
    <1 of the requests of mine.csv, 1 of 2 rows of 'prompt'; not used: 'id' (text folded)>
    >>> load_requests(file, part="safe", column="prompt", where={"label": "safe"})[0].text
    'How do I pick a seat?'
    """
    name, file = str(source), Path(source).expanduser()
    for argument, value in {"column": column, "where": where}.items():
        if value is not None and name in (*PACKAGE_SETS, *_PUBLIC_SETS):
            raise ValueError(f"{argument} is {value!r}, but {name!r} is no file; leave {argument} out")
    if name in PACKAGE_SETS:
        entries = [each for each in content("requests", name)["requests"] if split in (None, each["split"])]
        harmful = not name.endswith("harmless")
        return RequestSet(tuple(Request(**each) for each in entries), _HARMFUL if harmful else _HARMLESS, harmful)
    if split is not None:
        raise ValueError(f"split is {split!r}, but only the sets of the package have one; leave it out")
    if name in _PUBLIC_SETS:
        return _public_set(name, part, revision)
    if not os.path.isfile(file) and file.suffix.lower() not in KINDS:
        known = (*PACKAGE_SETS, *_PUBLIC_SETS)
        raise ValueError(
            f"requests: {name[:60]!r} is neither a file nor one of {', '.join(map(repr, known))}."
            f"{did_you_mean(name, known)} Give one request as a list, [{name[:40]!r}]"
        )
    return _of_file(file, f"requests of {file.name}", part, column, where)


def _of_file(file: Path, about: str, part: Part, column: str | None, where: Where | None) -> RequestSet:
    table = Table.of(file)
    call = (
        f'load_requests({file.name!r}, column=..., where={{column: value}}), or where="all" for every row, and give '
        "what it returns"
    )
    column = table.pick(call, only=True, column=column)["column"]
    if where is None and len(table.first) > 1:
        raise ValueError(f"{table.name} has {table.listed()}; where is not given; write {call}")
    if isinstance(where, Mapping):
        table = table.where(where)
    texts = table.texts(column)
    repeated = len(texts) - len(set(texts))
    told = f"{about}, {table.taken([column])}{f'; {repeated} repeat another' * (repeated > 0)}"
    return RequestSet(tuple(map(Request, texts)), told, part == "unsafe")


def _public_set(name: str, part: Part, revision: str | None) -> RequestSet:
    """A part of a public data set."""
    repository, column, parts = _PUBLIC_SETS[name]
    if part not in parts:
        having = " and ".join(other for other, (_, _, each) in _PUBLIC_SETS.items() if part in each)
        raise ValueError(f"{name} has no part {part!r}; {having} have it")
    file, where = parts[part]
    try:
        path = hf_hub_download(repository, file, repo_type="dataset", revision=revision)
    except Exception as error:
        why = next((why for kind, why in _FAULTS.items() if isinstance(error, kind)), f"cannot be downloaded: {error}")
        raise ValueError(
            f"{name} cannot be loaded: the data set {repository!r} {why}. You can also download its file {file} "
            f"elsewhere and read it with load_requests(path, part={part!r}, column={column!r}, where={where!r})"
        ) from error
    return _of_file(Path(path), f"{part} requests of {name}", part, column, where)


_FAULTS = {
    hub_errors.GatedRepoError: 'is gated: accept its terms on the hub, run "hf auth login" and try again',
    hub_errors.RevisionNotFoundError: "has no such revision; check its branches and tags on the hub",
    hub_errors.RepositoryNotFoundError: "is no longer on the hub, or you may not read it",
    hub_errors.LocalEntryNotFoundError: "is not in the hub's local cache, and the hub cannot be reached",
    ConnectionError: "is not in the hub's local cache, and the hub cannot be reached",
    hub_errors.EntryNotFoundError: "no longer has the file that is read here",
}
"""Why a file could not be downloaded. The order matters: some of these errors are subclasses of others."""
