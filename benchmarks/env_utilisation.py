"""How busy environments are kept: the pool's queue against rollouts in lockstep.

The same simulated trajectories, with heavy-tailed latencies, are played twice in one run: through
:class:`PoolState` with one coroutine a trajectory, and in batches with a barrier after every step, the way
a vectorised environment or a ``ray.get`` over all workers does it. The coroutines are real, their clock is
simulated: it jumps to the next event. So the numbers are exact and the same on every machine, and they speak
of scheduling alone: not of desktops, and not of the milliseconds that a call to a worker costs.

The bound is what no scheduler can beat: all work spread evenly over the environments, or the longest single
trajectory, whichever is longer. How much the barrier costs depends on the tail and on how many environments
wait for each other, so several of each are played; there is no single speed-up.

    python benchmarks/env_utilisation.py
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import selectors
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from verl_gui.envs.pool_state import PoolState

T = TypeVar("T")


class _JumpingSelector(selectors.SelectSelector):
    """Never waits: moves the clock on to where the event loop wants to be woken."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("the simulation is stuck: nobody sleeps, and not everybody is done")
        self.now += max(0.0, timeout)
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose seconds take no time."""

    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        """Simulated seconds since the start."""
        return self._clock.now


def simulate(coroutine: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """Run to the end; the result and the simulated seconds it took."""
    loop = SimulatedLoop()
    try:
        return loop.run_until_complete(coroutine), loop.time()
    finally:
        loop.close()


@dataclass(frozen=True)
class Workload:
    """Latencies in seconds of the simulated world; the defaults follow desktops in virtual machines.

    A step takes ``step_s`` times a Pareto variable (least value 1) of index ``tail``, at most ``limit_s``:
    the step time-out. An episode has 1 to ``max_steps`` steps.
    """

    trajectories: int = 1024
    envs: int = 32
    max_steps: int = 15
    step_s: float = 1.0
    reset_s: float = 5.0
    think_s: float = 0.5
    tail: float = 1.5
    limit_s: float = 120.0
    seed: int = 0

    def draw(self) -> list[list[float]]:
        """Durations a trajectory: its reset, then each step with the thinking before it."""
        rng = random.Random(self.seed)

        def heavy(least: float) -> float:
            return min(least * rng.paretovariate(self.tail), self.limit_s)

        return [
            [heavy(self.reset_s)]
            + [self.think_s + heavy(self.step_s) for _ in range(rng.randint(1, self.max_steps))]
            for _ in range(self.trajectories)
        ]


async def lockstep(trajectories: list[list[float]], envs: int) -> None:
    """Batches of ``envs`` trajectories; each step waits for the slowest environment of the batch."""
    for first in range(0, len(trajectories), envs):
        batch = trajectories[first : first + envs]
        for turn in range(max(map(len, batch))):
            await asyncio.gather(*(asyncio.sleep(t[turn]) for t in batch if turn < len(t)))


async def pooled(trajectories: list[list[float]], envs: int) -> float:
    """One coroutine a trajectory, each advancing by itself; utilisation as the pool reports it."""
    state = PoolState(envs, clock=asyncio.get_running_loop().time)
    for number in range(envs):
        state.add(f"env-{number}")
        state.ready(f"env-{number}")
    granted = {str(number): asyncio.Event() for number in range(len(trajectories))}

    def hand_out() -> None:
        for lease, _ in state.grants():
            granted[lease].set()

    async def play(lease: str, durations: list[float]) -> None:
        state.request(lease)
        hand_out()
        await granted[lease].wait()
        for seconds in durations:
            await asyncio.sleep(seconds)
        state.release(lease)
        hand_out()

    await asyncio.gather(*(play(str(number), durations) for number, durations in enumerate(trajectories)))
    return state.metrics.report()["env/utilisation"]


def measure(workload: Workload) -> dict[str, float]:
    """Play the workload both ways; times in simulated seconds."""
    trajectories = workload.draw()
    work_s = sum(map(sum, trajectories))
    bound_s = max(work_s / workload.envs, max(map(sum, trajectories)))
    _, lockstep_s = simulate(lockstep(trajectories, workload.envs))
    utilisation, pooled_s = simulate(pooled(trajectories, workload.envs))
    return {
        "lockstep_s": lockstep_s,
        "pooled_s": pooled_s,
        "bound_s": bound_s,
        "speed-up": lockstep_s / pooled_s,
        "of the bound": bound_s / pooled_s,
        "lockstep utilisation": work_s / workload.envs / lockstep_s,
        "pool utilisation": utilisation,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trajectories", type=int, default=Workload.trajectories)
    parser.add_argument("--envs", type=int, nargs="+", default=[8, 32, 64])
    parser.add_argument(
        "--tail", type=float, nargs="+", default=[1.2, 1.5, 2.0, 2.5], help="Pareto index; less is heavier"
    )
    arguments = parser.parse_args()
    header = False
    for envs, tail in itertools.product(arguments.envs, arguments.tail):
        workload = Workload(trajectories=arguments.trajectories, envs=envs, tail=tail)
        numbers = measure(workload)
        if not header:
            print("envs  tail  " + "  ".join(numbers))
            header = True
        row = "  ".join(f"{value:{len(name)}.2f}" for name, value in numbers.items())
        print(f"{envs:4}  {tail:4}  {row}", flush=True)


if __name__ == "__main__":
    main()
