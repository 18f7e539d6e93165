"""The estimators ``arpo`` and ``arpo_batch_std``: how much better a rollout was than its group.

ARPO (arXiv 2505.16282, section 3.2) is GRPO over groups in which a stored success may stand in for a failed
rollout: the success is an ordinary member of the group. What differs from verl's own ``grpo`` are the edges:
equal rewards are worth exactly 0, a rollout without comparison is worth 0, and rows that hold no sampled
token count nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch
from torch import Tensor

from verl_gui.advantage.groups import GroupedScores

EPSILON = 1e-6  # as in verl's grpo: keeps the quotient finite


def arpo_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Iterable[Hashable],
    config: Any = None,
    *,
    norm_adv_by_std_in_grpo: bool | None = None,
    epsilon: float = EPSILON,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    r"""ARPO's group-relative advantage, the same for every sampled token of a row.

    .. math:: A_i = \frac{R_i - \mathrm{mean}(R_1..R_G)}{\mathrm{std}(R_1..R_G) + \epsilon}

    without the quotient where ``norm_adv_by_std_in_grpo`` is off. On groups of two or more valid rows with
    different rewards these are the numbers of verl's ``grpo``.

    Args:
        token_level_rewards: (B, L); a row's score is their sum.
        response_mask: (B, L), non-zero on sampled tokens. A row without any is padding or was rejected: it
            moves no baseline.
        index: B group names (verl's ``uid``).
        config: verl's ``algorithm`` node; ``norm_adv_by_std_in_grpo`` is read from it (default true).
        norm_adv_by_std_in_grpo: takes precedence over ``config``.
        epsilon: added to the standard deviation.
        **kwargs: whatever else verl hands to estimators; not needed here.

    Returns:
        Advantages and returns, both (B, L) and equal, 0 outside ``response_mask``.

    Raises:
        AdvantageError: shapes disagree, or a reward is NaN or infinite.
    """
    scored = GroupedScores(token_level_rewards, response_mask, index)
    scale = scored.std() + epsilon if _normalised(config, norm_adv_by_std_in_grpo) else 1.0
    return _spread(_compared(scored, scale), token_level_rewards, response_mask)


def arpo_batch_std_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Iterable[Hashable],
    config: Any = None,
    *,
    norm_adv_by_std_in_grpo: bool | None = None,
    epsilon: float = EPSILON,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    r"""As :func:`arpo_advantage`, but divided by the deviation of the batch (arXiv 2508.08221, section 4).

    .. math:: A_i = \frac{R_i - \mathrm{mean}(R_1..R_G)}{\mathrm{std}(R_1..R_N) + \epsilon}

    N are all rows of the batch that have something to be compared with. A group in which one of eight fails
    no longer pushes harder than one that is half solved.

    Arguments, results and errors as for :func:`arpo_advantage`.
    """
    scored = GroupedScores(token_level_rewards, response_mask, index)
    scale = scored.batch_std() + epsilon if _normalised(config, norm_adv_by_std_in_grpo) else 1.0
    return _spread(_compared(scored, scale), token_level_rewards, response_mask)


ESTIMATORS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "arpo": arpo_advantage,
    "arpo_batch_std": arpo_batch_std_advantage,
}
"""Names for ``algorithm.adv_estimator``."""


def _compared(scored: GroupedScores, scale: Tensor | float) -> Tensor:
    """(B,) score minus the group's mean over ``scale``; exactly 0 without comparison or difference."""
    differs = scored.comparable & ~scored.all_equal()
    return torch.where(differs, (scored.scores - scored.mean()) / scale, 0.0)


def _normalised(config: Any, given: bool | None) -> bool:
    if given is not None:
        return given
    return bool(config.get("norm_adv_by_std_in_grpo", True)) if config is not None else True


def _spread(advantages: Tensor, rewards: Tensor, response_mask: Tensor) -> tuple[Tensor, Tensor]:
    """The (B,) advantages on the sampled tokens, in the precision of the rewards."""
    dtype = rewards.dtype if rewards.is_floating_point() else torch.float32
    spread = advantages.to(dtype).unsqueeze(-1) * (response_mask != 0)
    return spread, spread
