"""verl's batch sampler with a shorter poll and the metrics of the environments.

Chosen by ``trainer.v1.sampler.custom_sampler.path=pkg://verl_gui.rollout.sampler`` and ``.name=GuiSampler``
(``GuiSamplerAsync`` for the asynchronous trainer modes). ``trainer.v1.sampler.sampler_kwargs.poll_interval``
sets the seconds between two looks at the queue; verl's own 2 s are a tenth of a step on a laptop.
"""

from __future__ import annotations

from typing import Any

import transfer_queue as tq
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from verl_gui.rollout.metrics import episode_metrics

DEFAULT_POLL_S = 0.1


def _last_outputs(keys: list[str]) -> list[str]:
    """Of keys ``{uid}_{session}_{index}``, the last output of every episode (one row an episode)."""
    last: dict[str, tuple[int, str]] = {}
    for key in keys:
        episode, _, index = key.rpartition("_")
        if episode not in last or int(index) > last[episode][0]:
            last[episode] = (int(index), key)
    return [key for _, key in last.values()]


class _GuiMetrics:
    """Adds the poll interval and the metrics to either of verl's samplers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        options = kwargs.get("sampler_kwargs") or {}
        kwargs["poll_interval"] = float(options.get("poll_interval", DEFAULT_POLL_S))
        super().__init__(*args, **kwargs)

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """As verl's, with ``reward/…`` and ``success/…`` of the batch among the metrics."""
        batch, metrics = super().sample(global_steps, partition_id, batch_size)  # type: ignore[misc]
        if partition_id == "train":
            data = tq.kv_batch_get(
                keys=_last_outputs(batch.keys), partition_id=partition_id, select_fields=["extra_fields"]
            )
            metrics.update(episode_metrics(data["extra_fields"].tolist()))
        return batch, metrics


class GuiSampler(_GuiMetrics, ReplayBuffer):
    """For ``trainer.v1.trainer_mode=sync``."""


class GuiSamplerAsync(_GuiMetrics, ReplayBufferAsync):
    """For the asynchronous trainer modes."""
