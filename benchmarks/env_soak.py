"""Drill: many episodes on a pool of real browsers while their parts are killed and stopped.

Eight MiniWoB++ environments play 200 episodes each with scripted experts. On the way, one after the other, an
Xvfb, a Chromium, a renderer and a worker process are killed (SIGKILL), and a Chromium and a worker process
are stopped (SIGSTOP), as often as there is time. What is measured: what the holders saw, how long the pool
took to be whole again, and what is left on the machine at the end. Any lost lease, any wrong score and any
leftover is an error.

    python benchmarks/env_soak.py
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import ray

from verl_gui.actions import Action
from verl_gui.envs.base import EnvFailure, StepResult
from verl_gui.envs.leftovers import owner_is_dead
from verl_gui.envs.miniwob import MiniwobEnv, oracle
from verl_gui.envs.pool import EnvPool, EnvPoolConfig, get_env_pool
from verl_gui.tasks.task import Task

TASKS = ("click-test", "click-button", "click-dialog-2", "click-tab", "click-checkboxes", "enter-text")
MOST_STEPS = 12
PATIENCE_S = 120.0
FAULTS = (
    ("Xvfb", "Xvfb", signal.SIGKILL),
    ("Chromium", "chromium", signal.SIGKILL),
    ("worker process", "worker", signal.SIGKILL),
    ("Chromium", "chromium", signal.SIGSTOP),
    ("renderer", "renderer", signal.SIGKILL),
    ("worker process", "worker", signal.SIGSTOP),
)


class ExpertMiniwob(MiniwobEnv):
    """Does what the page's expert would do, when told nothing else."""

    def step(self, actions: Sequence[Action]) -> StepResult:
        return super().step(actions or oracle(self))


def parts(kind: str) -> list[psutil.Process]:
    """The running processes of one kind, of all environments of this run."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            name, words = process.name(), process.cmdline()
            renderer = "--type=renderer" in words
            main = name.startswith("chrom") and not any(word.startswith("--type=") for word in words)
            kinds = {
                "Xvfb": name == "Xvfb",
                "chromium": main,
                "renderer": renderer,
                "worker": "GuiEnvWorker" in " ".join(words),
            }
            if kinds[kind] and process.status() != psutil.STATUS_STOPPED:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


class Soak:
    """The episodes, the faults and the count of both."""

    def __init__(self, pool: EnvPool) -> None:
        self.pool = pool
        self.outcomes: Counter[str] = Counter()
        self.numbers: Counter[str] = Counter()
        self.drills: list[tuple[str, str, float]] = []
        self.usable = 0.0
        self.longest_s = 0.0

    async def play(self, numbers: Iterator[int], until: float) -> None:
        """One episode after the other, as long as there are any and there is time."""
        for number in numbers:
            if time.monotonic() > until:
                break
            await self.episode(number)

    async def episode(self, number: int) -> None:
        task, seed = Task(id=f"miniwob:{TASKS[number % len(TASKS)]}"), number
        began = time.monotonic()
        try:
            async with self.pool.lease(timeout_s=PATIENCE_S, task=task, seed=seed) as env:
                await env.reset(task, seed=seed)
                for _ in range(MOST_STEPS):
                    if (await env.step([])).terminated:
                        break
                score = await env.evaluate()
            self.outcomes["solved" if score == 1.0 else "NOT SOLVED"] += 1
        except EnvFailure as failure:
            self.outcomes[f"invalid ({failure.kind})"] += 1
        self.longest_s = max(self.longest_s, time.monotonic() - began)

    async def watch(self) -> None:
        """Keep the counts of the pool, which begin anew with every look."""
        while True:
            numbers = await self.pool.metrics()
            self.usable = numbers["env/workers"]
            for name, value in numbers.items():
                if name.startswith(("env/count/", "env/failures/")):
                    self.numbers[name] += int(value)
            await asyncio.sleep(0.1)

    async def break_things(self) -> None:
        """One fault after the other, each when the pool is whole again."""
        size = float(self.pool.config.num_envs + self.pool.config.spares)
        for what, kind, number in FAULTS * 1000:
            await asyncio.sleep(3.0)
            before = self._failures()
            victims = parts(kind)
            if not victims:
                continue
            began = time.monotonic()
            os.kill(victims[0].pid, number)
            # A fault between two episodes is repaired by the next reset, and the pool never hears of it.
            while time.monotonic() - began < PATIENCE_S:
                await asyncio.sleep(0.2)
                if self.usable >= size and len(parts(kind)) >= len(victims):
                    break
            seen = ", ".join(self._failures() - before) or "nothing: the next reset repaired it"
            self.drills.append((f"{what}: {number.name}", seen, time.monotonic() - began))

    def _failures(self) -> Counter[str]:
        return Counter(
            {
                name.removeprefix("env/failures/"): count
                for name, count in self.numbers.items()
                if name.startswith("env/failures/")
            }
        )


async def soak(pool: EnvPool, episodes: int, most_s: float) -> Soak:
    """Play, break and count; twice as many players as environments, so that some always wait."""
    run = Soak(pool)
    helpers = [asyncio.create_task(run.watch())]
    while run.usable < pool.config.num_envs:
        await asyncio.sleep(0.1)
    helpers.append(asyncio.create_task(run.break_things()))
    numbers, until = iter(range(episodes)), time.monotonic() + most_s
    await asyncio.gather(*(run.play(numbers, until) for _ in range(2 * pool.config.num_envs)))
    helpers[1].cancel()
    deadline = time.monotonic() + PATIENCE_S
    while run.usable < pool.config.num_envs and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    helpers[0].cancel()
    await asyncio.gather(*helpers, return_exceptions=True)
    return run


def left_behind() -> dict[str, Any]:
    """What dead processes left on this machine."""
    places = [Path(tempfile.gettempdir()), Path("/dev/shm"), Path("/sys/fs/cgroup")]
    places += [Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup/pids")]
    return {
        "processes": [kind for kind in ("Xvfb", "chromium", "renderer", "worker") if parts(kind)],
        "directories": [
            str(path) for place in places for path in place.glob("verl-gui-*") if owner_is_dead(path.name)
        ],
        "mounts": [line for line in Path("/proc/mounts").read_text().splitlines() if "verl-gui" in line],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--episodes", type=int, default=200, help="for each environment")
    parser.add_argument("--most-s", type=float, default=540.0, help="no episode begins after that")
    parser.add_argument("--spares", type=int, default=0)
    parser.add_argument("--pause", action="store_true", help="stop the programs between two steps")
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20)
    config = EnvPoolConfig(
        "env_soak:ExpertMiniwob",
        num_envs=arguments.envs,
        spares=arguments.spares,
        pause=arguments.pause,
        heartbeat_s=5.0,
        step_timeout_s=15.0,
        options={"call_timeout_s": 10.0},
    )
    pool = get_env_pool(config)
    began = time.monotonic()
    run = asyncio.run(soak(pool, arguments.envs * arguments.episodes, arguments.most_s))
    seconds = time.monotonic() - began
    asyncio.run(pool.close())
    deadline = time.monotonic() + 20.0  # Ray takes seconds to kill a process that is stopped
    while any((left := left_behind()).values()) and time.monotonic() < deadline:
        time.sleep(0.5)
    ray.shutdown()
    steps = run.numbers["env/count/step"]
    episodes = sum(run.outcomes.values())
    print(f"{episodes} episodes, {steps} steps in {seconds:.0f} s; longest wait {run.longest_s:.1f} s")
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(run.outcomes.items())))
    size = config.num_envs + config.spares
    print(f"usable at the end: {run.usable:.0f} of {size}; failures: {dict(run._failures())}")
    print(f"\n{'fault':32} {'what the pool saw':36} whole again after s")
    for what, seen, recovery_s in run.drills:
        print(f"{what:32} {seen:36} {recovery_s:8.1f}")
    print(f"\nleft behind: {left}")
    wrong = run.outcomes["NOT SOLVED"] or run.usable < config.num_envs or any(left.values())
    raise SystemExit(int(bool(wrong)))


if __name__ == "__main__":
    main()
