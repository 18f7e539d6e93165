"""Whether an environment keeps the contract of :class:`~verl_gui.envs.base.GuiEnv`."""

from __future__ import annotations

from verl_gui.actions import Action, ActionType
from verl_gui.envs.base import EnvFailure, GuiEnv, Observation, PausableEnv, StepResult
from verl_gui.envs.worker import check_screenshot
from verl_gui.tasks.task import Task


class EnvCheckError(AssertionError):
    """An environment breaks its contract; the message says how."""


def check_env(env: GuiEnv, task: Task, seed: int | None = None, *, same_pixels: bool = True) -> None:
    """Run ``env`` through everything a caller may do, and close it.

    Args:
        env: the environment; closed afterwards.
        task: a task of the environment that is not solved from the start.
        seed: its instance.
        same_pixels: whether equal task and seed must give equal screenshots.

    Raises:
        EnvCheckError: what is wrong.
        EnvFailure: the environment broke.
    """
    try:
        _check_type(env)
        first = _check_observation(env.reset(task, seed=seed), env, "reset()")
        if not (task.instruction or first.info.get("instruction")):
            raise EnvCheckError("neither the task nor reset()'s info has an instruction")
        _check_score(env)
        _check_step(env.step([]), env, "step([])", terminated=False)
        if isinstance(env, PausableEnv):
            env.pause()  # and the next call wakes it
        middle = Action(ActionType.HOVER, x=env.screen[0] // 2, y=env.screen[1] // 2)
        _check_step(env.step([middle]), env, "step([hover])", terminated=False)
        again = _check_observation(env.reset(task, seed=seed), env, "the second reset()")
        if same_pixels and again.screenshot != first.screenshot:
            raise EnvCheckError("the same task and seed gave two different first screenshots")
        if again.info.get("instruction") != first.info.get("instruction"):
            raise EnvCheckError("the same task and seed gave two different instructions")
        finish = env.step([Action(ActionType.FINISHED)])
        _check_step(finish, env, "step([finished])", terminated=True)
        if _check_score(env) != _check_score(env):
            raise EnvCheckError("evaluate() gave two different scores for the same state")
        _check_refused(env, "after the episode has ended")
    finally:
        env.close()
    env.close()
    _check_refused(env, "after close()")


def _check_type(env: GuiEnv) -> None:
    if not isinstance(env, GuiEnv):
        wanted = ("screen", "reset", "step", "evaluate", "close")
        missing = [name for name in wanted if not hasattr(env, name)]
        raise EnvCheckError(f"{type(env).__name__} lacks {', '.join(missing)}")
    if not (isinstance(env.screen, tuple) and len(env.screen) == 2 and all(n > 0 for n in env.screen)):
        raise EnvCheckError(f"screen must be (width, height) in pixels, got {env.screen!r}")


def _check_observation(observation: Observation, env: GuiEnv, source: str) -> Observation:
    if not isinstance(observation, Observation):
        raise EnvCheckError(f"{source} must give an Observation, got {type(observation).__name__}")
    try:
        check_screenshot(observation.screenshot, env.screen)
    except EnvFailure as failure:
        raise EnvCheckError(f"{source}: {failure.message}") from failure
    return observation


def _check_step(result: StepResult, env: GuiEnv, source: str, *, terminated: bool) -> None:
    if not isinstance(result, StepResult):
        raise EnvCheckError(f"{source} must give a StepResult, got {type(result).__name__}")
    _check_observation(result.observation, env, source)
    if result.terminated is not terminated:
        raise EnvCheckError(f"{source}: terminated must be {terminated}, got {result.terminated!r}")


def _check_score(env: GuiEnv) -> float:
    score = env.evaluate()
    if not isinstance(score, float) or not 0.0 <= score <= 1.0:
        raise EnvCheckError(f"evaluate() must give a float in [0, 1], got {score!r}")
    return score


def _check_refused(env: GuiEnv, when: str) -> None:
    try:
        env.step([])
    except RuntimeError:  # an EnvFailure is one too
        return
    raise EnvCheckError(f"step() must be refused {when}")
