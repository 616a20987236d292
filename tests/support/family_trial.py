"""One tiny random model (``tiny_families``), analysed twice: by mechheads, and by plain transformers.

The plain way is one full forward pass for each head and prompt (``plain``), in float64. The result of each analysis is
the largest difference, as a share of the largest value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import mechheads as mh
from mechheads.engine.frozen_heads import MLPs
from mechheads.interventions.basic import Intervention, Scale, Site, UniformAttention
from support.plain import Change, Plain, Spot
from support.tiny_families import FAMILIES, WORDS, make_tokenizer

_CLEAN = ((5, 40, 17, 88, 23, 141, 9, 66), (31, 77, 12, 200, 150, 8))
_CORRUPTED = ((5, 40, 90, 88, 23, 141, 30, 66), (31, 77, 12, 201, 150, 8))
_ANSWERS, _WRONG = (20, 120), (180, 60)
_SITES: tuple[Site, ...] = ("z", "q", "k", "v")
_K = 40
_RELATION = mh.Relation(
    "words", "Knowledge", [(word, WORDS[(7 * i + 3) % len(WORDS)]) for i, word in enumerate(WORDS[:60])]
)


class Head(NamedTuple):
    """A head, as a tuple of two numbers."""

    layer: int
    head: int


class Trial:
    """One model, analysed in both ways; ``heads`` are those of each layer to analyse, by default all."""

    def __init__(
        self, name: str, folder: Path, heads: Sequence[int] | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        self.model = mh.load(folder, dtype=dtype)
        self.plain = Plain(folder, torch.float64 if FAMILIES[name].double else torch.float32)
        layers, some = range(self.model.n_layers), range(self.model.n_heads) if heads is None else heads
        self.heads = [Head(layer, head) for layer in layers for head in some]
        self.pairs = mh.PromptPairs(
            [list(ids) for ids in _CLEAN], [list(ids) for ids in _CORRUPTED], list(_ANSWERS), list(_WRONG)
        )

    @cached_property
    def clean(self) -> list[tuple[Tensor, dict[Spot, Tensor]]]:
        return [self.plain.see(ids) for ids in _CLEAN]

    @cached_property
    def corrupted(self) -> list[tuple[Tensor, dict[Spot, Tensor]]]:
        return [self.plain.see(ids) for ids in _CORRUPTED]

    def differences(self) -> dict[str, float]:
        """The largest difference between the two ways, as a share, for each analysis; see ``_apart``."""
        last = self.model.n_layers - 1
        analyses: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {
            "logits": self.logits,
            **{f"patch {site}": partial(self.patch, site) for site in _SITES},
            "path to logits": lambda: self.path(["final"]),
            **{f"path to {site}": partial(self.path, [f"L{last}H1.{site}"]) for site in ("q", "k", "v")},
            "path to MLP": lambda: self.path([f"L{last - 1}.mlp"]),
            "direct path": lambda: self.path(["final"], "frozen"),
            "Ships, scaling": self.ships_scaling,
            "Ships, undifferentiated": self.ships_undifferentiated,
            "weights": self.weights,
            "first MLP": self.first_mlp,
            "relation scores": self.relation_scores,
        }
        return {name: float(f"{self._apart(*analysis(), name):.1e}") for name, analysis in analyses.items()}

    def _apart(self, ours: np.ndarray, theirs: np.ndarray, name: str) -> float:
        """The difference as a share of the largest value; for patching, of the largest effect of patching z."""
        most = float(np.abs(theirs).max())
        if name == "patch z":
            self._largest_effect = most
        if "path" in name or "patch" in name:
            most = max(most, self._largest_effect)
        return float(np.abs(ours - theirs).max() / most)

    def logits(self) -> tuple[np.ndarray, np.ndarray]:
        run = self.model.cache([list(ids) for ids in _CLEAN])
        ours = [run.logits[i, : len(ids)] for i, ids in enumerate(_CLEAN)]
        return torch.cat(ours).numpy(), torch.cat([logits for logits, _ in self.clean]).numpy()

    def patch(self, site: Site) -> tuple[np.ndarray, np.ndarray]:
        ours = mh.activation_patch(self.model, self.pairs, site=site, heads=self.heads, metric=mh.logit_diff)

        def change(head: Head, i: int) -> list[tuple[Spot, Change]]:
            there = self.clean[i][1]
            if site == "z":
                return [self.plain.z_of(*head, there["z", head.layer])]
            return [self._through(_CORRUPTED[i], head, {site: there[site, head.layer]})]

        return self._picked(ours), self._each(lambda head, i: self._effect(_CORRUPTED[i], i, change(head, i)))

    def _through(self, ids: Sequence[int], head: Head, values: dict[str, Tensor | float]) -> tuple[Spot, Change]:
        """The change of a head's z when its q, k or v has other values."""
        given = [self.plain.of_head(site, *head, value) for site, value in values.items()]
        return self.plain.z_of(*head, self.plain.z_when(ids, head.layer, given))

    def path(self, receivers: list[str], mlps: MLPs = "recomputed") -> tuple[np.ndarray, np.ndarray]:
        ours = mh.path_patch(
            self.model,
            self.pairs,
            receivers=receivers,
            senders=self.heads,
            mlps=mlps,
            metric=mh.logit_diff,
        )
        return self._picked(ours), self._each(lambda head, i: self._path(head, i, receivers, mlps))

    def _path(self, sender: Head, i: int, receivers: list[str], mlps: str) -> float:
        plain, ids, here = self.plain, _CLEAN[i], self.clean[i][1]
        frozen = [(("z", layer), _give(here["z", layer])) for layer in range(plain.n_layers)]
        if mlps == "frozen":
            frozen += [(("mlp", layer), _give(here["mlp", layer])) for layer in range(plain.n_layers)]
        first = [*frozen, plain.z_of(*sender, self.corrupted[i][1]["z", sender.layer])]
        if receivers == ["final"]:
            return self._effect(ids, i, first)
        _, seen = plain.see(ids, first)
        second = []
        for receiver in receivers:
            at, site = receiver[1:].split(".")
            if site == "mlp":
                second.append((("mlp", int(at)), _give(seen["mlp", int(at)])))
            else:
                head = Head(*map(int, at.split("H")))
                second.append(self._through(ids, head, {site: seen[site, head.layer]}))
        return self._effect(ids, i, second)

    def ships_scaling(self) -> tuple[np.ndarray, np.ndarray]:
        ours = self._ships(Scale(0.0))
        return ours, self._each(
            lambda head, i: self._kl(i, [self.plain.z_of(*head, 0 * self.clean[i][1]["z", head.layer])])
        )

    def ships_undifferentiated(self) -> tuple[np.ndarray, np.ndarray]:
        ours = self._ships(UniformAttention())
        return ours, self._each(lambda head, i: self._kl(i, [self._through(_CLEAN[i], head, {"q": 0.0})]))

    def _ships(self, intervention: Intervention) -> np.ndarray:
        prompts = mh.Prompts([list(ids) for ids in _CLEAN])
        return self._picked(mh.ships(self.model, prompts, intervention=intervention, heads=self.heads))

    def weights(self) -> tuple[np.ndarray, np.ndarray]:
        """W_V W_O of every head, and W_U."""
        model, plain = self.model, self.plain
        ours = [model.W_V[layer][head].double() @ model.W_O[layer][head].double() for layer, head in self.heads]
        theirs = [plain.weight("v", *head) @ plain.weight("o", *head) for head in self.heads]
        unembedding = plain.model.get_output_embeddings().weight.detach().T
        return (
            torch.cat([each.flatten() for each in (*ours, model.W_U)]).double().numpy(),
            torch.cat([each.flatten() for each in (*theirs, unembedding)]).numpy(),
        )

    def first_mlp(self) -> tuple[np.ndarray, np.ndarray]:
        rows = self._embedding()[:60]
        return self.model.first_mlp(rows.to(self.model.dtype)).double().numpy(), self.plain.first_mlp(rows).numpy()

    def _embedding(self) -> Tensor:
        return self.plain.model.get_input_embeddings().weight.detach()

    def relation_scores(self) -> tuple[np.ndarray, np.ndarray]:
        ours = mh.relation_scores(self.model, [_RELATION], _K, source="first_mlp", norm="raw", min_pairs=1)
        tokenizer = make_tokenizer()
        sources, targets = (
            torch.tensor([tokenizer(f" {pair[i]}").input_ids for pair in _RELATION.pairs])[:, 0] for i in (0, 1)
        )
        embedded, unembedding = self._embedding()[sources], self.plain.model.get_output_embeddings().weight.T
        mlp, found = self.plain.first_mlp(embedded), []
        for head in self.heads:
            read = mlp if head.layer else embedded
            entries = read @ self.plain.weight("v", *head) @ self.plain.weight("o", *head) @ unembedding.detach()
            own = entries.gather(1, targets[:, None])
            found.append(float(((entries > own + 1e-9 * entries.abs().max()).sum(1) < _K).double().mean()))
        return np.array([ours.scores.values[head.layer, head.head, 0] for head in self.heads]), np.array(found)

    def _picked(self, scores: mh.HeadScores) -> np.ndarray:
        values = np.asarray(scores.values)
        return np.array([values[head.layer, head.head] for head in self.heads])

    def _each(self, value: Callable[[Head, int], float]) -> np.ndarray:
        return np.array([[value(head, i) for i in range(len(_CLEAN))] for head in self.heads])

    def _effect(self, ids: Sequence[int], i: int, changes: Sequence[tuple[Spot, Change]]) -> float:
        base = (self.clean if ids is _CLEAN[i] else self.corrupted)[i][0][-1]
        new = self.plain.run(ids, changes)[-1]
        return float((new - base)[_ANSWERS[i]] - (new - base)[_WRONG[i]])

    def _kl(self, i: int, changes: Sequence[tuple[Spot, Change]]) -> float:
        p, q = (x[-1].double().log_softmax(-1) for x in (self.clean[i][0], self.plain.run(_CLEAN[i], changes)))
        return float((p.exp() * (p - q)).sum())


def _give(value: Tensor) -> Change:
    return lambda old: value.reshape(old.shape).clone()  # blocks add to the outputs of their parts in place
