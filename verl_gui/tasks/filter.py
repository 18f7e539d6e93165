"""Which tasks are worth training on: those that the base agent solves sometimes.

ARPO (arXiv 2505.16282) keeps the tasks solved at least once in 16 rollouts, 128 of OSWorld's 369; on the
others every group fails and nothing is learnt. The rate is taken over valid runs only: a desktop that broke
says nothing about the agent. A task with too few valid runs is *unknown*, never "0".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from verl_gui.evaluation.runs import Tally
from verl_gui.tasks.sources import TaskInstance

Decision = Literal["kept", "too_hard", "too_easy", "unknown"]


class FilterError(ValueError):
    """The filter leaves nothing to train on, or less than one batch."""


@dataclass(frozen=True)
class FilterRule:
    """When a task is kept.

    Attributes:
        min_success: successes it needs at least (ARPO: 1).
        lower: its rate must be above this. upper: its rate must be below this. None: no bound.
        min_valid: valid runs it needs for a decision; with fewer it is unknown.
        keep_unknown: whether unknown tasks go into the list too; else they are only listed apart.
    """

    min_success: int = 1
    lower: float | None = None
    upper: float | None = None
    min_valid: int = 1
    keep_unknown: bool = False

    def __post_init__(self) -> None:
        if self.min_success < 0 or self.min_valid < 1:
            raise ValueError(
                f"min_success={self.min_success}, min_valid={self.min_valid}: expected at least 0 and 1"
            )
        for name in ("lower", "upper"):
            bound = getattr(self, name)
            if bound is not None and not 0.0 <= bound <= 1.0:
                raise ValueError(f"{name}={bound}: expected a rate in [0, 1]")
        if self.lower is not None and self.upper is not None and self.lower >= self.upper:
            raise ValueError(f"lower={self.lower} is not below upper={self.upper}: no rate lies between")

    def decide(self, tally: Tally | None) -> Decision:
        """What becomes of a task with these runs (None: it was never run)."""
        if tally is None or tally.valid < self.min_valid:
            return "unknown"
        rate = tally.successes / tally.valid
        if tally.successes < self.min_success or (self.lower is not None and rate <= self.lower):
            return "too_hard"
        if self.upper is not None and rate >= self.upper:
            return "too_easy"
        return "kept"


@dataclass(frozen=True)
class Filtered:
    """The outcome, every list in the order of the tasks given.

    Attributes:
        decisions: by name of the task instance.
        kept: what goes into the list.
    """

    decisions: dict[str, Decision]
    kept: list[TaskInstance]

    def named(self, decision: Decision) -> list[str]:
        """Names of the instances that this was decided on."""
        return [name for name, made in self.decisions.items() if made == decision]


def filter_tasks(
    instances: Sequence[TaskInstance], tallies: Mapping[str, Tally], rule: FilterRule
) -> Filtered:
    """Decide on every task instance.

    Args:
        instances: all of them.
        tallies: their counted runs, by name; one that is missing was never run.
        rule: when to keep one.
    """
    decisions = {i.name: rule.decide(tallies.get(i.name)) for i in instances}
    wanted = {"kept", "unknown"} if rule.keep_unknown else {"kept"}
    return Filtered(decisions, [i for i in instances if decisions[i.name] in wanted])


def check_enough(filtered: Filtered, *, batch_size: int | None) -> str | None:
    """Whether there is enough left to train on.

    Args:
        filtered: the outcome.
        batch_size: prompts of a training step; None if it is not known.

    Returns:
        A warning when the last batch of an epoch would stay incomplete, else None.

    Raises:
        FilterError: nothing is left, or less than one batch.
    """
    kept, unknown = len(filtered.kept), len(filtered.named("unknown"))
    again = f"; {unknown} are unknown: run again with more --retries to decide on them" if unknown else ""
    if not kept:
        raise FilterError(
            f"no task is left of {len(filtered.decisions)} ({len(filtered.named('too_hard'))} too hard, "
            f"{len(filtered.named('too_easy'))} too easy{again}). "
            "Loosen the rule, run more often, or start from a better policy"
        )
    if batch_size is None:
        return None
    if kept < batch_size:
        raise FilterError(
            f"{kept} tasks are left, less than one batch of {batch_size}: verl would do no step{again}"
        )
    if kept % batch_size:
        return (
            f"{kept} tasks do not fill batches of {batch_size}: in every epoch {kept % batch_size} of them, "
            "others each time when shuffled, are not trained on (verl drops the incomplete last batch)"
        )
    return None


def write_task_list(
    instances: Sequence[TaskInstance], file: str | Path, *, notes: Mapping[str, Any] | None = None
) -> None:
    """Write tasks in OSWorld's layout: a list in ``file``, ``examples/<domain>/<name>.json`` beside it.

    Reading the list back gives the same instances: a seed is kept in the task's file. The list is written
    last and in one piece, so it never names a file that is not there.

    Args:
        instances: in the order of the list.
        file: the list.
        notes: by instance name, something JSON-ready to keep in the task's file under ``baseline``.
    """
    file = Path(file)
    listing: dict[str, list[str]] = {}
    for instance in instances:
        domain, name = instance.task.domain or "tasks", quote(instance.name, safe=" #:@+,")
        example = file.parent / "examples" / domain / f"{name}.json"
        example.parent.mkdir(parents=True, exist_ok=True)
        data = instance.task.to_dict()
        if instance.seed is not None:
            data["seed"] = instance.seed
        if notes is not None and instance.name in notes:
            data["baseline"] = notes[instance.name]
        _write(example, data)
        listing.setdefault(domain, []).append(name)
    _write(file, listing)


def rule_to_json(rule: FilterRule) -> dict[str, Any]:
    """The rule, ready for JSON."""
    return asdict(rule)


def _write(file: Path, data: Any) -> None:
    part = file.with_name(f"{file.name}.part")
    part.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(file)
