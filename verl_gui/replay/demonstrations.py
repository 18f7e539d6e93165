"""Recorded trajectories as training rows, so that replay can begin with them.

A recording holds screenshots and answers in words, a training row token ids. So the agent loop plays the
recording once more: the environment shows the recorded screenshots, the model gives the recorded answers,
and what comes out is what a rollout would have stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from omegaconf import OmegaConf

from verl_gui.actions import Action
from verl_gui.envs.base import Observation, StepResult
from verl_gui.models.encoded_images import encode
from verl_gui.models.rope_index import VisionTokenIds, engine_position_ids
from verl_gui.models.screenshot import Screenshot
from verl_gui.replay.packing import UNKNOWN_LOG_PROBS
from verl_gui.rollout.agent_loop import GuiAgentLoop, TokenEpisode
from verl_gui.rollout.agent_loop_manager import COMPACT
from verl_gui.rollout.trajectory import Trajectory
from verl_gui.tasks.task import Task

logger = logging.getLogger(__name__)

STOP = "<|im_end|>"


class DemonstrationError(ValueError):
    """A recording that cannot be a training row under this recipe; says why."""


@dataclass(frozen=True)
class DemonstrationRow:
    """A recording as it is stored.

    Attributes:
        task: its key in the success buffer.
        record: the fields of a row that belong to the episode, as verl's agent loop worker stores them.
        score: the environment's verdict.
    """

    task: str
    record: dict[str, Any]
    score: float


class _Recording:
    """Environment and model of one recorded trajectory."""

    def __init__(self, trajectory: Trajectory, tokenizer: Any) -> None:
        self.trajectory, self._tokenizer = trajectory, tokenizer
        self._shown, self._answered = 0, 0

    async def reset(self, task: Task, *, seed: int | None = None) -> Observation:
        return Observation(self._screenshot(), {"instruction": self.trajectory.instruction})

    async def step(self, actions: Sequence[Action]) -> StepResult:
        last = self._answered >= len(self.trajectory.steps)
        return StepResult(Observation(self._screenshot(last)), terminated=last)

    async def evaluate(self) -> float:
        assert self.trajectory.score is not None
        return self.trajectory.score

    def _screenshot(self, last: bool = False) -> bytes:
        steps = self.trajectory.steps
        picture = self.trajectory.final_screenshot if last else steps[self._answered].screenshot
        return picture or steps[-1].screenshot

    async def generate(self, request_id: str, *, prompt_ids: list[int], **_: Any) -> SimpleNamespace:
        text = self.trajectory.steps[self._answered].text.removesuffix(STOP) + STOP
        self._answered += 1
        ids = self._tokenizer(text, add_special_tokens=False).input_ids
        return SimpleNamespace(token_ids=ids, log_probs=[0.0] * len(ids), extra_fields={})


def training_rows(
    trajectories: Iterable[Trajectory], config: Mapping[str, Any], processor: Any
) -> Iterator[DemonstrationRow]:
    """A row for each recorded trajectory.

    Args:
        trajectories: with screenshots.
        config: a whole recipe (:func:`verl_gui.launch.recipe_check.compose_recipe`).
        processor: of the policy, from verl's ``hf_processor``.

    Raises:
        DemonstrationError: one cannot be a row; names it.
    """
    whole = OmegaConf.create(
        {**config, "actor_rollout_ref": dict(config["actor_rollout_ref"])}, flags={"allow_objects": True}
    )
    OmegaConf.update(
        whole, "actor_rollout_ref.rollout.agent.agent_loop_manager_class", COMPACT, force_add=True
    )
    with asyncio.Runner() as runner:
        for trajectory in trajectories:
            yield runner.run(_training_row(trajectory, whole, processor))


async def _training_row(trajectory: Trajectory, config: Any, processor: Any) -> DemonstrationRow:
    name = f"{trajectory.task_id} (seed {trajectory.seed})"
    if trajectory.score is None or not trajectory.steps:
        raise DemonstrationError(f"{name}: it was not scored, or has no step")
    recording = _Recording(trajectory, processor.tokenizer)
    loop = GuiAgentLoop(
        trainer_config=SimpleNamespace(config=config),
        server_manager=recording,
        tokenizer=processor.tokenizer,
        processor=processor,
        dataset_cls=None,
        data_config=SimpleNamespace(config=config.data),
        hf_model_type=processor.config.model_type,
    )
    episode = TokenEpisode(Task(id=trajectory.task_id, instruction=trajectory.instruction))
    reward = await loop.play_on(recording, episode, trajectory.seed, {})
    if episode.frame != tuple(trajectory.frame):
        raise DemonstrationError(
            f"{name}: it was recorded on a frame of {trajectory.frame}, this recipe shows {episode.frame}; "
            "its coordinates would be wrong. Record with this recipe's screen and pixel limits"
        )
    if len(episode.answers) < len(trajectory.steps):
        raise DemonstrationError(
            f"{name}: {len(trajectory.steps)} steps were recorded, only {len(episode.answers)} fit the "
            f"recipe's gui.rollout.max_steps={loop.gui.rollout.max_steps} and length limits"
        )
    outputs = loop.outputs(episode, reward)
    if len(outputs) != 1:
        raise DemonstrationError(
            f"{name}: with gui.rollout.history_images={loop.gui.rollout.history_images} it gives "
            f"{len(outputs)} sequences; replay stores episodes of one"
        )
    (output,) = outputs
    shots: list[Screenshot] = (output.multi_modal_data or {})["images"]
    inputs = encode([s.encoded for s in shots], [s.size for s in shots], processor, loop.pixels)
    record = output.as_dict()
    record.pop("multi_modal_data")
    record["extra_fields"] = {**record["extra_fields"], UNKNOWN_LOG_PROBS: True}
    ids = torch.cat([record["prompts"], record["responses"]])
    model = processor.config
    vision = VisionTokenIds(model.image_token_id, model.video_token_id, model.vision_start_token_id)
    record |= {
        "loss_mask": record["response_mask"],
        "input_ids": ids,
        "position_ids": engine_position_ids(
            ids,
            inputs["image_grid_thw"],
            ids=vision,
            merge_size=model.vision_config.spatial_merge_size,
        ),
        "multi_modal_inputs": inputs,
    }
    seed = -1 if trajectory.seed is None else trajectory.seed
    key = trajectory.task_id if seed < 0 else f"{trajectory.task_id}#{seed}"
    return DemonstrationRow(key, record, trajectory.score)
