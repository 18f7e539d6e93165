"""Notices when no episode will finish any more. Imports neither torch nor verl."""

from __future__ import annotations

from typing import Any

import ray

WORKER_CHECK_S = 5.0
WORKER_PREFIX = "agent_loop_worker_"  # verl's names for its agent loop workers


class RolloutStalled(RuntimeError):
    """No episode finishes any more: whoever played them is gone, or no environment works."""


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


class WorkerWatch:
    """Notices agent loop workers that die.

    Args:
        period_s: seconds between two looks.
    """

    def __init__(self, period_s: float = WORKER_CHECK_S) -> None:
        self._period_s = period_s
        self._looked = 0.0
        self._known: set[str] = set()

    def look(self, now: float) -> None:
        """Raises RolloutStalled when a worker that was there is gone."""
        if now - self._looked < self._period_s:
            return
        self._looked = now
        # Ray forgets the name of a dead actor, so no worker has to answer for this.
        alive = {name for name in ray.util.list_named_actors() if name.startswith(WORKER_PREFIX)}
        if gone := sorted(self._known - alive):
            raise RolloutStalled(
                f"{len(gone)} of {len(self._known)} agent loop workers died ({', '.join(gone)}) with the "
                "episodes they were playing; look in the log for 'killed' (out of memory?) and start the run "
                "again: it goes on from the last checkpoint (trainer.resume_mode=auto)"
            )
        self._known |= alive
