"""The part of the reward that the form of the answers earns, from which steps were malformed.

ARPO punishes a trajectory once if any of its answers is malformed: ``0.5 * -1``. Punishing every malformed
step tells a long trajectory with one slip from one that is all slips.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

FormatAggregation = Literal["once", "per_step"]

DEFAULT_PENALTY = -0.5


def format_reward(
    malformed: Sequence[bool],
    *,
    penalty: float = DEFAULT_PENALTY,
    aggregation: FormatAggregation = "once",
) -> float:
    """Format reward of a whole trajectory; 0 if every answer is well formed.

    Args:
        malformed: for every step, whether its answer raised ActionFormatError.
        penalty: what a malformed answer costs, at most 0.
        aggregation: ``once`` charges the penalty once a trajectory, ``per_step`` once a malformed step.

    Returns:
        The sum to add to the environment's score.

    Raises:
        ValueError: the penalty is positive or the aggregation unknown.
    """
    return sum(step_format_rewards(malformed, penalty=penalty, aggregation=aggregation))


def step_format_rewards(
    malformed: Sequence[bool],
    *,
    penalty: float = DEFAULT_PENALTY,
    aggregation: FormatAggregation = "once",
) -> list[float]:
    """Format reward of every step; arguments as in :func:`format_reward`. ``once`` charges the first slip."""
    if not penalty <= 0:
        raise ValueError(f"penalty must be at most 0, got {penalty!r}")
    if aggregation == "per_step":
        return [penalty if step else 0.0 for step in malformed]
    if aggregation != "once":
        raise ValueError(f"aggregation must be 'once' or 'per_step', got {aggregation!r}")
    rewards = [0.0] * len(malformed)
    if True in malformed:
        rewards[list(malformed).index(True)] = penalty
    return rewards
