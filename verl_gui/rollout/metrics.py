"""Metrics of a batch of episodes, for verl's loggers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any


def episode_metrics(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Means over the episodes of one training batch.

    Args:
        rows: the ``extra_fields`` of each episode, as the agent loop left them: ``task_id``, ``domain``,
            ``steps`` and ``reward_extra_info`` with ``acc``, ``score`` and ``format``.

    Returns:
        ``reward/score``, ``reward/format``, ``reward/malformed`` (share of episodes with a malformed answer),
        ``rollout/env_steps_sum`` (answers of all episodes), ``success/mean``, ``success/<task>`` and
        ``success_by_domain/<domain>``; nothing for no rows.
    """
    scores: list[float] = []
    formats: list[float] = []
    success: dict[str, list[float]] = defaultdict(list)
    by_domain: dict[str, list[float]] = defaultdict(list)
    steps = 0
    for row in rows:
        info = row["reward_extra_info"]
        scores.append(info["score"])
        formats.append(info["format"])
        success[row["task_id"]].append(info["acc"])
        if row.get("domain"):
            by_domain[row["domain"]].append(info["acc"])
        steps += row["steps"]
    if not scores:
        return {}
    wins = [win for task_wins in success.values() for win in task_wins]
    return {
        "reward/score": sum(scores) / len(scores),
        "reward/format": sum(formats) / len(formats),
        "reward/malformed": sum(value < 0 for value in formats) / len(formats),
        "rollout/env_steps_sum": float(steps),
        "success/mean": sum(wins) / len(wins),
        **{f"success/{task}": sum(wins) / len(wins) for task, wins in sorted(success.items())},
        **{f"success_by_domain/{name}": sum(wins) / len(wins) for name, wins in sorted(by_domain.items())},
    }
