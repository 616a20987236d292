"""The blocks of a bridge: norms and activations take one step, and the steps are there for hooks that read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import mechheads as mh
from support.releases import only_on_4

pytestmark = only_on_4


class Steps(TorchDispatchMode):
    """How often each operation of torch is called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def test_norms_and_gelu_take_one_step_unless_a_hook_reads_a_step(tiny: Callable[[str], Path]) -> None:
    model = mh.load(tiny("gpt2"))
    ids, read = model.backend.trial_tokens(2, 9), []
    residual, blocks = model.backend.embed(ids)
    with torch.no_grad():
        with Steps() as quick:
            wanted = blocks(0, residual)
        assert quick.calls["native_layer_norm"] == 2
        assert quick.calls["gelu"] == 1
        assert not {"pow", "tanh", "sqrt"} & quick.calls.keys()
        hooks = [("blocks.0.ln1.hook_scale", lambda value, hook: read.append(value.shape))]
        found = model.backend.under(hooks, lambda: blocks(0, residual))
    assert read == [(2, 9, 1)]
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
