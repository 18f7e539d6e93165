"""What is known of each task from the training run so far. Pure, apart from :func:`training_stats`.

Rollout allocation, step limits and the curriculum decide by it. It is part of the data set's state, so verl
saves it with every checkpoint (``data.pt``) and restores it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

RECENT = 32  # attempts that the recent success rate looks back on: the policy changes, old ones mislead


@dataclass
class TaskRecord:
    """One task.

    Attributes:
        attempts: rollouts with a verdict. successes: those with full score.
        invalid: rollouts that the environment broke; they count nowhere else.
        failures_in_a_row: attempts since the last rollout group with a success in it.
        longest_success: answers of the longest success, 0 without one. success_steps: answers of all
            successes together.
        last_step: training step of the last attempt; -1 before the first.
        recent: the last attempts, True for a success.
        running: rollouts that were started and have not been accounted for.
    """

    attempts: int = 0
    successes: int = 0
    invalid: int = 0
    failures_in_a_row: int = 0
    longest_success: int = 0
    success_steps: int = 0
    last_step: int = -1
    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=RECENT))
    running: int = 0

    @property
    def rate(self) -> float | None:
        """Share of successes among the recent attempts; None before the first."""
        return sum(self.recent) / len(self.recent) if self.recent else None

    @property
    def mean_success_length(self) -> float | None:
        """Answers of a success on average; None without one."""
        return self.success_steps / self.successes if self.successes else None


class TaskStats:
    """Successes, attempts, faults and lengths of every task.

    Example:
        >>> stats = TaskStats()
        >>> stats.started("t", 4)
        >>> stats.ended("t", [(True, 5), (False, 15), (False, 15)], step=1)
        >>> stats.settle()  # the fourth was broken by its environment
        >>> stats["t"].successes, stats["t"].attempts, stats["t"].invalid
        (1, 3, 1)
    """

    def __init__(self) -> None:
        self._tasks: dict[str, TaskRecord] = {}
        self.step = 0  # the last training step that was heard of

    def __getitem__(self, task_id: str) -> TaskRecord:
        """The record of a task; an empty one before it was ever run."""
        return self._tasks.get(task_id) or TaskRecord()

    def __len__(self) -> int:
        return len(self._tasks)

    def items(self) -> Iterable[tuple[str, TaskRecord]]:
        """All tasks that were started, in the order of their first time."""
        return self._tasks.items()

    def started(self, task_id: str, rollouts: int) -> None:
        """So many rollouts of a task are about to run."""
        self._record(task_id).running += rollouts

    def ended(self, task_id: str, attempts: Iterable[tuple[bool, int]], *, step: int) -> None:
        """Rollouts of one task came back.

        Args:
            task_id: the task.
            attempts: for each valid rollout, whether it succeeded and how many answers it had.
            step: training step.
        """
        record, outcomes = self._record(task_id), list(attempts)
        for success, length in outcomes:
            record.attempts += 1
            record.recent.append(success)
            if success:
                record.successes += 1
                record.success_steps += length
                record.longest_success = max(record.longest_success, length)
        if any(success for success, _ in outcomes):
            record.failures_in_a_row = 0
        else:
            record.failures_in_a_row += len(outcomes)
        record.running = max(0, record.running - len(outcomes))
        if outcomes:
            record.last_step = step
        self.step = max(self.step, step)

    def settle(self) -> None:
        """Nothing runs any more: what was started and did not come back was broken by its environment."""
        for record in self._tasks.values():
            record.invalid += record.running
            record.running = 0

    def metrics(self) -> dict[str, float]:
        """Numbers over all tasks for verl's loggers, under ``tasks/``; nothing before the first attempt."""
        seen = [record for record in self._tasks.values() if record.attempts]
        if not seen:
            return {}
        rates = [record.rate for record in seen if record.rate is not None]
        invalid = sum(record.invalid for record in self._tasks.values())
        return {
            "tasks/seen": float(len(seen)),
            "tasks/solved_once": float(sum(record.successes > 0 for record in seen)),
            "tasks/always_solved": float(sum(rate == 1.0 for rate in rates)),
            "tasks/never_solved_recently": float(sum(rate == 0.0 for rate in rates)),
            "tasks/recent_rate": sum(rates) / len(rates),
            "tasks/invalid_share": invalid / (invalid + sum(record.attempts for record in seen)),
        }

    def state_dict(self) -> dict[str, Any]:
        """Plain data for a checkpoint. What is running now is not in it: after a restart it runs no more."""
        tasks = {
            task_id: {
                **{
                    f.name: getattr(record, f.name)
                    for f in fields(record)
                    if f.name not in ("recent", "running")
                },
                "recent": [int(success) for success in record.recent],
            }
            for task_id, record in self._tasks.items()
        }
        return {"step": self.step, "tasks": tasks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave; what was known before is forgotten."""
        self.step = int(state["step"])
        self._tasks = {
            task_id: TaskRecord(
                **{**values, "recent": deque((bool(s) for s in values["recent"]), maxlen=RECENT)}
            )
            for task_id, values in state["tasks"].items()
        }

    def _record(self, task_id: str) -> TaskRecord:
        return self._tasks.setdefault(task_id, TaskRecord())


_TRAINING = TaskStats()


def training_stats() -> TaskStats:
    """The statistics of this process's training run: fed by the batch sampler, read by the data set."""
    return _TRAINING


def take_rows(
    stats: TaskStats, rows: Iterable[Mapping[str, Any]], *, step: int, all_back: bool
) -> dict[str, float]:
    """Count the episodes of a training batch.

    Args:
        stats: is fed.
        rows: the ``extra_fields`` of each episode, as the agent loop left them.
        step: training step.
        all_back: nothing else runs (synchronous training), so what is missing was invalid.

    Returns:
        :meth:`TaskStats.metrics`.
    """
    groups: dict[str, list[tuple[bool, int]]] = {}
    for row in rows:
        success = row["reward_extra_info"]["acc"] >= 1.0
        groups.setdefault(row["task_id"], []).append((success, int(row["steps"])))
    for task_id, attempts in groups.items():
        stats.ended(task_id, attempts, step=step)
    if all_back:
        stats.settle()
    return stats.metrics()
