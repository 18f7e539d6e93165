"""Runs a policy k times on each task instance over the environment pool.

Every run goes its own way, as many at once as there are environments. A result is on disk when its run ends.
What breaks beside the agent makes a run invalid; when nothing but invalid runs comes back, the evaluation
stops instead of running through all tasks in vain.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from verl_gui.config import RewardConfig, RolloutConfig
from verl_gui.envs.base import EnvFailure, Observation
from verl_gui.evaluation.policies.base import Policy, PolicyFailure
from verl_gui.evaluation.progress import Progress
from verl_gui.evaluation.runs import OpenSlot, Run, RunLog, open_slots
from verl_gui.rollout.episode import Episode, play
from verl_gui.rollout.reward import Reward
from verl_gui.rollout.trajectory import TrajectoryStep, TrajectoryWriter
from verl_gui.tasks.sources import TaskInstance
from verl_gui.tasks.task import Task

logger = logging.getLogger(__name__)

HOPELESS_ROUNDS = 3  # this many invalid runs in a row for each environment, and not one valid: stop


class EvaluationStopped(RuntimeError):
    """Runs fail for reasons beside the agent, and nothing else happens. The results so far are kept."""


class Leases(Protocol):
    """Where environments come from; :class:`verl_gui.envs.pool.EnvPool` is one."""

    def lease(self, *, task: Task, seed: int | None) -> Any:
        """An asynchronous context manager that gives an environment; its first reset will be for ``task``."""
        ...


@dataclass(frozen=True)
class RunSettings:
    """How a policy is evaluated.

    Attributes:
        k: valid runs wanted of each task instance.
        retries: further attempts at a run that something beside the agent broke.
        seed: of the policy's chance; results repeat where environment and policy allow it.
        rollout: grammar, prompt, window and step limit. reward: what ends an episode.
        record: write every run's trajectory beside the results.
    """

    k: int
    retries: int = 2
    seed: int = 0
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    record: bool = False

    def __post_init__(self) -> None:
        if self.k < 1 or self.retries < 0:
            raise ValueError(f"k={self.k}, retries={self.retries}: expected k >= 1 and retries >= 0")

    def settings(self) -> dict[str, Any]:
        """What the results depend on, ready for JSON. More runs or retries may be asked for later."""
        rollout = {key: value for key, value in asdict(self.rollout).items()}
        return {"seed": self.seed, "end_on_format_error": self.reward.end_on_format_error, **rollout}


async def evaluate(
    instances: Sequence[TaskInstance],
    policy: Policy,
    leases: Leases,
    log: RunLog,
    settings: RunSettings,
    *,
    concurrency: int,
    progress: Progress,
) -> None:
    """Do all runs that ``log`` does not have yet.

    Args:
        instances: what to run on.
        policy: who answers.
        leases: environments.
        log: takes the results, and says what is done.
        settings: how to run.
        concurrency: runs at once; those beyond the number of environments wait while theirs is set up.
        progress: is told of every run.

    Raises:
        EvaluationStopped: nothing but invalid runs.
        PolicySetupError: the policy cannot be used.
    """
    evaluation = _Evaluation(policy, leases, log, settings, progress, concurrency)
    await evaluation.run(instances)


class _Evaluation:
    def __init__(
        self,
        policy: Policy,
        leases: Leases,
        log: RunLog,
        settings: RunSettings,
        progress: Progress,
        concurrency: int,
    ) -> None:
        self._policy, self._leases, self._log, self._settings = policy, leases, log, settings
        self._progress, self._concurrency = progress, concurrency
        self._writer = TrajectoryWriter(Path(log.directory) / "trajectories") if settings.record else None
        self._invalid_in_a_row = 0

    async def run(self, instances: Sequence[TaskInstance]) -> None:
        todo = open_slots(instances, self._log.runs, k=self._settings.k, retries=self._settings.retries)
        total = len(instances) * self._settings.k
        self._progress.begin(total, total - len(todo))
        queue: asyncio.Queue[OpenSlot] = asyncio.Queue()
        for slot in todo:
            queue.put_nowait(slot)
        workers = [asyncio.ensure_future(self._work(queue)) for _ in range(min(self._concurrency, len(todo)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            self._progress.end()
            if self._writer is not None:
                self._writer.close()

    async def _work(self, queue: asyncio.Queue[OpenSlot]) -> None:
        while True:
            try:
                instance, slot, attempts = queue.get_nowait()
            except asyncio.QueueEmpty:
                return
            for left in reversed(range(attempts)):
                run = await self._run(instance, slot)
                self._log.append(run)
                self._progress.ran(run, last=run.valid or not left)
                self._watch(run)
                if run.valid:
                    break

    def _watch(self, run: Run) -> None:
        """Stop when nothing works any more."""
        self._invalid_in_a_row = 0 if run.valid else self._invalid_in_a_row + 1
        if self._invalid_in_a_row >= HOPELESS_ROUNDS * self._concurrency:
            raise EvaluationStopped(
                f"the last {self._invalid_in_a_row} runs were all invalid, the last one by: {run.failure}. "
                "Repair that and run the same command again; the results so far are kept."
            )

    async def _run(self, instance: TaskInstance, slot: int) -> Run:
        episode = Episode(instance.task)
        tokens = [0, 0]
        seen: list[Observation] = []
        screen = (0, 0)

        async def see(episode: Episode, observation: Observation) -> None:
            # In a thread: it may decode, resize and encode a large picture.
            view = await asyncio.to_thread(self._policy.look, observation.screenshot, screen)
            episode.screen, episode.frame = screen, view.frame
            episode.images.append(view.image)
            episode.screenshots.append(observation.screenshot)
            seen[:] = [observation]

        async def answer(episode: Episode) -> str | None:
            turn = len(episode.answers)
            rng = random.Random(f"{self._settings.seed} {instance.name} {slot} {turn}")
            began = time.monotonic()
            reply = await self._policy.answer(episode, seen[0], rng)
            seconds = time.monotonic() - began
            episode.generate_s += seconds
            if reply is None:
                episode.images.pop()
                episode.screenshots.pop()
                episode.outcome = "length_limit"
                return None
            tokens[0] += reply.prompt_tokens
            tokens[1] += reply.sampled_tokens
            episode.answers.append(reply.text.removesuffix("<|im_end|>"))
            step = TrajectoryStep(episode.screenshots[-1], reply.text, seconds={"generate": seconds})
            episode.steps.append(step)
            return reply.text

        reward: Reward | None = None
        failure: str | None = None
        began = time.monotonic()
        try:
            async with self._leases.lease(task=instance.task, seed=instance.seed) as env:
                began = time.monotonic()
                screen = tuple(env.screen)
                reward = await play(
                    env,
                    episode,
                    see=see,
                    answer=answer,
                    seed=instance.seed,
                    grammar=self._settings.rollout.grammar,
                    max_steps=self._settings.rollout.max_steps,
                    reward=self._settings.reward,
                )
        except (EnvFailure, PolicyFailure) as error:
            reward, failure = None, f"{type(error).__name__}: {error}"
            logger.warning("%s, run %d is invalid: %s", instance.name, slot, error)
        if self._writer is not None:
            record = episode.record(
                reward,
                failure,
                seed=instance.seed,
                uid=f"{instance.name}/{slot}",
                global_step=0,
                validate=True,
            )
            await asyncio.to_thread(self._writer.write, record)
        return Run(
            instance=instance.name,
            task_id=instance.task.id,
            domain=instance.task.domain,
            slot=slot,
            score=None if reward is None else reward.score,
            failure=failure,
            outcome=episode.outcome if failure is None else "invalid",
            steps=len(episode.answers),
            malformed=episode.malformed,
            prompt_tokens=tokens[0],
            sampled_tokens=tokens[1],
            env_s=round(episode.env_s, 3),
            generate_s=round(episode.generate_s, 3),
            wall_s=round(time.monotonic() - began, 3),
        )
