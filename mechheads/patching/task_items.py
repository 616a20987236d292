"""The items of the field's tasks for circuits: pairs of prompts with both answers, drawn without end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.data import content
from mechheads.metrics.base import MetricContext
from mechheads.prompts.tokens import Reader, encode

T = TypeVar("T")
Split = Literal["train", "test"]


@dataclass(frozen=True)
class Item:
    """A clean and a corrupted prompt.

    Attributes:
        answer: what comes next in the clean prompt, with the space before it, if there is one.
        wrong: what comes next in the corrupted prompt, or what a model says that misses the point.
        cluster: what it shares with other items, such as a name or a country.
    """

    clean: str
    corrupted: str
    answer: str
    wrong: str
    cluster: str


def half(things: Sequence[T], split: Split) -> list[T]:
    """Every other one, so that the splits share none.

    >>> from mechheads.patching.task_items import half
    >>> half("abcde", "train"), half("abcde", "test")
    (['a', 'c', 'e'], ['b', 'd'])
    """
    return list(things[0 if split == "train" else 1 :: 2])


def next_token(model: Reader, text: str, following: str) -> int | None:
    """The token with which a text continues; None if what follows is more than one, or changes those before it."""
    before, after = encode(text, 0, model)[0], encode(text + following, 0, model)[0]
    return after[-1] if after[:-1] == before else None


TEMPLATES = (
    "When {first} and {second} went to the store, {subject} gave a drink to",
    "When {first} and {second} walked in the garden, {subject} handed a flower to",
    "While {first} and {second} were at the school, {subject} passed a note to",
    "After {first} and {second} came home from the market, {subject} offered an apple to",
    "When {first} and {second} sat in the office, {subject} gave a book to",
    "Then, {first} and {second} waited for the train, and {subject} gave a ticket to",
    "While {first} and {second} were cleaning the kitchen, {subject} threw a towel to",
    "After {first} and {second} had a long walk, {subject} lent a jacket to",
)
_COMMON_NAMES = """
    Mary John Tom James Dan Sarah Michael David Anna Paul Mark Lisa Kate Jack Emma Peter Robert Laura Alice Bob
    Susan Jane George Henry Simon Martin Rachel Linda Karen Kevin Brian Steven Jason Adam Eric Amy Julia Maria
    Richard Thomas William Charles Joseph Daniel Andrew Scott Frank Alex Max Sam Ben Luke Ryan Matthew Victoria Rose
    Helen
"""
NAMES = tuple(_COMMON_NAMES.split())
ORDERS = ("ABBA", "BABA")
"""The other person is named first, or the subject is."""


class Sentence(NamedTuple):
    """A template and the people in it.

    Attributes:
        three: other people, for the corrupted prompt.
    """

    template: str
    order: str
    other: str
    subject: str
    three: tuple[str, ...]

    @property
    def named(self) -> tuple[str, str, str]:
        """The names in their order in the text; the last is the subject."""
        first, second = (self.other, self.subject) if self.order == "ABBA" else (self.subject, self.other)
        return first, second, self.subject

    def text(self, names: Sequence[str]) -> str:
        """The template with three names in it."""
        return self.template.format(first=names[0], second=names[1], subject=names[2])


def sentences(templates: Sequence[str], names: Sequence[str], rng: np.random.Generator) -> Iterator[Sentence]:
    """Sentences without end, whose templates and orders take turns."""
    for i in count():
        other, subject, *three = (names[int(j)] for j in rng.permutation(len(names))[:5])
        order = ORDERS[i // len(templates) % 2]
        yield Sentence(templates[i % len(templates)], order, other, subject, tuple(three))


def indirect_object(split: Split, rng: np.random.Generator) -> Iterator[Item]:
    """Indirect objects: "When Mary and John went to the store, John gave a drink to" -> " Mary".

    Wang et al. 2022, arXiv 2211.00593. The corrupted prompt names three other people, none of them twice (their p_ABC).
    Our sentences are our own.
    """
    for one in sentences(half(TEMPLATES, split), half(NAMES, split), rng):
        yield Item(one.text(one.named), one.text(one.three), f" {one.other}", f" {one.subject}", one.other)


_WOMEN = """
    Mary Sarah Anna Lisa Kate Emma Laura Alice Susan Jane Rachel Linda Karen Amy Julia Maria Victoria Rose Helen Lucy
    Elizabeth Margaret Nancy Barbara
"""
_MEN = """
    John Tom James David Michael Paul Mark Jack Peter Robert George Henry Simon Martin Kevin Brian Steven Jason Adam
    Eric Richard Thomas William Charles
"""
_PRONOUN_TEMPLATES = (
    "So {name} is a really great {noun}, isn't",
    "I heard that {name} is a very good {noun}, isn't",
    "Everyone says {name} was the best {noun} in town, wasn't",
    "You know {name}, our new {noun}? I think",
)
_PEOPLE = """
    friend teacher doctor neighbor lawyer cook singer writer student driver dancer manager
"""


def gendered_pronoun(split: Split, rng: np.random.Generator) -> Iterator[Item]:
    """Gendered pronouns: "So Anna is a really great teacher, isn't" -> " she".

    Mathwin et al. 2023, "Identifying a Preliminary Circuit for Predicting Gendered Pronouns in GPT-2 Small"; Vig et al.
    2020, arXiv 2004.12265. The corrupted prompt has a name of the other gender.
    """
    groups = ((half(_WOMEN.split(), split), " she"), (half(_MEN.split(), split), " he"))
    i = 0
    while True:
        template = _PRONOUN_TEMPLATES[i % len(_PRONOUN_TEMPLATES)]
        (mine, answer), (others, wrong) = groups if rng.random() < 0.5 else groups[::-1]
        noun, name, other = rng.choice(_PEOPLE.split()), rng.choice(mine), rng.choice(others)
        clean, corrupted = (template.format(name=each, noun=noun) for each in (name, other))
        yield Item(clean, corrupted, answer, wrong, str(name))
        i += 1


_ARGUMENTS = """
    size user price color file date name path list image text number value key table image node page time code
    group level field model message event label client order style point source target state width format result
    option index range filter error token content version layer input output signal frame letter member parent owner
"""
_ADJECTIVES = """
    old new large small first last main other whole open free public local simple general common single real full
    long short early late human social major final current recent natural
"""
_FUNCTIONS = ["load", "save", "send", "build", "read", "write", "find", "check", "move", "copy", "print", "start"]
_DOCSTRING = (
    "def {function}(self, {arguments}):\n"
    '    """{verb} the {words[0]} {words[1]} part\n\n'
    "    :param {described[0]}: the {words[2]} one\n"
    "    :param {described[1]}: the {words[3]} one\n"
    "    :param"
)


def docstring(split: Split, rng: np.random.Generator) -> Iterator[Item]:
    '''Docstrings: the next argument of a function, whose docstring describes its arguments in their order.

        def load(self, size, user, price, color, file, date):
            """copy the whole

            :param price: the old
            :param color: the new
            :param                     -> " file"

    Heimersheim and Janiak 2023, "A circuit for Python docstrings in a 4-layer attention-only transformer". In the
    corrupted prompt the function has its last two arguments the other way round, so that the other one is next.
    '''
    names = half(list(dict.fromkeys(_ARGUMENTS.split())), split)
    while True:
        x, y, a, b, following, other = (names[j] for j in rng.permutation(len(names))[:6])
        words, (function, verb) = rng.permutation(_ADJECTIVES.split())[:4], rng.permutation(_FUNCTIONS)[:2]
        clean, corrupted = (
            _DOCSTRING.format(
                function=function, verb=verb, words=words, described=(a, b), arguments=", ".join((x, y, a, b, *last))
            )
            for last in ((following, other), (other, following))
        )
        yield Item(clean, corrupted, f" {following}", f" {other}", following)


_SUMS = (
    "{a} {sign} {b} =",
    "Question: What is {a} {sign} {b}? Answer:",
    "We calculate {a} {sign} {b} and get",
)
_LARGEST = 50


def arithmetic(split: Split, rng: np.random.Generator) -> Iterator[Item]:
    """Arithmetic: sums and differences whose result is one token, such as "7 + 2 =" -> " 9".

    Nikankin et al. 2024, "Arithmetic Without Algorithms", arXiv 2410.21272, whose task MIB (Mueller et al. 2025) uses.
    The corrupted prompt has another second number. Tokenizers differ in whether numbers begin with a space, and in how
    many digits a token has: the space ends the prompt or begins the answer, and results are as large as one token
    allows.
    """
    i = 0
    while True:
        template, sign = _SUMS[i % len(_SUMS)], "+-"[i // len(_SUMS) % 2]
        largest = 9 if rng.random() < 0.5 else _LARGEST
        a, b, other = (int(number) for number in rng.integers(1, largest + 1, 3))
        result, wrong = (a + each if sign == "+" else a - each for each in (b, other))
        # Both orders of two numbers belong to one split.
        mine = (a * b + a + b) % 2 == (0 if split == "train" else 1)
        if mine and result != wrong and min(result, wrong) >= 0:
            clean, corrupted = (template.format(a=a, b=each, sign=sign) for each in (b, other))
            yield Item(clean, corrupted, f" {result}", f" {wrong}", f"{a} {sign} {b}")
            yield Item(f"{clean} ", f"{corrupted} ", str(result), str(wrong), f"{a} {sign} {b}")
            i += 1


_CAPITAL_TEMPLATES = (
    "The capital of {country} is",
    "Every school child in the world should know that the capital city of {country} is called",
    "Question: What is the capital of {country}? Answer:",
    "We flew to {country} and spent a week in its capital,",
)


def capitals(split: Split, rng: np.random.Generator) -> Iterator[Item]:
    """Capitals: "The capital of France is" -> " Paris". The corrupted prompt has another country.

    The countries and capitals are those of the package's relation ``country_to_capital``.
    """
    pairs, i = half(content("relations", "country_to_capital")["pairs"], split), 0
    while True:
        (country, capital), (other, wrong) = (pairs[j] for j in rng.permutation(len(pairs))[:2])
        template = _CAPITAL_TEMPLATES[i % len(_CAPITAL_TEMPLATES)]
        clean, corrupted = (template.format(country=each) for each in (country, other))
        yield Item(clean, corrupted, f" {capital}", f" {wrong}", country)
        i += 1


_THINGS = """
    dog sun tree book hat rain milk door cat moon river chair bread glass horse stone house music paper water table
    fish snow garden ship light wall road bird king salt wind gold fire hand leaf boat egg clock bridge
"""
_LINES = 3


def repeated_pattern(split: Split, rng: np.random.Generator) -> Iterator[Item]:
    """ABA and ABB: three lines show which of two words comes again, and the fourth asks for it.

        - dog sun dog
        - tree book tree
        - hat rain hat
        - milk door               -> " milk" (ABA)

    Yang et al. 2025, "Emergent Symbolic Mechanisms Support Abstract Reasoning in Large Language Models", arXiv
    2502.20332. In the corrupted prompt the lines follow the other rule; the words are the same.
    """
    words = half(_THINGS.split(), split)
    while True:
        drawn = [words[j] for j in rng.permutation(len(words))[: 2 * (_LINES + 1)]]
        shown, (a, b) = list(zip(drawn[:-2:2], drawn[1:-2:2], strict=True)), drawn[-2:]
        aba, abb = ("".join(f"- {x} {y} {(x, y)[rule]}\n" for x, y in shown) + f"- {a} {b}" for rule in (0, 1))
        if rng.random() < 0.5:
            yield Item(aba, abb, f" {a}", f" {b}", a)
        else:
            yield Item(abb, aba, f" {b}", f" {a}", b)


_CENTURY = "The {noun} lasted from the year {century}{year} to the year {century}"
_EVENTS = """
    war voyage reign siege project drought expedition conflict campaign trial construction exhibition study dispute
    marriage journey famine treaty rebellion revolution partnership friendship occupation strike
"""
_CENTURIES = range(11, 18)


@dataclass(frozen=True)
class ProbabilityDifference:
    """The probability of the numbers above the first year, minus that of the others.

    Attributes:
        numbers: the tokens of all numbers (00 to 99) or digits, in their order.
        gap: the answer of a prompt is the smallest that is right; those that count as wrong begin so far below it. It
            is 2 for digits: the decade of the first year itself is neither.
    """

    numbers: tuple[int, ...]
    gap: int
    reads = "last"
    unit = "probability"
    null = 0.0
    vocab = "all"

    def __call__(
        self, logits: Float[Tensor, "prompt position d_vocab"], context: MetricContext
    ) -> Float[Tensor, " prompt"]:
        numbers = torch.tensor(self.numbers, device=logits.device)
        p = logits[:, -1].softmax(-1)[:, numbers]
        smallest = (numbers == context.answer[:, None]).long().argmax(1, keepdim=True)
        at = torch.arange(len(numbers), device=logits.device)
        return (p * (at >= smallest)).sum(1) - (p * (at <= smallest - self.gap)).sum(1)


def metric_of(model: Reader) -> ProbabilityDifference:
    """The measure for a tokenizer's numbers.

    Raises:
        ValueError: if neither numbers of two digits nor digits are one token.
    """
    before = _CENTURY.format(noun="war", century=17, year=32)
    for n_digits in (2, 1):
        found = [next_token(model, before, f"{number:0{n_digits}d}") for number in range(10**n_digits)]
        tokens = tuple(token for token in found if token is not None)
        if len(set(tokens)) == 10**n_digits:
            return ProbabilityDifference(tokens, 3 - n_digits)
    raise ValueError("the model's tokenizer has no token for each digit, nor for each number of two digits")


def greater_than_in_tokens_of(
    model: Reader,
) -> tuple[Callable[[Split, np.random.Generator], Iterator[Item]], ProbabilityDifference]:
    """The items and the measure for a tokenizer's numbers; raises as ``metric_of``."""
    metric = metric_of(model)
    return partial(greater_than, metric=metric), metric


def greater_than(split: Split, rng: np.random.Generator, metric: ProbabilityDifference) -> Iterator[Item]:
    """Greater than: "The war lasted from the year 1732 to the year 17" -> a number above 32.

    Hanna et al. 2023, "How does GPT-2 compute greater-than?", arXiv 2305.00586. In the corrupted prompt the first year
    ends in 01, after which almost every number is right. Where a token has one digit, the next token is the decade.
    """
    nouns = half(_EVENTS.split(), split)
    digits = metric.gap == 2
    while True:
        noun, century = rng.choice(nouns), rng.choice(_CENTURIES)
        year = int(rng.integers(10, 90) if digits else rng.integers(2, 99))
        clean, corrupted = (_CENTURY.format(noun=noun, century=century, year=text) for text in (f"{year:02d}", "01"))
        answer, wrong = (str(year // 10 + 1), "0") if digits else (f"{year + 1:02d}", "02")
        if answer != wrong:
            yield Item(clean, corrupted, answer, wrong, str(noun))
