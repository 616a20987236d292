"""What all kinds of workers have in common on the driver's side."""

from __future__ import annotations

from typing import Self

from mechheads.messages.arguments import check_at_least


class Pool:
    """Some replicas, which a ``with`` block stops at its end.

    Args:
        n: how many; ``name``: the argument that says so.

    Raises:
        ValueError: if ``n`` is less than 1.
    """

    def __init__(self, n: int, name: str) -> None:
        check_at_least(1, **{name: n})
        self._n = n

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def replicas(self) -> int:
        """The number of workers."""
        return self._n

    def stop(self, replica: int | None = None) -> None:
        """Stop one worker at once, whatever it does, or all of them."""
        raise NotImplementedError

    @property
    def _threads(self) -> int:
        """How many threads of a CPU each worker uses: those of this process are divided among them."""
        import torch

        return max(1, torch.get_num_threads() // self._n)
