'''Docstrings: the next argument of a function, whose docstring describes its arguments in their order.

    def load(self, size, user, price, color, file, date):
        """copy the whole

        :param price: the old
        :param color: the new
        :param                     -> " file"

Heimersheim and Janiak 2023, "A circuit for Python docstrings in a 4-layer attention-only transformer". In the corrupted
prompt the function has its last two arguments the other way round, so that the other one is next.
'''

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mechheads.patching.tasks.items import Item, Split, half

SOURCE = "Heimersheim and Janiak 2023, A circuit for Python docstrings in a 4-layer attention-only transformer"
_ARGUMENTS = """
    size user price color file date name path list image text number value key table image node page time code
    group level field model message event label client order style point source target state width format result
    option index range filter error token content version layer input output signal frame letter member parent owner
"""
_WORDS = """
    old new large small first last main other whole open free public local simple general common single real full
    long short early late human social major final current recent natural
"""
_FUNCTIONS = ["load", "save", "send", "build", "read", "write", "find", "check", "move", "copy", "print", "start"]
_TEMPLATE = (
    "def {function}(self, {arguments}):\n"
    '    """{verb} the {words[0]} {words[1]} part\n\n'
    "    :param {described[0]}: the {words[2]} one\n"
    "    :param {described[1]}: the {words[3]} one\n"
    "    :param"
)


def items(split: Split, rng: np.random.Generator) -> Iterator[Item]:
    names = half(list(dict.fromkeys(_ARGUMENTS.split())), split)
    while True:
        x, y, a, b, following, other = (names[j] for j in rng.permutation(len(names))[:6])
        words, (function, verb) = rng.permutation(_WORDS.split())[:4], rng.permutation(_FUNCTIONS)[:2]
        clean, corrupted = (
            _TEMPLATE.format(
                function=function, verb=verb, words=words, described=(a, b), arguments=", ".join((x, y, a, b, *last))
            )
            for last in ((following, other), (other, following))
        )
        yield Item(clean, corrupted, f" {following}", f" {other}", following)
