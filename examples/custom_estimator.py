"""An advantage estimator of your own: how much better than the group's median, clipped to [-1, 1].

Import this module in the trainer (``VERL_USE_EXTERNAL_MODULES=examples.custom_estimator``), and choose it
with ``algorithm.adv_estimator=median``.
"""

from __future__ import annotations

from typing import Any

import torch
from verl.trainer.ppo.core_algos import register_adv_est


@register_adv_est("median")
def median_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Any,
    config: Any = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns, (rows, tokens); ``index`` names the group of every row.

    Rows without a sampled token are padding: they are in no group.
    """
    scores = token_level_rewards.sum(dim=-1)
    sampled = response_mask.bool().any(dim=-1)
    advantages = torch.zeros_like(scores)
    for group in set(index):
        rows = torch.tensor([other == group for other in index]) & sampled
        if rows.sum() >= 2:  # alone, there is nothing to compare with
            advantages[rows] = (scores[rows] - scores[rows].median()).clamp(-1, 1)
    spread = advantages.unsqueeze(-1) * response_mask
    return spread, spread
