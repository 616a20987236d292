"""Racing for the heads with the largest Ships, and Generalized Ships of the heads that are left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mechheads.engine.evaluate import Evaluator
from mechheads.engine.half_precision import for_early_rounds
from mechheads.engine.racing import Race
from mechheads.engine.run_race import Raced, Racing, run_race
from mechheads.messages.interrupted import stop_if, until_interrupted
from mechheads.metrics.basic import kl_divergence
from mechheads.safety.heads.ablations import Ablation
from mechheads.safety.heads.measure_ships import Measured, Pass, ShipsKind, about_pass, check_r, empty, fill


def race_ships(
    asked: Pass, ablations: Sequence[Ablation], race: Race, *, r: int | None = None
) -> Iterator[tuple[Measured, Raced]]:
    """Race the heads for each ablation; with ``r``, the heads that are left are ablated once more for their angles.

    Yields Ships of the heads that were not dropped, with their angles if these are requested, and the race itself.

    All ablations share the intact run. After Ctrl-C, nothing more is measured.

    Raises:
        ValueError: if an argument is not valid.
    """
    if r is not None:
        check_r(r, asked.prompts.tokens(asked.model), asked.model)
    shared = asked.job(ablations, race)
    evaluator = Evaluator(kl_divergence, shared.base)
    other = for_early_rounds(asked.model, race)
    quick = None if other is None else replace(asked, model=other).job(ablations, race.without_early)
    judge = None if quick is None else Evaluator(kl_divergence, quick.base)
    turning = ShipsKind(r=r)
    stopped = False
    for ablation in ablations:
        job = shared.intervening(ablation.intervention)
        raced = Raced.start(job, race)
        if not stopped:
            early = None
            if quick is not None and judge is not None:
                early = Racing.by_sweep(quick.intervening(ablation.intervention), judge)
            raced = run_race(Racing.by_sweep(job, evaluator), race, early=early, progress=asked.progress)
        found = empty(job, about_pass(asked, ablation, r), 0)
        found.kl[:] = ablation.groups(asked.model).spread(raced.values[:, :, 0])
        raced.interrupted |= stopped
        if r is not None and raced.in_race and not raced.interrupted:
            left = job.some(raced.in_race, job.rows, "")
            with until_interrupted() as work:
                stop_if(fill(turning(left), found, asked.progress).interrupted)
            work.warn("Ships", "angles that were not reached are NaN")
            raced.interrupted |= work.interrupted
        stopped = raced.interrupted
        yield found, raced
