"""How far the policy has moved from the one that sampled a replayed success."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def ratio_metrics(
    rows: Iterable[tuple[torch.Tensor, torch.Tensor, torch.Tensor]], threshold: float | None
) -> dict[str, float]:
    r"""Statistics of the importance ratios :math:`\pi_\mathrm{old}(a|s) / \pi_\mathrm{stored}(a|s)`.

    Before truncation: what a ratio beyond the threshold loses is told by the share that is clipped.

    Args:
        rows: of every replayed row its log-probabilities under the present policy, the stored ones, and the
            mask of sampled tokens, each (L,).
        threshold: ratios are truncated to it (verl's ``rollout_is_threshold``); ``None``: they are not used.

    Returns:
        ``training/replay/is_ratio_mean``, ``…/is_ratio_max`` and, with a threshold, ``…/is_clip_fraction``,
        over all sampled tokens; nothing if there are none.
    """
    logs = [(now.float() - stored.float())[mask.bool()] for now, stored, mask in rows]
    ratios = torch.cat([*logs, torch.empty(0)]).clamp(-20.0, 20.0).exp()  # as verl: exp must stay finite
    if not len(ratios):
        return {}
    clipped = {} if threshold is None else {"clip_fraction": (ratios > threshold).float().mean().item()}
    values = {"ratio_mean": ratios.mean().item(), "ratio_max": ratios.max().item(), **clipped}
    return {f"training/replay/is_{name}": value for name, value in values.items()}
