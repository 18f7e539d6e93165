"""verl's batch sampler with a shorter poll, a bounded wait, and the metrics of the episodes.

Chosen by ``trainer.v1.sampler.custom_sampler.path=pkg://verl_gui.rollout.sampler`` and ``.name=GuiSampler``
(``GuiSamplerAsync`` for the asynchronous trainer modes). Under ``trainer.v1.sampler.sampler_kwargs``:

* ``poll_interval``: seconds between two looks at the queue; verl's own 2 s are a tenth of a step on a laptop.
* ``stall_timeout_s``: seconds without a single episode finishing before the run is given up.
* ``short_groups``: what becomes of groups that environment faults left with fewer than two valid episodes.
  ``mask`` (default): their rows are left out of the batch; should nothing remain, new prompts are sampled.
  ``refill``: new prompts are sampled in their place (in the sync mode this needs
  ``trainer.v1.sampler.sync_refill_failed_groups=True``, which makes verl fetch prompts one by one).
  ``keep``: nothing; the right choice with one rollout a prompt.

An agent loop worker that dies leaves its episodes "running" for ever; the run ends with an error as soon as
that is noticed.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Any

import transfer_queue as tq
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from verl_gui.envs.pool import pool_metrics
from verl_gui.report.trackers import track_episodes
from verl_gui.rollout.groups import SHORT_GROUP_POLICIES, short_groups, to_replace
from verl_gui.rollout.metrics import episode_metrics
from verl_gui.rollout.stall import RolloutStalled, StallClock, WorkerWatch
from verl_gui.tasks.statistics import take_rows, training_stats

logger = logging.getLogger(__name__)

DEFAULT_POLL_S = 0.1
DEFAULT_STALL_S = 1800.0
HOPELESS_BATCHES = 3  # so many batches in a row with nothing but short groups: something is wrong for good


def last_outputs(keys: list[str]) -> list[str]:
    """Of keys ``{uid}_{session}_{index}``, the last output of every episode (one row an episode)."""
    last: dict[str, tuple[int, str]] = {}
    for key in keys:
        episode, _, index = key.rpartition("_")
        if episode not in last or int(index) > last[episode][0]:
            last[episode] = (int(index), key)
    return [key for _, key in last.values()]


class _GuiSampling:
    """What both samplers add to verl's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        options = kwargs.get("sampler_kwargs") or {}
        kwargs["poll_interval"] = float(options.get("poll_interval", DEFAULT_POLL_S))
        super().__init__(*args, **kwargs)
        self._stall_s = float(options.get("stall_timeout_s", DEFAULT_STALL_S))
        self._clock = StallClock(self._stall_s)
        self._watch = WorkerWatch()
        self._short_policy = str(options.get("short_groups", "mask"))
        if self._short_policy not in SHORT_GROUP_POLICIES:
            raise ValueError(
                f"trainer.v1.sampler.sampler_kwargs.short_groups={self._short_policy!r}: expected one of "
                f"{', '.join(SHORT_GROUP_POLICIES)}"
            )
        self._batch_size = 0
        self._hopeless = 0

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """As verl's, with ``reward/…``, ``success/…``, ``tasks/…`` and ``env/…`` among the metrics.

        Raises:
            RolloutStalled: nothing has finished for ``stall_timeout_s``, or an agent loop worker has died.
        """
        self._clock = StallClock(self._stall_s)
        self._batch_size, self._hopeless = batch_size, 0
        batch, metrics = super().sample(global_steps, partition_id, batch_size)  # type: ignore[misc]
        if partition_id == "train":
            if self._short_policy == "mask":
                metrics["training/short_groups"] = self._leave_out_short_groups(batch)
            metrics.update(pool_metrics())
            data = tq.kv_batch_get(
                keys=last_outputs(batch.keys), partition_id=partition_id, select_fields=["extra_fields"]
            )
            rows = [getattr(row, "data", row) for row in data["extra_fields"]]
            metrics.update(episode_metrics(rows))
            metrics.update(
                take_rows(training_stats(), rows, step=global_steps, all_back=self.trainer_mode == "sync")  # type: ignore[attr-defined]
            )
        track_episodes(global_steps)
        return batch, metrics

    def _terminal_eviction_reasons(
        self, global_steps: int, partition_id: str
    ) -> tuple[set[str], set[str], set[str], Counter[float]]:
        """As verl's; groups that short_groups says are to be replaced count as failed."""
        stale, filtered, failed, counts = super()._terminal_eviction_reasons(global_steps, partition_id)  # type: ignore[misc]
        if partition_id == "val":
            return stale, filtered, failed, counts
        finished = self.finished_keys[partition_id] | self.failure_keys[partition_id]  # type: ignore[attr-defined]
        finished = finished - stale - filtered - failed
        short = short_groups(finished, self.partitions[partition_id])  # type: ignore[attr-defined]
        replaced = to_replace(finished, short, policy=self._short_policy, batch_size=self._batch_size)
        if replaced:
            logger.warning("%d groups with fewer than two valid episodes are replaced", len(replaced))
        if replaced and replaced == finished and len(finished) >= self._batch_size:
            self._hopeless += 1
            if self._hopeless >= HOPELESS_BATCHES:
                raise RolloutStalled(
                    f"no group with two valid episodes in {self._hopeless} batches in a row: environments "
                    "fail (see env/failures/… and the warnings in the log); with one rollout a prompt, set "
                    "trainer.v1.sampler.sampler_kwargs.short_groups=keep"
                )
        return stale, filtered, failed | replaced, counts

    def _leave_out_short_groups(self, batch: Any) -> int:
        """Remove the rows of short groups from a batch and from the queue; how many groups there were."""
        uids = {key.split("_")[0] for key in batch.keys}
        short = short_groups(uids, batch.keys)
        rows = [key.split("_")[0] not in short for key in batch.keys]
        if short:
            left_out = [key for key, kept in zip(batch.keys, rows, strict=True) if not kept]
            tq.kv_clear(partition_id=batch.partition_id, keys=left_out)
            batch.tags = [tag for tag, kept in zip(batch.tags, rows, strict=True) if kept]
            batch.keys = [key for key, kept in zip(batch.keys, rows, strict=True) if kept]
        return len(short)

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        episodes = len(self.partitions[partition_id])  # type: ignore[attr-defined]
        running = len(self.running_keys[partition_id])  # type: ignore[attr-defined]
        pending = len(self.pending_keys[partition_id])  # type: ignore[attr-defined]
        state = f"{episodes} episodes finished, {running} groups running, {pending} waiting"
        self._clock.look(state, time.monotonic())
        self._watch.look(time.monotonic())
        return super()._wait_for_next_poll(partition_id, last_debug_time)  # type: ignore[misc]


class GuiSampler(_GuiSampling, ReplayBuffer):
    """For ``trainer.v1.trainer_mode=sync``."""


class GuiSamplerAsync(_GuiSampling, ReplayBufferAsync):
    """For the asynchronous trainer modes."""
