"""Check that a model can be read: that its hooks, weights and blocks behave as every analysis assumes.

A model is tested on a few tokens when it is wrapped. The tests look at what the model computes, not at the name of its
architecture, so they also work for architectures that nobody has tried yet.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from mechheads.model.backends.base import Backend, Hook, Weight

_READ = ("resid_pre", "q", "k", "v", "pattern", "z")
_QUERY, _KEY = 1, 2
"""The tokens at which a trial changes q and k; every token after 2 sees both."""
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


class _Unreadable(Exception):
    """What is wrong with a model, in words that follow "cannot be read:"."""


def check_readable(backend: Backend) -> None:
    """Check that a model behaves as analyses assume.

    Every layer's hooks must fire, with a value for each head, and change what they should; the heads must write
    z W_O + b_O; only heads may carry information between tokens; running block by block must give the model's own
    logits.

    Raises:
        ValueError: if one of these does not hold.
    """
    try:
        with torch.no_grad():
            try:
                _check(backend)
            except _Unreadable:
                if not backend.take_steps():
                    raise  # it is more than rounding, which some weights magnify
                _check(backend)
    except torch.OutOfMemoryError:
        raise
    except _Unreadable as error:
        raise ValueError(f"{backend.about} cannot be read: {error}") from error
    except _ERRORS as error:
        raise ValueError(
            f"{backend.about} cannot be read: running it block by block fails: {first_sentence(error)}"
        ) from error


def first_sentence(error: BaseException) -> str:
    """The first sentence of another library's error message, with the type of the error."""
    lines = str(error).strip().splitlines() or [""]
    said = lines[0].split(". ")[0].rstrip(".")
    said = said if len(said) <= 200 else f"{said[:200]}..."
    return f"{said} ({type(error).__name__})" if said else type(error).__name__


def _check(backend: Backend) -> None:
    ids = backend.trial_tokens(1, backend.trial_length)
    own = backend.own_logits(ids).float()
    if not own.isfinite().all():
        raise _Unreadable(_why_not_finite(backend, own))
    _check_hooks_exist(backend)
    seen: dict[tuple[str, int], Tensor] = {}
    final = backend.run(ids, [*_watch(backend, seen, _READ)])
    _check_shapes(backend, seen, ids.shape[1])
    ours = backend.unembed(final).float()
    if not float((own - ours).abs().max() / own.std().clamp_min(1e-6)) < backend.tolerance:
        advice = "; it is in training mode: call its eval() first" if backend.module.training else ""
        raise _Unreadable(f"W_U times its final states does not give its own logits{advice}")
    seen["resid_pre", backend.sizes.n_layers] = final
    _check_outputs(backend, seen)
    _check_effects(backend, ids, seen)


def _why_not_finite(backend: Backend, logits: Tensor) -> str:
    """Why logits are not finite: weights, an unembedding that masks tokens, or a dtype that overflows."""
    weights = [*backend.module.parameters()]
    broken = [weight for weight in weights if not weight.isfinite().all()]
    masked = (logits == -torch.inf).all(dim=(0, 1))
    if masked.any() and logits[..., ~masked].isfinite().all():
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
        for site in _READ:
            if backend.hook_name(site, layer) not in backend.hook_points:
                raise _Unreadable(f"{_layer(backend, layer)} does not let {_name(site)} be read")


def _watch(backend: Backend, seen: dict[tuple[str, int], Tensor], sites: tuple[str, ...]) -> list[Hook]:
    def note(value: Tensor, hook: Any, key: tuple[str, int]) -> None:
        seen[key] = value.clone()

    return [
        (backend.hook_name(site, layer), partial(note, key=(site, layer)))
        for layer in range(backend.sizes.n_layers)
        for site in sites
    ]


def _check_shapes(backend: Backend, seen: dict[tuple[str, int], Tensor], pos: int) -> None:
    sizes = backend.sizes
    of_keys = (1, pos, sizes.n_kv_heads, sizes.d_head)
    of_heads = (1, pos, sizes.n_heads, sizes.d_head)
    shapes = {
        "q": of_heads,
        "k": of_keys,
        "v": of_keys,
        "z": of_heads,
        "pattern": (1, sizes.n_heads, pos, pos),
        "resid_pre": (1, pos, sizes.d_model),
    }
    for layer in range(sizes.n_layers):
        for site in _READ:
            where = _layer(backend, layer)
            if (site, layer) not in seen:
                raise _Unreadable(f"{where} does not let {_name(site)} be read: its hook never fires")
            if (got := tuple(seen[site, layer].shape)) != shapes[site]:
                raise _Unreadable(
                    f"{site} in {where} has the shape {list(got)}; {pos} tokens and {sizes.n_heads} heads of size "
                    f"{sizes.d_head} should give {list(shapes[site])}"
                )
        weights: list[tuple[Weight, tuple[int, int]]] = [
            ("V", (sizes.d_model, sizes.d_head)),
            ("O", (sizes.d_head, sizes.d_model)),
        ]
        for kind, shape in weights:
            if (got := tuple(backend.weight(kind, layer).shape)) != (sizes.n_heads, *shape):
                expected = [sizes.n_heads, *shape]
                raise _Unreadable(f"W_{kind} of {_layer(backend, layer)} is {list(got)}; expected {expected}")


def _check_outputs(backend: Backend, seen: dict[tuple[str, int], Tensor]) -> None:
    """Check that each block, given z W_O + b_O as its attention output at a few tokens, gives the same as in a run.

    If so, nothing but heads carries information between tokens.
    """
    at = [seen["resid_pre", 0].shape[1] - 1, 1]
    blocks = backend.blocks_for(1, len(at))
    for layer in range(backend.sizes.n_layers):
        before, wanted = (seen["resid_pre", layer + after][:, at] for after in (0, 1))
        written = seen["z", layer][:, at].flatten(-2) @ backend.weight("O", layer).flatten(0, 1)
        if (bias := backend.bias("O", layer)) is not None:
            written = written + bias
        out = backend.with_attention(layer, written, partial(blocks, layer, before))
        if layer == backend.sizes.n_layers - 1:
            out, before = backend.finish(out), torch.zeros_like(before)
        if not _same(out, wanted, (wanted - before).float().std(), backend):
            raise _Unreadable(
                f"{_layer(backend, layer)} does more with its heads' output, or with other tokens, than add z W_O + b_O"
            )


def _same(new: Tensor, old: Tensor, size: Tensor, backend: Backend) -> bool:
    rounding = 16 * torch.finfo(new.dtype).eps * float(old.abs().max())
    return bool(float((new - old).abs().max()) <= backend.tolerance * float(size) + rounding)


def _check_effects(backend: Backend, ids: Tensor, seen: dict[tuple[str, int], Tensor]) -> None:
    """Check that a head's q and k decide its pattern, its pattern and v decide its z, and no head affects another."""
    pairs = [("q", "k")]
    if backend.hook_name("scored_q", 0) != backend.hook_name("q", 0):
        pairs.append(("scored_q", "scored_k"))
    for q, k in pairs:
        usual, other, louder = (_Trial(backend, ids, seen, (q, k), change) for change in ("none", "q k pattern", "v"))
        for layer in range(backend.sizes.n_layers):
            try:
                _check_patterns(usual.patterns[layer], other.patterns[layer], q, k, backend)
                _check_values(usual.zs[layer], louder.zs[layer], backend)
            except _Unreadable as error:
                raise _Unreadable(f"{_layer(backend, layer)}: {error}") from None
            if _same(usual.zs[layer][:, :, -1], other.zs[layer][:, :, -1], usual.zs[layer].float().std(), backend):
                backend.read_only = frozenset(["pattern"])


def _check_patterns(usual: Tensor, other: Tensor, q: str, k: str, backend: Backend) -> None:
    moved = (usual - other).float().abs().amax(-1)[0] > 1e-4
    for site, token in ((q, _QUERY), (k, _KEY)):
        if not moved[0, token]:
            raise _Unreadable(f"changing {site} of a head does not change what it attends to")
    if moved[backend.sizes.n_heads // backend.sizes.n_kv_heads :].any():
        raise _Unreadable(f"changing {q} or {k} of one head changes what other heads attend to")


def _check_values(usual: Tensor, louder: Tensor, backend: Backend) -> None:
    n_heads, group = backend.sizes.n_heads, backend.sizes.n_heads // backend.sizes.n_kv_heads
    factor = torch.where(torch.arange(n_heads, device=usual.device) < group, 2.0, 1.0).to(usual.dtype)[:, None]
    if not _same(usual * factor, louder, usual.float().std(), backend):
        raise _Unreadable("z of a head is not its pattern times its v: a norm or a mix of heads comes in between")


class _Trial:
    """A run in which q, k, v and the pattern of every layer are replaced by given values, and z by its usual value.

    Attributes:
        patterns: for each layer, the patterns that its heads compute from q and k.
        zs: for each layer, the z that its heads compute from v and the given pattern.

    Args:
        sites: which q and k are replaced.
        change: ``"none"``; ``"q k pattern"``: head 0 has another q at one token and another k at another, and the last
            token attends only to itself; ``"v"``: v of head 0 is twice as large.
    """

    def __init__(
        self,
        backend: Backend,
        ids: Tensor,
        seen: dict[tuple[str, int], Tensor],
        sites: tuple[str, str],
        change: str,
    ) -> None:
        self.patterns: dict[int, Tensor] = {}
        self.zs: dict[int, Tensor] = {}
        self._seen, self._change = seen, change
        hooks: list[Hook] = []
        for layer in range(backend.sizes.n_layers):
            for site, put in ((sites[0], self._q), (sites[1], self._k), ("v", self._v)):
                hooks.append((backend.hook_name(site, layer), put))
            hooks.append((backend.hook_name("pattern", layer), partial(self._pattern, layer=layer)))
            hooks.append((backend.hook_name("z", layer), partial(self._z, layer=layer)))
        backend.run(ids, hooks)

    def _noise(self, like: Tensor, seed: int) -> Tensor:
        return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32).to(like)

    def _q(self, value: Tensor, hook: Any) -> Tensor:
        return self._put(value, 0, _QUERY)

    def _k(self, value: Tensor, hook: Any) -> Tensor:
        return self._put(value, 1, _KEY)

    def _put(self, value: Tensor, seed: int, token: int) -> Tensor:
        new = self._noise(value, seed)
        if self._change == "q k pattern":
            new[:, token, 0] = -new[:, token, 0]
        return new

    def _v(self, value: Tensor, hook: Any) -> Tensor:
        new = 0.1 * self._noise(value, 2)
        if self._change == "v":
            new[:, :, 0] *= 2
        return new

    def _pattern(self, value: Tensor, hook: Any, layer: int) -> Tensor:
        self.patterns[layer] = value.clone()
        given = self._noise(value, 3).abs().tril()
        given /= given.sum(-1, keepdim=True)
        if self._change == "q k pattern":
            given[:, -1] = torch.eye(given.shape[-1]).to(given)
        return given

    def _z(self, value: Tensor, hook: Any, layer: int) -> Tensor:
        self.zs[layer] = value.clone()
        return self._seen["z", layer].clone()
