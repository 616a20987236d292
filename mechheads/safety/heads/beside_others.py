"""Ships of heads while other heads are ablated too: one step of Sahara, in this process or by workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from mechheads.engine.batches import Batch, Values
from mechheads.engine.job import Job, Unit, make_ready
from mechheads.engine.run import Altering
from mechheads.heads import HeadId
from mechheads.interventions.base import Intervention
from mechheads.model.backends.base import Hook
from mechheads.safety.heads.ablations import Ablation
from mechheads.safety.heads.measure_ships import ShipsKind, ShipsWork


@dataclass(frozen=True, kw_only=True)
class BesideOthers(ShipsKind):
    """What is measured of each head, against the intact run, while other heads are ablated in the same way.

    Attributes:
        way: how all heads are ablated.
        others: the heads that are ablated all the time; with ``group="kv"``, the first head of each group.
    """

    way: Ablation
    others: tuple[HeadId, ...]

    def __call__(self, job: Job) -> BesideWork:
        return self.of(super().__call__(job), job.heads)

    def of(self, intact: ShipsWork, heads: Sequence[HeadId]) -> BesideWork:
        """The work for some heads, from work whose base run is intact; the model runs once without the others.

        What is measured goes into the ledger of that work, under the names of the others.
        """
        job, model = intact.job, intact.job.model
        hooks = self.way.hooks(model, self.way.groups(model).members(self.others), job.base)
        ready = partial(make_ready, model, replace(job.spec, heads=heads))
        without = replace(model.backend.under(hooks, ready), together=job.together, ledger=job.ledger)
        without = without.as_part(f", beside {' '.join(map(str, sorted(self.others)))}")
        beside = self.way.beside_others(job.base)
        altering = Altering(without.intervening(beside))
        return BesideWork(without, self, intact.judge, intact.turn, altering, beside, hooks)


@dataclass(frozen=True, eq=False)
class BesideWork(ShipsWork):
    """The values of each head as in ``ShipsWork``; the job's base run is without the others.

    Attributes:
        beside: ablates a head beside the others. The intervention of the job itself can be sent to workers.
        hooks: ablate the others.
    """

    beside: Intervention
    hooks: Sequence[Hook]

    def compute(self, batches: Iterable[Batch]) -> Iterator[tuple[list[Unit], Values]]:
        here = ShipsWork(self.job.intervening(self.beside), self.kind, self.judge, self.turn, self.altering)
        for batch in batches:
            yield from self.job.model.backend.under(self.hooks, partial(list, here.compute([batch])))
