"""Success rates and their uncertainty: pass@1 with a confidence interval, pass@k, by domain and task."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from verl_gui.evaluation.runs import Tally
from verl_gui.tasks.sources import TaskInstance

Z_95 = 1.959963984540054
"""97.5 % quantile of the normal distribution."""


def wilson(successes: float, trials: int, *, z: float = Z_95) -> tuple[float, float]:
    """Wilson's score interval of a success rate (Wilson 1927), by default of 95 %.

    Stays in [0, 1] and keeps its width where the rate is 0 or 1, unlike the normal interval.

    Args:
        successes: may be broken when it is a mean rate times ``trials``.
        trials: independent trials; (0, 1) for none.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes in {trials} trials")
    if trials == 0:
        return 0.0, 1.0
    rate = successes / trials
    middle = (rate + z * z / (2 * trials)) / (1 + z * z / trials)
    spread = z / (1 + z * z / trials) * math.sqrt(rate * (1 - rate) / trials + (z / (2 * trials)) ** 2)
    return max(0.0, min(rate, middle - spread)), min(1.0, max(rate, middle + spread))


def pass_at_k(successes: int, trials: int, k: int) -> float:
    """Unbiased estimate of the chance that at least one of ``k`` runs succeeds.

    ``1 - C(n - c, k) / C(n, k)`` for c successes in n runs (Chen et al. 2021, arXiv 2107.03374, eq. 1).

    Raises:
        ValueError: fewer runs than ``k``.
    """
    if not 0 < k <= trials or not 0 <= successes <= trials:
        raise ValueError(f"pass@{k} from {successes} successes in {trials} runs")
    return 1.0 - math.comb(trials - successes, k) / math.comb(trials, k)


@dataclass(frozen=True)
class Score:
    """How well a set of task instances is solved.

    Attributes:
        instances: number of instances. unknown: those of them without a valid run; they are in no rate.
        runs: valid runs. invalid: runs that something other than the agent broke; they are in no rate.
        pass_1: mean over the instances of the share of successes.
        interval: 95 % interval of ``pass_1`` for these very instances: Wilson over the runs.
        interval_new_tasks: the same for other instances of the kind. Runs of one instance are alike, so here
            an instance counts as one trial, however often it was run.
        score: mean over the instances of the environment's verdict (partial credit counts).
        pass_k: k -> mean over the instances with at least k valid runs.
        steps: mean number of answers of a success; None without one.
    """

    instances: int
    unknown: int
    runs: int
    invalid: int
    pass_1: float | None
    interval: tuple[float, float]
    interval_new_tasks: tuple[float, float]
    score: float | None
    pass_k: dict[int, float]
    steps: float | None

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON; the keys of ``pass_k`` become strings."""
        return {**asdict(self), "pass_k": {str(k): value for k, value in self.pass_k.items()}}


def score(tallies: Iterable[Tally], *, ks: Sequence[int] = ()) -> Score:
    """The score of a set of instances.

    Args:
        tallies: their counted runs.
        ks: the k of the pass@k wanted; one that no instance has enough valid runs for is left out.
    """
    every = list(tallies)
    known = [t for t in every if t.valid]
    runs = sum(t.valid for t in known)
    rate = fmean(t.successes / t.valid for t in known) if known else None
    lengths = [length for t in known for length in t.lengths]
    pass_k = {}
    for k in ks:
        enough = [pass_at_k(t.successes, t.valid, k) for t in known if t.valid >= k]
        if enough:
            pass_k[k] = fmean(enough)
    return Score(
        instances=len(every),
        unknown=len(every) - len(known),
        runs=runs,
        invalid=sum(t.invalid for t in every),
        pass_1=rate,
        interval=wilson((rate or 0.0) * runs, runs),
        interval_new_tasks=wilson((rate or 0.0) * len(known), len(known)),
        score=fmean(t.score / t.valid for t in known) if known else None,
        pass_k=pass_k,
        steps=fmean(lengths) if lengths else None,
    )


def scores_by(
    kind: str, instances: Sequence[TaskInstance], tallies: Mapping[str, Tally], *, ks: Sequence[int] = ()
) -> dict[str, Score]:
    """Scores of groups of instances, in alphabetical order.

    Args:
        kind: ``domain`` or ``task``.
        instances: what was evaluated. tallies: by instance name.
        ks: see :func:`score`.
    """
    groups: dict[str, list[Tally]] = defaultdict(list)
    for instance in instances:
        key = (instance.task.domain or "tasks") if kind == "domain" else instance.task.id
        groups[key].append(tallies[instance.name])
    return {key: score(groups[key], ks=ks) for key in sorted(groups)}
