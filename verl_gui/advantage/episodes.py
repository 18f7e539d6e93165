"""Episodes that were split into several outputs: one advantage for all of them.

When screenshots leave the context, the agent loop begins a new token sequence, so one episode becomes several
rows of the batch. The episode is compared with its group once, by one of its rows; the others take its
advantage over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from verl_gui.advantage.groups import AdvantageError


def speaking_rows(keys: Sequence[str], response_mask: Tensor) -> list[int]:
    """For each row, the row that stands for its episode: the last one of the episode with a sampled token.

    (The last one of all where no row of the episode has any.)

    Args:
        keys: B names of rows, ``{uid}_{session}_{output}``; the uid may contain underscores.
        response_mask: (B, L), non-zero on sampled tokens.

    Raises:
        AdvantageError: a key of another form.
    """
    sampled = (response_mask != 0).any(dim=-1).tolist()
    speakers: dict[str, tuple[bool, int, int]] = {}
    episodes = []
    for row, key in enumerate(keys):
        episode, _, output = key.rpartition("_")
        if not output.isdecimal() or "_" not in episode:
            raise AdvantageError(f"row {row} is called {key!r}: expected {{uid}}_{{session}}_{{output}}")
        episodes.append(episode)
        candidate = (sampled[row], int(output), row)
        speakers[episode] = max(speakers.get(episode, candidate), candidate)
    return [speakers[episode][2] for episode in episodes]


def share_advantages(
    spoken: Tensor, spoken_mask: Tensor, speaker: Sequence[int], response_mask: Tensor, *, estimator: Any
) -> Tensor:
    """Give every row the advantage of the row that stands for its episode.

    Args:
        spoken: (E, L) advantages, one row an episode. spoken_mask: (E, L), non-zero on its sampled tokens.
        speaker: for each of the B rows, the row of ``spoken`` to take over.
        response_mask: (B, L), non-zero on sampled tokens.
        estimator: name of the estimator, for the message.

    Returns:
        (B, L), one number a row on its sampled tokens.

    Raises:
        AdvantageError: the estimator values tokens differently, so that there is no one number to share.
    """
    sampled = spoken_mask != 0
    first = sampled.to(torch.int64).argmax(dim=1, keepdim=True)
    shared = spoken.gather(1, first)
    uneven = sampled & ~torch.isclose(spoken, shared, rtol=1e-4, atol=1e-6)
    if uneven.any():
        raise AdvantageError(
            f"algorithm.adv_estimator={estimator} gives the tokens of a row different advantages; episodes "
            "that were split into several outputs share one. Use an estimator of whole episodes (arpo, grpo, "
            "rloo), or raise gui.rollout.history_images to gui.rollout.max_steps so that nothing is split."
        )
    return shared[list(speaker)] * (response_mask != 0)
