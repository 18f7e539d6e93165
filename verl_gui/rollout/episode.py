"""One episode on one environment: the same for training, evaluation and demonstrations.

    reset ─► screenshot ─► see ─► answer ─► parse ─► act ─► screenshot ─► … ─► evaluate

Who answers is left to the caller: the agent loop samples tokens from verl's engine, evaluation asks an
endpoint, a script clicks. What an answer means, when an episode ends and what it is worth is decided here,
so that a policy is evaluated by the rules it was trained under.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol, TypeVar

from verl_gui.actions import Action, ActionFormatError, parse
from verl_gui.config import RewardConfig
from verl_gui.envs.base import Observation, StepResult
from verl_gui.rollout.reward import Reward, episode_reward
from verl_gui.rollout.trajectory import Trajectory, TrajectoryStep
from verl_gui.tasks.task import Task


class AsyncEnv(Protocol):
    """An environment as the pool leases it; see :class:`verl_gui.envs.base.GuiEnv` for what the calls do."""

    async def reset(self, task: Task, *, seed: int | None = None) -> Observation: ...

    async def step(self, actions: Sequence[Action]) -> StepResult: ...

    async def evaluate(self) -> float: ...


@dataclass
class Episode:
    """What has happened so far in one episode.

    Attributes:
        instruction: what the agent is told; known once the environment was reset.
        screen: width and height of the real screen in pixels.
        frame: width and height in pixels of the picture the model sees.
        images: the screenshots as the model is shown them, one for each turn, the current one last.
        screenshots: the same as PNG bytes; at the end also the screen that was evaluated.
        answers: the model's answers in words.
        malformed: number of answers that could not be parsed.
        outcome: how it ended, see :class:`verl_gui.rollout.trajectory.Trajectory`.
        generate_s: seconds spent on answers. env_s: seconds spent in the environment.
    """

    task: Task
    instruction: str = ""
    screen: tuple[int, int] = (0, 0)
    frame: tuple[int, int] = (0, 0)
    images: list[Any] = field(default_factory=list)
    screenshots: list[bytes] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    steps: list[TrajectoryStep] = field(default_factory=list)
    malformed: int = 0
    outcome: str = "step_limit"
    generate_s: float = 0.0
    env_s: float = 0.0

    def record(
        self,
        reward: Reward | None,
        failure: str | None,
        *,
        seed: int | None,
        uid: str,
        global_step: int,
        validate: bool,
        session: int | None = None,
    ) -> Trajectory:
        """The episode as it is written down for people.

        Args:
            reward: what it is worth; None when it was not scored.
            failure: what went wrong in the environment; None when nothing did.
            seed: of the task. uid: name of its group. global_step: training step.
            validate: whether it was played for validation or evaluation.
            session: which member of the group.
        """
        return Trajectory(
            task_id=self.task.id,
            instruction=self.instruction,
            seed=seed,
            uid=uid,
            global_step=global_step,
            validate=validate,
            score=None if reward is None else reward.score,
            format_penalty=0.0 if reward is None else reward.format,
            reward=None if reward is None else reward.total,
            num_turns=len(self.answers),
            screen=self.screen,
            frame=self.frame,
            steps=self.steps,
            outcome=self.outcome if failure is None else "env_failure",
            env_failure=failure,
            final_screenshot=self.screenshots[-1] if failure is None else b"",
            session=session,
        )


E = TypeVar("E", bound=Episode)


async def play(
    env: AsyncEnv,
    episode: E,
    *,
    see: Callable[[E, Observation], Awaitable[None]],
    answer: Callable[[E], Awaitable[str | None]],
    seed: int | None,
    grammar: str,
    max_steps: int,
    reward: RewardConfig,
) -> Reward:
    """Play ``episode`` to its end and say what it is worth.

    Args:
        env: an environment of one's own.
        episode: fresh; it is filled on the way, so that a record can be written when the environment fails.
        see: takes in a screenshot: appends to ``episode.images`` and ``episode.screenshots``, and sets
            ``episode.screen`` and ``episode.frame``.
        answer: samples an answer, appends it to ``episode.answers`` and a step to ``episode.steps``, and
            returns it as sampled; None ends the episode (it is evaluated as it stands).
        seed: of the reset; None leaves the choice to the environment.
        grammar: name of the grammar of the answers.
        max_steps: answers the episode may have.
        reward: what malformed answers cost, and whether one ends the episode.

    Raises:
        EnvFailure: the environment broke. The episode is invalid, not failed.
    """
    started = time.monotonic()
    observation = await env.reset(episode.task, seed=seed)
    episode.env_s += time.monotonic() - started
    episode.instruction = observation.info.get("instruction") or episode.task.instruction
    while True:
        await see(episode, observation)
        text = await answer(episode)
        if text is None:
            break
        actions = read(episode, text, grammar)
        started = time.monotonic()
        ends = actions is None and reward.end_on_format_error
        if actions is not None:
            result = await env.step(actions)
            observation = result.observation
            if any(action.type.is_terminal for action in actions):
                episode.outcome, ends = "finished", True
            elif result.terminated:
                episode.outcome, ends = "terminated", True
        elif ends:
            episode.outcome = "format_error"
        seconds = time.monotonic() - started
        episode.env_s += seconds
        episode.steps[-1].seconds["env"] = seconds
        if ends or len(episode.answers) >= max_steps:
            break
    started = time.monotonic()
    score = await env.evaluate()
    episode.env_s += time.monotonic() - started
    episode.screenshots.append(observation.screenshot)
    return episode_reward(score, malformed=episode.malformed, answers=len(episode.answers), config=reward)


def read(episode: Episode, text: str, grammar: str) -> Sequence[Action] | None:
    """Parse an answer and note in the record what it was taken to mean; None when it is malformed."""
    try:
        response = parse(text, grammar=grammar, frame=episode.frame, screen=episode.screen)
    except ActionFormatError as error:
        episode.malformed += 1
        episode.steps[-1] = replace(episode.steps[-1], error=str(error))
        return None
    actions = [{k: v for k, v in asdict(action).items() if v is not None} for action in response.actions]
    episode.steps[-1] = replace(episode.steps[-1], thought=response.thought, actions=actions)
    return response.actions
