"""In which order task instances are trained on: mixtures of sources, and rest for hopeless tasks. Pure.

The order is endless and does not know epochs, so nothing can go wrong at their borders: where a checkpoint
was saved, the next instance follows, whether the loader was in the middle of an epoch or at its end.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from verl_gui.tasks.statistics import TaskRecord


@dataclass(eq=False)
class _Pool:
    """One source: its instances are gone through in a new random order each time."""

    members: list[int]
    weight: float
    drawn: int = 0  # instances drawn in all
    passes: int = 0
    order: list[int] = field(default_factory=list)  # what is left of this pass, the next one last


class Curriculum:
    """Draws instances.

    * Each draw comes from the source that is furthest behind its share, so shares hold exactly, not by luck.
    * Within a source every instance comes once before one comes twice.
    * A task for which ``resting`` is true is passed over until the next pass. If a whole source rests, it is
      drawn from all the same: training never waits for tasks.

    Args:
        names: names of all instances; their order is part of the state's meaning.
        pools: for each source, the positions of its instances in ``names`` and its weight.
        resting: whether an instance (by position) rests now.
        seed: of the random orders.

    Raises:
        ValueError: a source is empty, or a weight is not positive.
    """

    def __init__(
        self,
        names: Sequence[str],
        pools: Sequence[tuple[Sequence[int], float]],
        *,
        resting: Callable[[int], bool] = lambda _: False,
        seed: int = 0,
    ) -> None:
        for members, weight in pools:
            if not members or not weight > 0:
                raise ValueError(f"a source of {len(members)} instances with weight {weight}")
        self._digest = digest(names)
        self._pools = [_Pool(list(members), float(weight)) for members, weight in pools]
        self._resting, self._seed = resting, seed

    def draw(self) -> int:
        """Position of the next instance."""
        pool = min(self._pools, key=lambda p: (p.drawn + 1) / p.weight)
        pool.drawn += 1
        passed_over = None
        for _ in range(2 * len(pool.members)):
            if not pool.order:
                pool.order = self._shuffled(pool)
                pool.passes += 1
            member = pool.order.pop()
            if not self._resting(member):
                return member
            passed_over = member if passed_over is None else passed_over
        assert passed_over is not None
        return passed_over

    def state_dict(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        pools = [{"drawn": p.drawn, "passes": p.passes, "order": list(p.order)} for p in self._pools]
        return {"digest": self._digest, "pools": pools}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken.

        Raises:
            ValueError: it was taken with other tasks or sources.
        """
        if state["digest"] != self._digest or len(state["pools"]) != len(self._pools):
            raise ValueError(
                "the checkpoint was made with other tasks: give the same data.train_files, task list and "
                "gui.tasks.weights, or start the data anew by deleting data.pt in the checkpoint"
            )
        for pool, saved in zip(self._pools, state["pools"], strict=True):
            pool.drawn, pool.passes, pool.order = saved["drawn"], saved["passes"], list(saved["order"])

    def _shuffled(self, pool: _Pool) -> list[int]:
        order = list(pool.members)
        random.Random(f"{self._seed} {self._pools.index(pool)} {pool.passes}").shuffle(order)
        return order


def digest(names: Sequence[str]) -> str:
    """Tells one list of instances from another."""
    return blake2b("\n".join(names).encode(), digest_size=16).hexdigest()


def rests(record: TaskRecord, *, step: int, failures: int, cooldown_steps: int) -> bool:
    """Whether a task has a rest: it failed too often in a row, not long ago.

    Args:
        record: what is known of it.
        step: training step now.
        failures: failed attempts in a row that earn a rest; 0 for none.
        cooldown_steps: training steps that it lasts, counted from the last attempt.
    """
    return 0 < failures <= record.failures_in_a_row and step < record.last_step + cooldown_steps
