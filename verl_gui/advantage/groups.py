"""The scores of a batch, by group: which rows count, and what their means and deviations are."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import torch
from torch import Tensor

ROUNDING = 4 * torch.finfo(torch.float32).eps
"""Scores of a group that differ by less than this share of their size are equal: the rest is rounding."""


class AdvantageError(ValueError):
    """Advantages cannot be computed from what was given; the message says which value is wrong."""


class GroupedScores:
    """The score of each row of a batch, and statistics of its group.

    A row is *valid* when it has a sampled token. The others (padding, rejected rows) and groups with fewer
    than two valid rows are outside every statistic.

    Attributes:
        scores: (B,) float64, the sum of each row's rewards; 0 where the row is not valid.
        valid: (B,) bool.
        group: (B,) int64, number of each row's group.
        comparable: (B,) bool, valid rows whose group has at least two of them.

    Args:
        token_level_rewards: (B, L), real numbers.
        response_mask: (B, L), non-zero on sampled tokens.
        index: B group names (verl's ``uid``, one a prompt instance).

    Raises:
        AdvantageError: shapes disagree, or the reward of a valid row is NaN or infinite.
    """

    def __init__(self, token_level_rewards: Tensor, response_mask: Tensor, index: Iterable[Hashable]) -> None:
        if token_level_rewards.ndim != 2 or token_level_rewards.shape != response_mask.shape:
            raise AdvantageError(
                f"token_level_rewards {tuple(token_level_rewards.shape)} and response_mask "
                f"{tuple(response_mask.shape)}: expected the same shape (rows, tokens)"
            )
        names = index.tolist() if isinstance(index, Tensor) else list(index)
        rows = len(token_level_rewards)
        if len(names) != rows:
            raise AdvantageError(f"{rows} rows of rewards but {len(names)} group names")
        device = token_level_rewards.device
        self.valid = (response_mask != 0).any(dim=-1)
        scores = token_level_rewards.detach().to(torch.float64).sum(dim=-1)
        broken = torch.nonzero(self.valid & ~torch.isfinite(scores)).flatten().tolist()
        if broken:
            row = broken[0]
            raise AdvantageError(
                f"the reward of row {row} (group {names[row]!r}) is {scores[row].item()}; {len(broken)} of "
                f"{rows} rows are not finite. Rewards must be finite numbers: look at what computed them."
            )
        self.scores = torch.where(self.valid, scores, 0.0)
        numbers: dict[Hashable, int] = {}
        self.group = torch.tensor(
            [numbers.setdefault(name, len(numbers)) for name in names], dtype=torch.int64, device=device
        )
        self._groups = len(numbers)
        self._size = self._per_group(self.valid.to(torch.float64), "sum")
        self.comparable = self.valid & (self._size >= 2)

    def mean(self) -> Tensor:
        """(B,) float64, the mean score of the valid rows of each row's group; 0 for a group without any."""
        return self._per_group(self.scores, "sum") / self._size.clamp(min=1)

    def std(self) -> Tensor:
        """(B,) float64, their standard deviation (n - 1); 0 for a group with fewer than two."""
        deviations = torch.where(self.valid, self.scores - self.mean(), 0.0)
        return (self._per_group(deviations.square(), "sum") / (self._size - 1).clamp(min=1)).sqrt()

    def batch_std(self) -> Tensor:
        """() float64, standard deviation (n - 1) of the scores of all comparable rows of the batch."""
        scores = self.scores[self.comparable]
        return scores.std() if len(scores) > 1 else self.scores.new_zeros(())

    def all_equal(self) -> Tensor:
        """(B,) bool, whether the valid rows of each row's group have the same score (up to rounding)."""
        most = self._per_group(torch.where(self.valid, self.scores, -torch.inf), "amax")
        least = self._per_group(torch.where(self.valid, self.scores, torch.inf), "amin")
        return ~(most - least > ROUNDING * torch.maximum(most.abs(), least.abs()))

    def _per_group(self, values: Tensor, how: str) -> Tensor:
        """Reduce the (B,) values over each group and give every row the result of its own."""
        out = values.new_zeros(self._groups)
        out = out.scatter_reduce(0, self.group, values, reduce=how, include_self=how == "sum")
        return out[self.group]
