"""How many rollouts each prompt of a batch gets.

A group whose rollouts all succeed teaches nothing, and on a task that is nearly always solved most groups are
such. DART (arXiv 2509.23866) gives those tasks fewer rollouts. Here an allocator says what it wants,
and :func:`within` makes the batch's total fit its bounds.

To add one, decorate a class with :func:`register_allocator` and name it in ``gui.tasks.allocation.name``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from verl_gui.config import AllocationConfig
from verl_gui.tasks.statistics import TaskStats


class RolloutAllocator(Protocol):
    """Decides on one batch. Pure: the same statistics give the same numbers."""

    def allocate(self, task_ids: Sequence[str], stats: TaskStats) -> list[int]:
        """Rollouts wanted for each prompt, in order; bounds are kept by the caller."""
        ...


AllocatorFactory = Callable[[AllocationConfig, int], RolloutAllocator]
F = TypeVar("F", bound=AllocatorFactory)

_ALLOCATORS: dict[str, AllocatorFactory] = {}


def register_allocator(name: str) -> Callable[[F], F]:
    """Decorator that makes an allocator known by name; it is built from the configuration and ``rollout.n``.

    Raises:
        ValueError: the name is taken.
    """

    def register(factory: F) -> F:
        if _ALLOCATORS.setdefault(name, factory) is not factory:
            raise ValueError(f"an allocator named {name!r} is registered already")
        return factory

    return register


def make_allocator(config: AllocationConfig, n: int) -> RolloutAllocator:
    """The allocator of the configuration.

    Args:
        config: ``gui.tasks.allocation``.
        n: ``actor_rollout_ref.rollout.n``, the rollouts of a prompt by default.

    Raises:
        ValueError: no allocator of this name.
    """
    if config.name not in _ALLOCATORS:
        raise ValueError(f"gui.tasks.allocation.name={config.name!r}: known are {sorted(_ALLOCATORS)}")
    return _ALLOCATORS[config.name](config, n)


@register_allocator("fixed")
class Fixed:
    """The same number for every prompt."""

    def __init__(self, config: AllocationConfig, n: int) -> None:
        self._n = n

    def allocate(self, task_ids: Sequence[str], stats: TaskStats) -> list[int]:
        """See :class:`RolloutAllocator`."""
        return [self._n] * len(task_ids)


@register_allocator("success_rate")
class SuccessRate:
    """Fewer rollouts for tasks that are mostly solved.

    All of them up to the success rate ``easy_above``, then in a straight line down to ``n_min`` at rate 1. A
    task with fewer than ``min_attempts`` recent attempts gets all: little is known of it.
    """

    def __init__(self, config: AllocationConfig, n: int) -> None:
        self._config, self._n = config, n

    def allocate(self, task_ids: Sequence[str], stats: TaskStats) -> list[int]:
        """See :class:`RolloutAllocator`."""
        return [self._wanted(stats, task_id) for task_id in task_ids]

    def _wanted(self, stats: TaskStats, task_id: str) -> int:
        record, rate = stats[task_id], stats[task_id].rate
        above = self._config.easy_above
        if rate is None or len(record.recent) < self._config.min_attempts or rate <= above:
            return self._n
        return round(self._n - (self._n - self._config.n_min) * (rate - above) / (1.0 - above))


def within(wanted: Sequence[int], *, least: int, most: int, total_min: int, total_max: int) -> list[int]:
    """The numbers nearest to ``wanted`` that keep all bounds.

    Too large a total is cut where the numbers are largest, too small a one is filled where they are smallest,
    one by one and the first ones first, so the order among the prompts stays.

    Args:
        wanted: rollouts of each prompt.
        least, most: bounds for each. total_min, total_max: bounds for the sum.

    Raises:
        ValueError: the bounds contradict each other.
    """
    count = len(wanted)
    if least > most or total_min > total_max or least * count > total_max or most * count < total_min:
        raise ValueError(
            f"{count} prompts of {least} to {most} rollouts cannot have {total_min} to {total_max} in all"
        )
    numbers = [min(max(n, least), most) for n in wanted]
    while sum(numbers) > total_max:
        numbers[max(range(count), key=lambda i: numbers[i])] -= 1
    while sum(numbers) < total_min:
        numbers[min(range(count), key=lambda i: numbers[i])] += 1
    return numbers
