"""Draw a figure again from its ``figure.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mechheads.limits import Workers
from mechheads.messages.warn import warn
from mechheads.model.sources import DEFAULT_MODEL, REFUSING_MODELS
from mechheads.studies.figures.by_name import KINDS
from mechheads.studies.figures.output import PaperFigure
from mechheads.studies.figures.request import FigureRequest, file_checksum, read_request


def repeat_figure(
    path: str | Path,
    out: str | Path | None = None,
    *,
    device: str = "cpu",
    progress: bool = True,
    workers: Workers | None = None,
) -> PaperFigure:
    """Draw a figure again: the same models, data and settings.

    Args:
        path: the ``figure.json`` of a figure.
        out: another folder, in which everything is computed again, with the revisions that the hub's models had; by
            default the figure's own folder, whose finished panels are kept. If versions of libraries have changed, the
            figure's own folder is refused, and another folder gives a warning.
        device: the device of the models.
        progress: as in ``mh.studies.categories_figure``.
        workers: as in the function of the figure, whatever computed it the first time; a figure of categories takes
            none, because it only reads weights.

    Raises:
        ValueError: if there is no such file or it is not of a figure, a file of data has changed or is gone, and as in
            the function of the figure.
    """
    path = Path(path)
    request, panels = read_request(path)
    if request.figure not in KINDS:
        raise ValueError(f"{path} is of a figure {request.figure!r}; known are {', '.join(KINDS)}")
    kind = KINDS[request.figure]
    options = kind.options(workers)
    for name, checksum in request.checksums.items():
        if Path(name).is_absolute() and not (Path(name).is_file() and file_checksum(name) == checksum):
            raise ValueError(f"{path} needs the file {name}, which is gone or has changed since")
    models, folder = list(request.models), path.parent
    if out is not None and Path(out).resolve() != folder.resolve():
        models, folder = _as_they_were(request, panels), Path(out)
        now = FigureRequest.of(request.figure, request.models, {}).versions
        if changed := [f"{name} {old}" for name, old in request.versions.items() if now.get(name) != old]:
            warn(f"{path} was made with {', '.join(changed)}, which are now other versions; numbers may differ")
    return kind.draw(models, **request.settings, out=folder, device=device, progress=progress, **options)


def _as_they_were(request: FigureRequest, panels: list[dict[str, Any]]) -> list[str]:
    """The models, those of the hub with the revisions that were read."""
    revisions = {panel["model"]: panel.get("revision") for panel in panels}

    def pinned(name: str) -> str:
        fixed = name in (DEFAULT_MODEL, *REFUSING_MODELS) or Path(name).is_absolute() or not revisions.get(name)
        return name if fixed else f"{name.partition('@')[0]}@{revisions[name]}"

    return [pinned(name) for name in request.models]
