"""A sampler knows what is special about the rows of its batch, but verl asks it before they have log-probs.

The trainer asks once more when it has them: ``prepare_batch`` before the advantages are computed, and
``batch_metrics`` afterwards, where the sampler has these methods.
"""

import functools
from types import ModuleType
from typing import Any

from verl_gui.compat._guard import VERL, Bridge


def _ask_the_sampler(trainer_base: ModuleType) -> None:
    original = trainer_base.PPOTrainer._compute_advantage

    @functools.wraps(original)
    def _compute_advantage(self: Any, batch: Any, metrics: dict[str, Any]) -> Any:
        prepare_batch = getattr(self.replay_buffer, "prepare_batch", None)
        if prepare_batch is not None:
            prepare_batch(batch)
        batch = original(self, batch, metrics)
        batch_metrics = getattr(self.replay_buffer, "batch_metrics", None)
        if batch_metrics is not None:
            metrics.update(batch_metrics(batch, self.config))
        return batch

    trainer_base.PPOTrainer._compute_advantage = _compute_advantage


BRIDGE = Bridge(
    name="batch-metrics",
    module="verl.trainer.ppo.v1.trainer_base",
    requires={"verl": VERL},
    twin="patches/verl/0014-sampler-look-at-its-batch-with-log-probs.patch",
    apply=_ask_the_sampler,
)
