"""What a sweep costs, before it is paid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mechheads.spill import show_bytes

if TYPE_CHECKING:
    from mechheads.cache import HeadCache
    from mechheads.heads import HeadId

_TOKENS_A_STACK = 2048


@dataclass(frozen=True)
class Plan:
    """The cost of a sweep.

    Attributes:
        units: separate changes, heads times places.
        blocks: how often a block is run for them, from each head's own layer on.
        heads, places: what they are made of.
        prompts, pos: the size of the batch of one unit.
        stack: units stacked on the batch; ``rows``: prompts run at once.
        forwards: the work in full forward passes of the prompts, the cached runs included.
        flops: floating-point operations.
        bytes: the largest amount of memory besides the model.
        on_disk: whether the cached runs are kept on disk.
        seconds: the estimated time, None until probed.
    """

    units: int
    blocks: int
    heads: tuple[HeadId, ...]
    places: int
    prompts: int
    pos: int
    n_layers: int
    stack: int
    rows: int
    forwards: float
    flops: float
    bytes: int
    on_disk: bool
    seconds: float | None = None

    def __str__(self) -> str:
        places = "1 place" if self.places == 1 else f"{self.places} places"
        prompts = "1 prompt" if self.prompts == 1 else f"{self.prompts} prompts"
        kept = "on disk" if self.on_disk else "in memory"
        lines = [
            f"{self.units} units ({len(self.heads)} heads x {places}, {prompts} of up to {self.pos} tokens)",
            f"{self.forwards:.3g} full forward passes, {self.flops / 1e12:.3g} TFLOP; {self.stack} units stacked on "
            f"the batch, resumed at their own layer",
            f"memory {show_bytes(self.bytes)} besides the model, cached runs {kept}",
        ]
        if self.seconds is not None:
            lines.append(f"about {show_seconds(self.seconds)}")
        return "\n".join(lines)


def show_seconds(seconds: float) -> str:
    """A time for people: ``42 s``, ``3 min 10 s``, ``2 h 05 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def make_plan(
    base: HeadCache,
    source: HeadCache | None,
    site: str,
    heads: tuple[HeadId, ...],
    places: int,
    n_read: int,
    budget: int,
) -> Plan:
    """Plan a sweep over cached runs: how much to stack, and what it costs."""
    model = base._need_model()
    prompts, pos = base.tokens.ids.shape
    block = model.backend.block_parameters()
    unembed = model.d_model * model.d_vocab
    attention = 2 * model.n_heads * model.d_head * pos
    block_flops = 2.0 * prompts * pos * (block + attention)
    read_flops = 2.0 * prompts * n_read * unembed
    units = len(heads) * places
    blocks = sum(model.n_layers - head.layer for head in heads) * places
    extra_runs = 1 + (source is not None) + (0 if site == "z" else places if site in ("k", "v") else 1)
    flops = blocks * block_flops + units * read_flops + extra_runs * model.n_layers * block_flops
    cached = [type(run).estimate(model, run.tokens, sites=tuple(run.stores)) for run in (base, source) if run]
    on_disk = any(store.on_disk for store in base.stores.values())
    kept = sum(size.total // (model.n_layers if on_disk else 1) for size in cached)
    if site != "z":
        kept += type(base).estimate(model, base.tokens, sites=("z",)).total // (model.n_layers if on_disk else 1)
    kept += prompts * n_read * model.d_vocab * 4
    widths = 6 * model.d_model + 4 * model.backend.d_mlp + 3 * model.n_heads * pos
    token_bytes = model.dtype.itemsize * widths
    room = max(budget - kept, budget // 4) // (token_bytes * pos)
    rows = max(1, min(prompts, room))
    stack = max(1, min(len(heads) * places, room // rows, _TOKENS_A_STACK // (rows * pos)))
    logits = 3 * rows * n_read * model.d_vocab * 4
    return Plan(
        units=units,
        blocks=blocks,
        heads=heads,
        places=places,
        prompts=prompts,
        pos=pos,
        n_layers=model.n_layers,
        stack=stack,
        rows=rows,
        forwards=flops / (model.n_layers * block_flops + 2.0 * prompts * pos * unembed),
        flops=flops,
        bytes=kept + stack * rows * pos * token_bytes + logits,
        on_disk=on_disk,
    )
