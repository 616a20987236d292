"""The colours of categories of heads: the paper's, and further ones for other categories."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from colorsys import hsv_to_rgb
from itertools import count

_COLOURS = {
    "Unclassified": "#d9d9d9",
    "Knowledge": "#ff7f0e",
    "Translation": "#d62728",
    "Algorithmic": "#1f77b4",
    "Linguistic": "#2ca02c",
    "2 categories": "#9467bd",
    "3 categories": "#8c564b",
    "4 categories": "#e377c2",
}
_FURTHER = ("#17becf", "#bcbd22", "#000000", "#aec7e8", "#98df8a", "#ffbb78", "#c5b0d5", "#f7b6d2")


def category_colours(categories: Iterable[str], chosen: Mapping[str, str]) -> dict[str, str]:
    """Colours of all classes that can occur, in the order of the legend.

    A class is a category, how many categories a head has, such as ``"2 categories"``, or ``"Unclassified"``.

    Args:
        categories: the categories that were tested.
        chosen: colours to use instead.

    Raises:
        ValueError: if a chosen colour belongs to another class, or is given for an unknown one.

    >>> category_colours(["Knowledge"], {})["Knowledge"]
    '#ff7f0e'
    """
    found = set(categories)
    new = sorted(found - _COLOURS.keys())
    counts = [f"{n} categories" for n in range(2, len(found) + 1)]
    further = [*new, *(several for several in counts if several not in _COLOURS)]
    taken = {colour.lower() for colour in (*_COLOURS.values(), *chosen.values())}
    extra = dict(zip(further, (colour for colour in _further() if colour not in taken), strict=False))
    ordered = dict.fromkeys([*(name for name in _COLOURS if name not in counts), *new, *counts, *_COLOURS])
    if unknown := [name for name in chosen if name not in ordered]:
        raise ValueError(
            f"colours has {unknown[0]!r}, which is not a category; the categories are {', '.join(ordered)}"
        )
    palette = {name: (_COLOURS | extra | dict(chosen))[name] for name in ordered}
    for name, colour in chosen.items():
        other = [one for one, its in palette.items() if one != name and its.lower() == colour.lower()]
        if other:
            raise ValueError(f"colours: {name!r} and {other[0]!r} both have {colour!r}; give each its own colour")
    return palette


def _further() -> Iterator[str]:
    """More colours than the default ones, without end; the hues of generated colours are spread by the golden ratio."""
    yield from _FURTHER
    for i in count(1):
        yield "#" + "".join(f"{round(255 * part):02x}" for part in hsv_to_rgb(i * 0.618034 % 1, 0.55, 0.8))
