"""The proof of a model when it is loaded: it gives the logits of the model that it was made from.

It runs block by block on two prompts that continue after the tokens of the reference, so that what later tokens or the
other prompt change is seen too. From the same run, each block is called with z W_O + b_O as what its heads write: this
must give what the block gave, because analyses of weights have no run of their own.

Windows and rotations that change with the length of the text do nothing on a short prompt, so a model that has them is
also tried on a longer one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.engine.rows import Window
from mechheads.engine.wavefront import Edit, Wave
from mechheads.messages.notices import first_sentence
from mechheads.model.backend import Backend, Hook, Layout
from mechheads.model.changes import as_usual
from mechheads.model.core import ModelCore
from mechheads.model.parts import Blocks, logits_of, moved, rotations_of, trial_tokens
from mechheads.model.proof import apart, likely_reason, note_rounding
from mechheads.prompts.tokens import Unpadded
from mechheads.runs.head_cache import HeadCache

_READ = ("resid_pre", "q", "k", "v", "z")
SHORT = 8
"""The tokens of a prompt on which every model is tried."""
LONG = 128
"""The least tokens of a prompt for a model that has windows or scaled rotations, if it takes them."""
_MOST = 1024
"""The most tokens of that prompt, however long windows and contexts are."""
_BEYOND = 32
"""How many tokens it is longer than a window or a context."""
_PLACES = 16
"""How many tokens' logits are compared; all logits would take gigabytes if the vocabulary is large."""
_WINDOWS = ("sliding_window", "window_size", "attention_chunk_size", "local_attention")
_CONTEXTS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
"""The names of the attention window, and of the context, in configs."""
_ERRORS = (
    ValueError,
    RuntimeError,
    AttributeError,
    TypeError,
    LookupError,
    AssertionError,
    ArithmeticError,
    StopIteration,
)


@dataclass(frozen=True)
class Reference:
    """A prompt, and the logits at some of its tokens."""

    ids: Int[Tensor, "1 pos"]
    places: Int[Tensor, " place"]
    logits: Float[Tensor, "place d_vocab"]


class _Unreadable(Exception):
    """What is wrong with a model, in words that follow "cannot be read:"."""


def prove_loaded(model: ModelCore, references: Sequence[Reference]) -> None:
    """Prove a model, without its user's hooks, and find out how its attention and changed copies may be computed.
    Without references from before TransformerLens, its own forward pass is the reference.
    """
    backend = model.backend
    with as_usual(backend.module, backend.parameter.device, backend.parts), torch.no_grad():
        try:
            tried = backend.without_users_hooks(lambda: _proved(model, references))
        except torch.OutOfMemoryError:
            raise
        except _Unreadable as error:
            raise ValueError(f"{backend.description} cannot be read: {error}") from error
        except _ERRORS as error:
            reason = first_sentence(error)
            raise ValueError(
                f"{backend.description} cannot be read: running it block by block fails: {reason}"
            ) from error
        backend.layout = backend.without_users_hooks(lambda: choose_layout(tried))


def references_of(model: Any) -> list[Reference]:
    """The logits of a model on a short prompt, and on a long one if it needs one; none if it is on several devices."""
    if hasattr(model, "hf_device_map"):
        return []
    embedding, references = model.get_input_embeddings().weight, []
    for length in trial_lengths(model.config):
        ids = trial_tokens(len(embedding), 1, length, embedding.device)
        places = torch.linspace(0, length - 1, min(length, _PLACES), device=ids.device).round().long()
        references.append(Reference(ids, places, logits_of(model, ids, places.tolist())[0]))
    return references


def trial_lengths(config: Any) -> list[int]:
    """The lengths of the prompts on which a model with this config is tried."""
    text = config.get_text_config(decoder=True)
    context = min((size for name in _CONTEXTS if isinstance(size := getattr(text, name, None), int)), default=_MOST)
    kinds = rotations_of(text.to_dict())
    changes = [getattr(text, name, None) for name in _WINDOWS]
    changes += [kind.get("original_max_position_embeddings") for kind in kinds]
    sizes = [size for size in changes if isinstance(size, int)]
    short = min(context, SHORT)
    if not sizes and all(kind["rope_type"] == "default" for kind in kinds):
        return [short]
    within = [size + _BEYOND for size in sizes if size + _BEYOND <= _MOST]
    long = min(context, max([LONG, *within]))
    return [short, long] if long > short else [short]


def choose_layout(run: HeadCache) -> Layout:
    """The cheapest layout of changed copies in rows that gives a run again if nothing is changed."""
    run.check_finite()
    backend = run.need_model().backend
    for layout in backend.layouts:
        if _resume_error(run, layout) < backend.tolerance:
            return layout
    raise ValueError(
        f"{backend.description} cannot be resumed: running its later layers from cached activations, with nothing "
        "changed, does not reproduce its output"
    )


def _resume_error(run: HeadCache, layout: Layout) -> float:
    """The error of a run resumed with two heads' own z, in standard deviations of its final states."""
    model = run.need_model()
    at = run.tokens.lengths[:, None] - torch.tensor([[2, 1]], device=model.device)
    window = Window.from_start(torch.tensor([2, 3]), at, layout, run.tokens.ids.shape[1])
    same = [Edit(0, "z", 0, window.take(run.z.layer(0)[:, 0]))]
    try:
        if layout != "whole" and "keys" not in run.stores:
            run = HeadCache.run(model, run.tokens, sites=("z", "resid_pre", "keys", "values"))
        final = Wave(run, slice(0, 2), window).run([same, same])
    except torch.OutOfMemoryError:
        raise
    except _ERRORS:
        return torch.inf
    old = run.final_at(at).float()
    return float((final.float() - old).abs().max() / old.std())


def _proved(model: ModelCore, references: Sequence[Reference]) -> HeadCache:
    """A run of two short prompts that was proved."""
    backend = model.backend
    _check_hooks_exist(backend)
    every = [*references] or [_own(backend)]
    if not every[0].logits.isfinite().all():
        raise _Unreadable(_why_not_finite(backend, every[0].logits))
    backend.fuse_attention()
    keys: tuple[str, ...] = ("keys", "values")
    mlps: dict[int, Tensor] = {}
    while True:
        off, failed = torch.inf, None
        try:
            run = _run(model, every[0], keys, mlps)
            off = max([_off(backend, every[0], run.final[:1]), *(_off(backend, each) for each in every[1:])])
        except torch.OutOfMemoryError:
            raise
        except _ERRORS as error:
            failed = error
        if off < backend.tolerance:
            break
        if keys:
            keys = ()  # some attention cannot give its keys
        elif not backend.take_steps():
            if failed is not None:
                raise failed
            break
    if not note_rounding(backend, off):
        name = type(backend.module).__name__
        who = f"{name} and transformers" if references else f"its blocks one by one and the whole {name}"
        why = "" if backend.wrapped is None else f". {likely_reason(backend)}"
        raise _Unreadable(
            f"{who} give different logits on a prompt of {every[-1].ids.shape[1]} tokens{backend.instead}{why}"
        )
    _check_outputs(backend, run, mlps)
    _check_values(backend, run)
    return run


def _own(backend: Backend) -> Reference:
    ids = backend.trial_tokens(1, min(SHORT, backend.sizes.n_ctx))
    return Reference(ids, torch.arange(ids.shape[1], device=ids.device), backend.own_logits(ids)[0])


def _off(backend: Backend, reference: Reference, final: Tensor | None = None) -> float:
    """How far a run is from a reference."""
    places = reference.places[reference.places < backend.sizes.n_ctx]
    if final is None:
        final = backend.run(moved(reference.ids[:, : backend.sizes.n_ctx], backend.devices.home))
    ours = backend.unembed(final[0, moved(places, final.device)])
    return apart(ours, reference.logits[: len(places)], logits=True)


def _run(model: ModelCore, reference: Reference, keys: tuple[str, ...], mlps: dict[int, Tensor]) -> HeadCache:
    """A cached run of the reference's prompt, with more tokens after it, and of another prompt."""
    backend, n = model.backend, reference.ids.shape[1]
    ids = backend.trial_tokens(2, max(n, min(backend.trial_length, backend.sizes.n_ctx)))
    ids[0, :n] = moved(reference.ids[0], ids.device)
    fired: set[tuple[str, int]] = set()
    check = partial(_check_shape, backend=backend, fired=fired, pos=ids.shape[1])
    watch = [
        (backend.hook_name(site, layer), partial(check, site=site, layer=layer))
        for layer in range(backend.sizes.n_layers)
        for site in _READ
    ]
    watch += [
        (name, partial(_note, layer=layer, seen=mlps))
        for layer in range(backend.sizes.n_layers)
        if (name := backend.hook_name("mlp_out", layer)) in backend.hook_points
    ]
    rows, sites = [Unpadded(row) for row in ids.tolist()], ("z", "v", "resid_pre", *keys)
    run = backend.under(watch, lambda: HeadCache.run(model, rows, sites=sites))
    for layer in range(backend.sizes.n_layers):
        for site in _READ:
            if (site, layer) not in fired:
                raise _Unreadable(f"{_layer(backend, layer)} does not let {_name(site)} be read: its hook never fires")
    return run


def _note(value: Tensor, hook: Any, layer: int, seen: dict[int, Tensor]) -> None:
    seen[layer] = value.clone()


def _check_shape(
    value: Tensor, hook: Any, backend: Backend, fired: set[tuple[str, int]], pos: int, site: str, layer: int
) -> None:
    sizes = backend.sizes
    heads = sizes.n_kv_heads if site in ("k", "v") else sizes.n_heads
    wanted = (2, pos, sizes.d_model) if site == "resid_pre" else (2, pos, heads, sizes.d_head)
    if tuple(value.shape) != wanted:
        raise _Unreadable(
            f"{site} in {_layer(backend, layer)} has the shape {list(value.shape)}; 2 prompts of {pos} tokens and "
            f"{heads} heads of size {sizes.d_head} should give {list(wanted)}"
        )
    fired.add((site, layer))


def _why_not_finite(backend: Backend, logits: Tensor) -> str:
    """Why logits are not finite: weights, an unembedding that masks tokens, or a dtype that overflows."""
    weights = [*backend.module.parameters()]
    broken = [weight for weight in weights if not weight.isfinite().all()]
    masked = (logits == -torch.inf).all(dim=0)
    if masked.any() and logits[:, ~masked].isfinite().all():
        return (
            f"its unembedding gives {int(masked.sum())} tokens a logit of -inf; give them a large negative number "
            "instead, such as a bias of -1e4"
        )
    if not broken and weights[0].dtype in (torch.float16, torch.bfloat16):
        dtype = str(weights[0].dtype).removeprefix("torch.")
        return (
            f"its logits contain NaN or infinity in {dtype}, though its weights do not: its activations exceed what "
            f"{dtype} holds; use float32, or bfloat16 in place of float16"
        )
    return "its logits contain NaN or infinity, so its weights are damaged"


def _layer(backend: Backend, layer: int) -> str:
    block = backend.module.blocks[layer]
    return f"layer {layer} ({type(getattr(block, 'original_component', block)).__name__})"


def _name(site: str) -> str:
    return "the residual stream before it" if site == "resid_pre" else f"its heads' {site}"


def _check_hooks_exist(backend: Backend) -> None:
    for layer in range(backend.sizes.n_layers):
        if getattr(backend.module.blocks[layer], "attn", None) is None:
            raise _Unreadable(
                f"{_layer(backend, layer)} has no attention heads; mechheads reads models that have them in every layer"
            )
        for site in (*_READ, "pattern"):
            if backend.hook_name(site, layer) not in backend.hook_points:
                raise _Unreadable(f"{_layer(backend, layer)} does not let {_name(site)} be read")


def _check_outputs(backend: Backend, run: HeadCache, mlps: Mapping[int, Tensor]) -> None:
    """Check that the heads of each layer write z W_O + b_O, and that only heads carry information between tokens."""
    sizes, few = backend.sizes, [run.final.shape[1] - 1, 1]
    blocks: Blocks | None = None
    for layer in range(sizes.n_layers):
        before, last = run.stores["resid_pre"][layer], layer == sizes.n_layers - 1
        wanted = run.final if last else run.stores["resid_pre"][layer + 1]
        written = run.z.layer(layer).transpose(1, 2).flatten(-2) @ backend.weight("O", layer).flatten(0, 1)
        if (bias := backend.bias("O", layer)) is not None:
            written = written + bias
        size = (wanted if last else wanted - before).float().std()
        if layer in mlps and mlps[layer].shape == before.shape:
            out = before + written + mlps[layer]
            if _same(backend.finish(out) if last else out, wanted, size, backend):
                continue
        blocks = blocks or backend.blocks_for(1, len(few))
        out = backend.with_attention(layer, written[:1, few], partial(blocks, layer, before[:1, few]))
        if not _same(backend.finish(out) if last else out, wanted[:1, few], size, backend):
            raise _Unreadable(
                f"{_layer(backend, layer)} does more with its heads' output, or with other tokens, than add z W_O + b_O"
            )


def _same(new: Tensor, old: Tensor, size: Tensor, backend: Backend) -> bool:
    rounding = 16 * torch.finfo(new.dtype).eps * float(old.abs().max())
    return bool(float((new - old).abs().max()) <= backend.tolerance * float(size) + rounding)


def _check_values(backend: Backend, run: HeadCache) -> None:
    """Check that z is v at the first token, which sees no other, or in proportion to v, as with gates and sinks."""
    sizes, group = backend.sizes, backend.sizes.n_heads // backend.sizes.n_kv_heads
    z = [run.z.layer(layer) for layer in range(sizes.n_layers)]
    v = [run.stores["v"][layer].repeat_interleave(group, 1) for layer in range(sizes.n_layers)]
    if all(_same(a[:, :, 0], b[:, :, 0], a.float().std(), backend) for a, b in zip(z, v, strict=True)):
        return

    def noted(first: float) -> dict[int, Tensor]:
        """z of each layer for v too small to be clipped, the first key and value head's times ``first``."""
        seen: dict[int, Tensor] = {}

        def small(value: Tensor, hook: Any) -> Tensor:
            low = value * (0.25 / value.abs().max())
            return torch.cat([first * low[:, :, :1], low[:, :, 1:]], 2)

        def note(value: Tensor, hook: Any, layer: int) -> Tensor:
            seen[layer] = value.transpose(1, 2)
            return z[layer].transpose(1, 2)

        hooks: list[Hook] = [(backend.hook_name("v", layer), small) for layer in range(sizes.n_layers)]
        hooks += [(backend.hook_name("z", layer), partial(note, layer=layer)) for layer in range(sizes.n_layers)]
        backend.run(run.tokens.ids, hooks)
        return seen

    usual, louder = noted(1.0), noted(2.0)
    factor = torch.where(torch.arange(sizes.n_heads, device=z[0].device) < group, 2.0, 1.0).to(z[0].dtype)
    for layer, small_z in usual.items():
        if not _same(louder[layer], small_z * factor[:, None, None], small_z.float().std(), backend):
            raise _Unreadable(
                f"{_layer(backend, layer)}: z of a head is not its pattern times its v: a norm or a mix of heads comes "
                "in between"
            )
