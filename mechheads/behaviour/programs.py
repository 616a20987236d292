"""Attention programs: patterns of heads as functions of the tokens, and tests of how well they describe heads.

A program takes the texts of the tokens of one prompt, the beginning-of-sequence token included, and returns the weights
[query, key] with which each token attends: rows that sum to 1, and 0 for keys after the query.

The programs of the package share the weight equally among some keys: ``first``, the first token; ``previous``, the
token before; ``self``; ``uniform``, all tokens so far; ``duplicates``, earlier copies of the token; ``induction``, the
tokens that follow an earlier copy. A token without such keys attends to the first token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

from mechheads.behaviour.windows import Texts, Windows, check_window, default_texts, read_windows, windows_of
from mechheads.heads import HeadId, check_heads
from mechheads.interventions.basic import Context, Site
from mechheads.limits import current
from mechheads.messages.arguments import Within, check_known
from mechheads.metrics import name_of
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.progress import Bar
from mechheads.prompts.encoding import text_ids, token_strings
from mechheads.prompts.tokens import Unpadded, read_texts
from mechheads.results.provenance import make_provenance
from mechheads.results.stats import clustered_interval, family_p, mean_over_prompts
from mechheads.results.tables import TableResult

Program = Callable[[list[str]], Any]
"""A function from the texts of a prompt's tokens to weights [query, key]: a tensor, an array or nested lists."""
ProgramName = Literal["first", "previous", "self", "uniform", "duplicates", "induction"]
PROGRAMS: tuple[str, ...] = get_args(ProgramName)
OTHERS = PROGRAMS[:4]
"""The programs that every program is compared with; they depend on positions alone."""
_LEAST_LOSS = 0.005
"""The loss by uniform attention, in nats a token at the lower end of its interval, from which a share is defined."""
_SHOWN = 12
"""The number of tokens of a window that the table of windows shows."""


def patterns_of(ids: Int[Tensor, "window pos"]) -> dict[str, Float[Tensor, "window pos pos"]]:
    """The weights of the programs of the package; ``ids`` may be any numbers that differ between tokens."""
    key = torch.arange(ids.shape[1], device=ids.device)
    query = key[:, None]
    same = (ids[:, :, None] == ids[:, None]) & (key < query)
    follows = pad(same[:, :, :-1], (1, 0)) & (key < query)
    fixed = [key == 0 * query, key == (query - 1).clamp_min(0), key == query, key <= query]
    keys = torch.stack([*(mask.expand_as(same) for mask in fixed), same, follows])
    keys[..., 0] |= ~keys.any(-1)
    return dict(zip(PROGRAMS, keys / keys.sum(-1, keepdim=True), strict=True))


def without_later_keys(pattern: Float[Tensor, "*of pos pos"]) -> Iterator[Float[Tensor, "*of query key"]]:
    """The pattern in blocks of queries, each with the keys up to its last query; the rest of a pattern is 0."""
    for start in range(0, pattern.shape[-1], 64):
        yield pattern[..., start : start + 64, : start + 64]


def fits_of(
    pattern: Float[Tensor, "window head pos pos"], programs: Iterable[Float[Tensor, "window pos pos"]]
) -> list[Float[Tensor, "window head"]]:
    """J of each program: the sum of the smaller of two weights over the sum of the larger; faster if sparse."""
    both, fits = pattern.sum((-1, -2)) + pattern.shape[2], []
    for weights in programs:
        if weights.is_sparse:
            window, query, key = weights.indices()
            smaller = torch.minimum(pattern[window, :, query, key], weights.values()[:, None])
            shared = torch.zeros_like(both).index_add_(0, window, smaller)
        else:
            parts = zip(without_later_keys(pattern), without_later_keys(weights[:, None]), strict=True)
            shared = sum(torch.minimum(one, other).sum((-1, -2)) for one, other in parts)
        fits.append(shared / (both - shared))
    return fits


@dataclass(frozen=True)
class AttentionProgram:
    """Replaces a pattern by a program's: an intervention for ``mh.sweep``, ``mh.ablate`` and ``mh.generate``.

    When text is generated, each new token attends by the last row of the program's weights for the text so far.

    Args:
        program: a function of the texts of a prompt's tokens that returns weights [query, key], or the name of a
            program of the package: ``"first"``, ``"previous"``, ``"self"``, ``"uniform"``, ``"duplicates"`` or
            ``"induction"``.

    Hayes, Li & Andreas 2026 (arXiv 2606.19317).

    >>> program = mh.behaviour.AttentionProgram("previous")
    >>> effect = mh.ablate(model, ["The capital of France is"], intervention=program, heads="L16H0")
    >>> bool(effect["L16H0"]["score"] >= 0)
    True
    """

    program: Program | ProgramName
    site: ClassVar[Site] = "pattern"
    needs: ClassVar = ()

    def __post_init__(self) -> None:
        if not callable(self.program):
            check_known("program", self.program, PROGRAMS)

    @property
    def name(self) -> str:
        return self.program if isinstance(self.program, str) else name_of(self.program)

    def weights(self, tokens: Sequence[str]) -> Float[Tensor, "pos pos"]:
        """The weights for the texts of the tokens of one prompt."""
        n, wrong = len(read_texts(tokens, "tokens")), None
        if isinstance(self.program, str):
            return patterns_of(torch.tensor([[tokens.index(text) for text in tokens]]))[self.program][0]
        try:
            weights = torch.as_tensor(np.asarray(self.program(list(tokens)), dtype=np.float32))
        except Exception as error:
            raise ValueError(f"program {self.name} fails for {n} tokens: {error}") from error
        if weights.shape != (n, n):
            wrong = f"shape {list(weights.shape)}"
        elif not (weights >= 0).all() or not (weights.sum(-1) - 1).abs().max() <= 1e-4:
            wrong = "a row that does not consist of numbers of at least 0 that sum to 1"
        elif (later := weights.triu(1).nonzero()).numel():
            wrong = f"weight from token {int(later[0, 0])} to token {int(later[0, 1])}, which comes later"
        if wrong:
            raise ValueError(
                f"program {self.name} gives {wrong}; for {n} tokens give weights of shape [{n}, {n}], [query, key], "
                "each row of which sums to 1 over the tokens so far"
            )
        return weights

    def __call__(self, value: Float[Tensor, "prompt pos pos"], context: Context) -> Float[Tensor, "prompt pos pos"]:
        new = value.clone()
        for row, tokens in zip(new, context.base.tokens.strings, strict=True):
            row[: len(tokens), : len(tokens)] = self.weights(tokens).to(row)
        return new


@dataclass(frozen=True, eq=False, repr=False)
class ProgramTest(TableResult):
    """How well programs describe heads, from ``mh.behaviour.test_program``.

    Attributes:
        table: one row for each head, and for all together if there are several: ``heads``, ``program``; ``fit``, J;
            ``excess``, J minus the J of the best other program; ``program_loss`` and ``uniform_loss``, the increase of
            the loss with the program and with uniform attention, in nats a token; ``share``, R, NaN if undefined.
            ``_low`` and ``_high`` are ends of intervals over texts; ``excess_p`` and ``share_p`` family p values, the
            latter of the difference of the losses. The fit of several heads sums over all their queries and keys.
        windows: the same for each window, with its beginning, and ``text``, the number of the text.
        name, unit, provenance: a title, the unit of the losses, and the model, texts and options that repeat the test.
    """

    KIND = "program_test"
    name, unit = "programs in the place of heads", "nats a token"

    table: pd.DataFrame
    windows: pd.DataFrame
    provenance: dict[str, Any]

    def _shown(self) -> tuple[pd.DataFrame, Sequence[str]]:
        first = ("heads", "program", "fit", "excess", "uniform_loss", "share", "share_low", "share_high")
        return self.table.filter(items=first), ()


@analysis
def test_program(
    model: Model,
    texts: Texts,
    programs: Mapping[Any, Program | ProgramName],
    *,
    window: int | None = None,
    n_tokens: Annotated[int, Within(least=16)] | None = 2048,
) -> ProgramTest:
    """How well programs describe the attention of heads, and what the model loses if the heads attend by them.

    With A the pattern of the head and B the weights of its program, over the queries and keys of a window,

        fit    J = sum min(A, B) / sum max(A, B)
        share  R = 1 - (loss with B - loss) / (loss with uniform attention - loss)

    1 is a perfect program. ``excess`` is J minus the best J of the programs first, previous, self and uniform. R
    is undefined unless uniform attention loses at least 0.005 nats a token, at the lower end of its interval. Heads
    are tested one at a time, and then all together.

    Args:
        texts: as in ``mh.profile_heads``; ``None`` takes the first window of each text of the package.
        programs: for each head a program, a function or a name as in ``AttentionProgram``.
        window: the length of a window in tokens; by default 128, or the model's context if that is shorter.
        n_tokens: how many tokens to read; ``None`` for all.

    Returns:
        A row for each head, with intervals over texts. After Ctrl-C, from the windows measured until then.

    Hayes, Li & Andreas 2026 (arXiv 2606.19317).

    >>> test = mh.behaviour.test_program(model, None, {"L16H0": "previous"}, n_tokens=512)
    >>> bool(test.table["fit"][0] > 0.4)
    True
    """
    if not isinstance(programs, Mapping):
        raise ValueError(f"programs is {programs!r}; give a dict of heads and programs, such as {{'L16H0': 'self'}}")
    check_heads(list(programs), model.n_layers, model.n_heads)
    rules = {HeadId.parse(head): AttentionProgram(program) for head, program in programs.items()}
    rules = dict(sorted(rules.items()))
    sets = [{head: rule} for head, rule in rules.items()] + [rules] * (len(rules) > 1)
    if model.backend.ignores("pattern"):
        raise ValueError(f"attention of model {model.name!r} ignores another pattern, so no program can be put into it")
    window = check_window(model, window, usual=128)
    source = "of the package" if texts is None else "own"
    if texts is None:
        texts = [Unpadded(text_ids(text, model.tokenizer)[0][:window]) for text in default_texts()]
    seen, bar = list[tuple[Windows, Tensor]](), Bar(total=n_tokens, desc="programs", unit="token")
    batches = windows_of(model, texts, window, n_tokens)
    metadata = read_windows(model, batches, partial(_measured, sets), lambda *batch: seen.append(batch), bar)
    ids = [row for windows, _ in seen for row in windows.ids.tolist()]
    cluster = [text for windows, _ in seen for text in windows.text]
    fit, *others, by_program, by_uniform = torch.cat([values for _, values in seen], dim=-1).numpy()
    heads = [" ".join(map(str, rules)) for rules in sets]
    names = [" ".join(rule.name for rule in rules.values()) for rules in sets]
    is_own = np.array(OTHERS)[:, None] == names
    best = np.where(is_own, -1, mean_over_prompts(np.stack(others))).argmax(0)
    excess = fit - np.stack(others)[best, range(len(sets))]
    measured = {"fit": fit, "excess": excess, "program_loss": by_program, "uniform_loss": by_uniform}
    begins = ["".join(token_strings(row[:_SHOWN], model.tokenizer)) for row in ids]
    windows = {"heads": np.repeat(heads, len(ids)), "text": cluster * len(sets), "window": begins * len(sets)}
    return ProgramTest(
        pd.DataFrame({"heads": heads, "program": names} | _statistics(measured, cluster)),
        pd.DataFrame(windows | {name: of_windows.ravel() for name, of_windows in measured.items()}),
        provenance=make_provenance(
            model, metadata, texts=source, programs=dict(zip(heads, names, strict=True)), window=window
        ),
    )


def _statistics(
    measured: Mapping[str, Float[np.ndarray, "set window"]], cluster: list[int]
) -> dict[str, Float[np.ndarray, " set"]]:
    """The columns of a test: means with their intervals, R, and family p."""
    by_program, by_uniform = measured["program_loss"], measured["uniform_loss"]
    low, _ = clustered_interval(by_uniform, cluster)
    whole = np.where(low > _LEAST_LOSS, mean_over_prompts(by_uniform), np.nan)[:, None]
    lost = mean_over_prompts(by_program)[:, None] / whole
    # R in each window, with the window's error to first order
    share = 1 - lost - (by_program - lost * by_uniform) / whole
    columns: dict[str, np.ndarray] = {}
    for name, of_windows in (*measured.items(), ("share", share)):
        low, high = clustered_interval(of_windows, cluster)
        columns |= {name: mean_over_prompts(of_windows), f"{name}_low": low, f"{name}_high": high}
    for name, differences in (("excess_p", measured["excess"]), ("share_p", by_uniform - by_program)):
        columns[name] = family_p(differences, cluster, seed=current().seed)
    return columns


@torch.no_grad()
def _measured(
    sets: Sequence[Mapping[HeadId, AttentionProgram]], model: Model, ids: Int[Tensor, "window pos"]
) -> Float[Tensor, "measure set window"]:
    """The fit of the programs of each set and of ``OTHERS``, and the losses with them and with uniform attention."""
    texts, shipped = [token_strings(row, model.tokenizer) for row in ids.tolist()], patterns_of(ids)
    weights = {head: torch.stack(list(map(rule.weights, texts))).to(ids.device) for head, rule in sets[-1].items()}
    patterns: dict[HeadId, Tensor] = {}

    def put(value: Tensor, hook: Any, head: HeadId, new: Mapping[HeadId, Tensor]) -> Tensor:
        patterns.setdefault(head, value[:, head.head].float())  # the first run is intact
        value = value.clone()
        value[:, head.head] = new.get(head, patterns[head]).to(value)
        return value

    def loss(new: Mapping[HeadId, Tensor], heads: Iterable[HeadId]) -> Float[Tensor, " window"]:
        """The mean of -log p of each next token with new patterns of heads, in nats, on the CPU."""
        hooks = [(model.hook_name("pattern", head.layer), partial(put, head=head, new=new)) for head in heads]
        final = model.backend.run(ids, hooks)[:, :-1]
        rows = zip(final, ids[:, 1:], strict=True)
        each = [cross_entropy(model.backend.unembed(row).float(), targets) for row, targets in rows]
        return torch.stack(each).double().cpu()

    intact, measured = loss({}, weights), []
    for heads in sets:
        seen = torch.cat([patterns[head] for head in heads], dim=1)[:, None]
        tried = [torch.cat([weights[head] for head in heads], dim=1)]
        tried += [shipped[name].repeat(1, len(heads), 1) for name in OTHERS]
        losses = [loss(new, heads) - intact for new in (weights, dict.fromkeys(heads, shipped["uniform"]))]
        measured.append(torch.stack([*(fit[:, 0].double().cpu() for fit in fits_of(seen, tried)), *losses]))
    return torch.stack(measured, dim=1)
