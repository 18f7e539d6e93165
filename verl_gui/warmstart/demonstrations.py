"""Demonstrations: a scripted expert plays tasks in the real environment, and every episode is kept.

The expert reads the page's DOM, but what is recorded is what an agent sees and says: screenshots, and
answers in the grammar of training.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from verl_gui.actions import get_grammar, parse
from verl_gui.envs.miniwob import MiniwobEnv, OracleError, elements, oracle
from verl_gui.rollout.trajectory import read_trajectories
from verl_gui.tasks.sources import TaskInstance
from verl_gui.warmstart.behaviour_cloning import Demonstration
from verl_gui.warmstart.words import describe, element_name, snap

logger = logging.getLogger(__name__)


def demonstrate(
    env: MiniwobEnv, instance: TaskInstance, *, grammar: str = "uitars", grid: int = 7, max_steps: int = 5
) -> Demonstration | None:
    """Let the expert play one instance; None when it cannot or does not succeed.

    The answers are parsed back and the parsed actions are carried out, so the record shows what the same
    words lead to when a policy says them.

    Args:
        env: its screen must have the size the model sees.
        instance: task and seed.
        grammar: what the answers are written in.
        grid: pixels between the coordinates that the expert uses.
        max_steps: answers the expert may give.
    """
    observation = env.reset(instance.task, seed=instance.seed)
    demo = Demonstration(observation.info["instruction"], [], [], [], [])
    writer = get_grammar(grammar)
    for _ in range(max_steps):
        shown = [(element_name(e), e["box"]) for e in elements(env)]
        try:
            actions = oracle(env, None)
        except OracleError as error:
            logger.info("%s seed %s: %s", instance.task.id, instance.seed, error)
            return None
        actions = [
            replace(a, x=snap(a.x, grid), y=snap(a.y, grid)) if a.x is not None and a.y is not None else a
            for a in actions
        ]
        thought = describe(shown, actions[0], demo.instruction)
        answer = writer.format(actions, thought=thought, frame=env.screen, screen=env.screen)
        first = actions[0]
        demo.frames.append(np.asarray(Image.open(io.BytesIO(observation.screenshot)).convert("RGB")))
        demo.answers.append(answer)
        demo.targets.append(None if first.x is None or first.y is None else (first.x, first.y))
        demo.elements.append(shown)
        result = env.step(parse(answer, grammar=grammar, frame=env.screen, screen=env.screen).actions)
        observation = result.observation
        if result.terminated:
            break
    score = env.evaluate()
    if score < 1.0:
        logger.info("%s seed %s: the expert scored %.2f", instance.task.id, instance.seed, score)
        return None
    return demo


def save_demonstrations(demos: Sequence[Demonstration], file: str | Path) -> None:
    """Write demonstrations to one file, in whole or not at all."""
    data = [{**asdict(demo), "frames": torch.from_numpy(np.stack(demo.frames))} for demo in demos]
    part = Path(f"{file}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    torch.save(data, part)
    part.replace(file)


def load_demonstrations(file: str | Path) -> list[Demonstration]:
    """Read what :func:`save_demonstrations` wrote; nothing in the file is executed."""
    data = torch.load(file, weights_only=True)
    return [Demonstration(**{**item, "frames": list(item["frames"].numpy())}) for item in data]


def from_trajectories(directory: str | Path) -> list[Demonstration]:
    """Successful trajectories as demonstrations, e.g. those that ``verl-gui tasks record`` wrote.

    What the elements on the screen are called is not in a trajectory, so ``elements`` is empty: the warm
    start then learns from the answers and from where they act. A trajectory is left out with a warning when
    it has no screenshots, a malformed answer, or frames other than what the model is to see.

    Args:
        directory: what :func:`verl_gui.rollout.trajectory.read_trajectories` reads.
    """
    demos = []
    for trajectory in read_trajectories(directory):
        if trajectory.score != 1.0:
            continue
        usable = all(step.screenshot and step.error is None for step in trajectory.steps)
        if not usable or trajectory.frame != trajectory.screen:
            logger.warning("%s (seed %s) is no demonstration", trajectory.task_id, trajectory.seed)
            continue
        frames = [
            np.asarray(Image.open(io.BytesIO(step.screenshot)).convert("RGB")) for step in trajectory.steps
        ]
        demos.append(
            Demonstration(
                trajectory.instruction,
                frames,
                [step.text for step in trajectory.steps],
                [_target(step.actions) for step in trajectory.steps],
                [[] for _ in trajectory.steps],
            )
        )
    return demos


def _target(actions: Sequence[dict[str, Any]]) -> tuple[float, float] | None:
    """Where the first action acts."""
    first = actions[0] if actions else {}
    return (first["x"], first["y"]) if "x" in first and "y" in first else None
