"""What an episode is worth: the environment's score plus the format penalty."""

from __future__ import annotations

from dataclasses import dataclass

from verl_gui.config import RewardConfig


@dataclass(frozen=True)
class Reward:
    """The parts of a reward. ``score`` is the environment's verdict, ``format`` at most 0."""

    score: float
    format: float

    @property
    def total(self) -> float:
        """What training sees."""
        return self.score + self.format


def episode_reward(score: float, *, malformed: int, answers: int, config: RewardConfig) -> Reward:
    """Reward of one episode (ARPO, section 3.2: task reward plus action format reward).

    Args:
        score: the environment's verdict in [0, 1].
        malformed: number of answers that could not be parsed.
        answers: number of answers.
        config: how much malformed answers cost.

    Raises:
        ValueError: the score is outside [0, 1], or more answers are malformed than there are.
    """
    if not 0.0 <= score <= 1.0:
        raise ValueError(f"score {score}: expected a number in [0, 1]")
    if not 0 <= malformed <= answers:
        raise ValueError(f"{malformed} of {answers} answers are malformed")
    if not malformed:
        return Reward(score, 0.0)
    share = 1.0 if config.format_aggregation == "once" else malformed / answers
    return Reward(score, config.format_penalty * share)
