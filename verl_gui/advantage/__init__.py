"""Advantage estimators for groups of rollouts, as pure functions of tensors.

verl finds them by name (``algorithm.adv_estimator=arpo``); docs/algorithms.md has the equations.
"""

from verl_gui.advantage.estimators import ESTIMATORS, arpo_advantage, arpo_batch_std_advantage
from verl_gui.advantage.groups import AdvantageError, GroupedScores

__all__ = [
    "ESTIMATORS",
    "AdvantageError",
    "GroupedScores",
    "arpo_advantage",
    "arpo_batch_std_advantage",
]
