"""verl's batch sampler with a shorter poll, a bounded wait, and the metrics of the episodes.

Chosen by ``trainer.v1.sampler.custom_sampler.path=pkg://verl_gui.rollout.sampler`` and ``.name=GuiSampler``
(``GuiSamplerAsync`` for the asynchronous trainer modes). Under ``trainer.v1.sampler.sampler_kwargs``:

* ``poll_interval``: seconds between two looks at the queue; verl's own 2 s are a tenth of a step on a laptop.
* ``stall_timeout_s``: seconds without a single episode finishing before the run is given up. An agent loop
  worker that was killed leaves its episodes "running" for ever.
"""

from __future__ import annotations

import time
from typing import Any

import transfer_queue as tq
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from verl_gui.rollout.metrics import episode_metrics
from verl_gui.tasks.statistics import take_rows, training_stats

DEFAULT_POLL_S = 0.1
DEFAULT_STALL_S = 1800.0


class RolloutStalled(RuntimeError):
    """No episode has finished for too long; whoever played them is gone."""


def last_outputs(keys: list[str]) -> list[str]:
    """Of keys ``{uid}_{session}_{index}``, the last output of every episode (one row an episode)."""
    last: dict[str, tuple[int, str]] = {}
    for key in keys:
        episode, _, index = key.rpartition("_")
        if episode not in last or int(index) > last[episode][0]:
            last[episode] = (int(index), key)
    return [key for _, key in last.values()]


class StallClock:
    """Notices when a count stops changing.

    Args:
        limit_s: seconds that it may stay the same.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._seen: Any = None
        self._since = 0.0

    def look(self, state: Any, now: float) -> None:
        """Raises RolloutStalled when ``state`` has been the same for longer than the limit."""
        if state != self._seen:
            self._seen, self._since = state, now
        elif now - self._since > self.limit_s:
            raise RolloutStalled(
                f"no episode has finished for {now - self._since:.0f} s ({state}); agent loop workers are "
                "dead or stuck: look in the log for 'killed' (out of memory?) or an exception of theirs, "
                "or raise trainer.v1.sampler.sampler_kwargs.stall_timeout_s"
            )


class _GuiSampling:
    """What both samplers add to verl's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        options = kwargs.get("sampler_kwargs") or {}
        kwargs["poll_interval"] = float(options.get("poll_interval", DEFAULT_POLL_S))
        super().__init__(*args, **kwargs)
        self._stall_s = float(options.get("stall_timeout_s", DEFAULT_STALL_S))
        self._clock = StallClock(self._stall_s)

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """As verl's, with ``reward/…``, ``success/…`` and ``tasks/…`` among the metrics.

        Raises:
            RolloutStalled: nothing has finished for ``stall_timeout_s``.
        """
        self._clock = StallClock(self._stall_s)
        batch, metrics = super().sample(global_steps, partition_id, batch_size)  # type: ignore[misc]
        if partition_id == "train":
            data = tq.kv_batch_get(
                keys=last_outputs(batch.keys), partition_id=partition_id, select_fields=["extra_fields"]
            )
            rows = [getattr(row, "data", row) for row in data["extra_fields"]]
            metrics.update(episode_metrics(rows))
            metrics.update(
                take_rows(training_stats(), rows, step=global_steps, all_back=self.trainer_mode == "sync")  # type: ignore[attr-defined]
            )
        return batch, metrics

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        episodes = len(self.partitions[partition_id])  # type: ignore[attr-defined]
        running = len(self.running_keys[partition_id])  # type: ignore[attr-defined]
        pending = len(self.pending_keys[partition_id])  # type: ignore[attr-defined]
        state = f"{episodes} episodes finished, {running} groups running, {pending} waiting"
        self._clock.look(state, time.monotonic())
        return super()._wait_for_next_poll(partition_id, last_debug_time)  # type: ignore[misc]


class GuiSampler(_GuiSampling, ReplayBuffer):
    """For ``trainer.v1.trainer_mode=sync``."""


class GuiSamplerAsync(_GuiSampling, ReplayBufferAsync):
    """For the asynchronous trainer modes."""
