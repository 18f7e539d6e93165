"""How many answers an episode of a task may have, learnt from its successes.

Most failures of a desktop agent run into the step limit, and the batch waits for them. A task that has been
solved in six steps at most is given not much more than that (DART, arXiv 2509.23866).
"""

from __future__ import annotations

import math

from verl_gui.config import StepLimitConfig
from verl_gui.tasks.statistics import TaskRecord


def step_limit(record: TaskRecord, config: StepLimitConfig, max_steps: int) -> int:
    """The limit for the next episodes of a task.

    Args:
        record: what is known of it.
        config: ``gui.tasks.step_limit``.
        max_steps: ``gui.rollout.max_steps``; never exceeded, and the limit until there are enough successes.
    """
    if config.slack is None or record.successes < config.min_successes:
        return max_steps
    return min(max_steps, max(config.least, math.ceil(record.longest_success * config.slack)))
