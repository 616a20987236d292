"""Racing for the heads with the largest Ships, and Generalized Ships of the heads that are left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mechheads.engine.evaluate import Evaluator
from mechheads.engine.job import Job
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
    turning = ShipsKind(r=r)
    with turning.stored_in(asked.store, ablations[0].group) as kept:
        jobs = asked.jobs(ablations, race, kept)
        racers = _racers(jobs)
        stopped = False
        for ablation, job, racer in zip(ablations, jobs, racers, strict=True):
            raced = Raced.start(job, race)
            if not stopped:
                raced = run_race(racer, race, progress=asked.progress)
            found = empty(job, about_pass(asked, ablation, r), 0)
            found.kl[:] = ablation.groups(asked.model).spread(raced.values[:, :, 0])
            raced.interrupted |= stopped
            if r is not None and raced.in_race and not raced.interrupted:
                left = job.some(raced.in_race, job.rows, ", angles")
                with until_interrupted() as work:
                    stop_if(fill(turning(left), found, asked.progress).interrupted)
                work.warn("Ships", "angles that were not reached are NaN")
                raced.interrupted |= work.interrupted
            stopped = raced.interrupted
            yield found, raced


def _racers(jobs: Sequence[Job]) -> list[Racing]:
    """Races by the KL of each job's heads; all jobs have one intact run."""
    evaluator = Evaluator(kl_divergence, jobs[0].base)
    return [Racing.by_sweep(job, evaluator) for job in jobs]
