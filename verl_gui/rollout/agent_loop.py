"""The agent loop: one episode on one environment, as verl runs it.

    lease an environment, reset ─► screenshot ─► model ─► parse ─► act ─► screenshot ─► … ─► evaluate

Every episode advances by itself; none waits for another. An environment fault leaves no row behind
(``run`` returns ``[]``): it is not a failed attempt. A malformed answer is a step that costs the format
penalty. The tokens that are trained on are the tokens that were sampled.
"""

from __future__ import annotations

import io
import logging
import os
import time
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any
from uuid import uuid4
from zlib import crc32

from PIL import Image
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from verl_gui.actions import get_grammar
from verl_gui.config import GuiConfig
from verl_gui.envs.base import EnvFailure, Observation
from verl_gui.envs.pool import get_env_pool
from verl_gui.models.picture_grid import layout_processor
from verl_gui.models.screenshot import Screenshot
from verl_gui.rollout.agent_loop_manager import travels_encoded
from verl_gui.rollout.context import Segment, window_messages
from verl_gui.rollout.conversation import next_message
from verl_gui.rollout.episode import AsyncEnv, Episode, play
from verl_gui.rollout.reward import Reward
from verl_gui.rollout.sequence import LengthLimits, check_sequence, pictures_to_drop, truncate
from verl_gui.rollout.trajectory import TrajectoryStep, TrajectoryWriter
from verl_gui.tasks.task import Task

logger = logging.getLogger(__name__)

UNSAMPLED = ("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>")
"""Tokens the model must not write: they stand for pictures, and without one they break the positions."""


LEAST_ANSWER = 2
"""Tokens an answer needs at least: a sampled one, and one to close the turn if it was cut."""


@lru_cache(maxsize=4)
def _writer(directory: str, process: int) -> TrajectoryWriter:
    """One writer a process and directory (``process`` is in the key because a fork must not share files)."""
    return TrajectoryWriter(directory)


@dataclass
class TokenEpisode(Episode):
    """An episode and the tokens that training takes from it.

    Attributes:
        segments: token sequences, see :mod:`verl_gui.rollout.context`.
        full: the current screenshot fits no sequence; the episode ends.
        versions: lowest and highest version of the weights that sampled.
    """

    segments: list[Segment] = field(default_factory=list)
    full: bool = False
    versions: tuple[int | None, int | None] = (None, None)


class GuiAgentLoop(AgentLoopBase):
    """Runs a GUI task as a multi-turn conversation of screenshots and actions.

    Chosen by ``actor_rollout_ref.rollout.agent.default_agent_loop=gui``; configured by the ``gui:`` node.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gui = GuiConfig.from_config(self.config)
        self.grammar = get_grammar(self.gui.rollout.grammar)
        self.pixels = {"min_pixels": self.gui.rollout.min_pixels, "max_pixels": self.gui.rollout.max_pixels}
        # One source of truth: the builder that lays out tokens and the engine must resize alike.
        self.continuous_token_builder.mm_processor_kwargs.update(self.pixels)
        self.encoded = travels_encoded(self.rollout_config)
        if self.encoded:
            self.continuous_token_builder.processor = layout_processor(self.processor)
        ids = {token: self.tokenizer.convert_tokens_to_ids(token) for token in UNSAMPLED}
        self.unsampled = {i for i in ids.values() if i is not None and i != self.tokenizer.unk_token_id}
        self.stop_id = self.tokenizer.convert_tokens_to_ids("<|im_end|>")
        self.placeholders = {ids["<|image_pad|>"], ids["<|video_pad|>"]}
        self.limits = LengthLimits.of_rollout(self.rollout_config)

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> list[AgentLoopOutput]:
        """Play one episode; again on another environment, if one fails.

        Args:
            sampling_params: verl's sampling parameters.
            **kwargs: a row of :class:`verl_gui.tasks.dataset.GuiTaskDataset` and verl's ``uid``,
                ``session_id`` and ``global_steps``.

        Returns:
            One output for each segment of the episode; none if the environments failed.
        """
        seed = int(kwargs["seed"]) if int(kwargs["seed"]) >= 0 else None
        for retries_left in reversed(range(1 + self.gui.env.max_episode_retries)):
            episode = TokenEpisode(Task.from_dict(kwargs["task"]))
            try:
                reward = await self._play(episode, seed, sampling_params, kwargs.get("max_steps"))
            except EnvFailure as failure:
                logger.warning(
                    "%s (seed %s): no trajectory, the environment failed: %s", episode.task.id, seed, failure
                )
                await self._record(episode, seed, None, str(failure), kwargs)
                if not retries_left or failure.kind == "capacity":  # waiting again would help nobody
                    break
            else:
                await self._record(episode, seed, reward, None, kwargs)
                return self.outputs(episode, reward)
        return []

    async def _play(
        self,
        episode: TokenEpisode,
        seed: int | None,
        sampling_params: dict[str, Any],
        max_steps: int | None,
    ) -> Reward:
        """Lease an environment and play; ``max_steps`` is the task's own limit, where it has one."""
        async with get_env_pool(self.gui.env).lease(task=episode.task, seed=seed) as env:
            return await self.play_on(env, episode, seed, sampling_params, max_steps)

    async def play_on(
        self,
        env: AsyncEnv,
        episode: TokenEpisode,
        seed: int | None,
        sampling_params: dict[str, Any],
        max_steps: int | None = None,
    ) -> Reward:
        """Play an episode on an environment; see :func:`verl_gui.rollout.episode.play`."""
        limit = self.gui.rollout.max_steps
        request_id = uuid4().hex  # one for all turns, so that they meet the same engine and its prefix cache
        return await play(
            env,
            episode,
            see=self._see,
            answer=lambda episode: self._answer(episode, request_id, sampling_params),
            seed=seed,
            grammar=self.grammar.name,
            max_steps=limit if max_steps is None else min(limit, int(max_steps)),
            reward=self.gui.reward,
        )

    async def _see(self, episode: TokenEpisode, observation: Observation) -> None:
        """Lay the current screenshot out in tokens, in the running segment or in a new one."""
        if episode.screenshots and observation.screenshot == episode.screenshots[-1]:
            image = episode.images[-1]  # nothing has changed on the screen
        else:
            read = _publish if self.encoded else _decode
            image = await self.loop.run_in_executor(None, read, observation.screenshot)
        episode.images.append(image)
        episode.screenshots.append(observation.screenshot)
        running = episode.segments[-1] if episode.segments else None
        if running is not None and len(running.images) < self.gui.rollout.history_images:
            if (
                running.response_ids[-1] != self.stop_id
            ):  # the answer was cut: close the turn as the template does
                running.append([self.stop_id])
            before = [{"role": "user", "content": episode.instruction}]
            merged = await self.loop.run_in_executor(
                None,
                self.continuous_token_builder.merge_context_tokens,
                before,
                [*before, next_message(image=image)],
                running.ids,
            )
            new = merged.token_ids[len(running.ids) :]
            room = self.limits.room(len(running.prompt_ids), len(running.response_ids) + len(new))
            if room >= LEAST_ANSWER:
                running.append(new)
                running.images.append(image)
                return
            if self.gui.rollout.when_full == "end":
                episode.full = True
                return
        await self._begin_segment(episode, image)

    async def _begin_segment(self, episode: TokenEpisode, image: Image.Image | Screenshot) -> None:
        """A new sequence that opens with as many of the last screenshots as its prompt can hold."""
        window = min(self.gui.rollout.history_images, len(episode.images))
        while True:
            messages, images = window_messages(
                self._system_prompt(),
                episode.instruction,
                episode.images,
                episode.answers,
                history_images=window,
            )
            features: dict[str, Any] = {}
            # verl's ct_build_initial_tokens raises on a long prompt, which would fail the whole group.
            build = self.continuous_token_builder.build_initial_tokens
            prompt_ids = await self.loop.run_in_executor(
                None, partial(build, messages, images=images, mm_inputs_out=features)
            )
            excess = self.limits.prompt_excess(len(prompt_ids), least_answer=LEAST_ANSWER)
            if not excess or window == 1:
                break
            window -= max(1, pictures_to_drop(excess, [self._picture_tokens(image) for image in images]))
        patch = self.processor.image_processor.patch_size
        _, rows, columns = (int(n) for n in features["image_grid_thw"][-1])
        episode.screen, episode.frame = image.size, (columns * patch, rows * patch)
        episode.full = bool(excess)
        if excess:
            logger.warning(
                "%s: a prompt with a single screenshot has %d tokens too many for %s; the episode ends after "
                "%d answers",
                episode.task.id,
                excess,
                self.limits,
                len(episode.answers),
            )
            return
        if not episode.segments:
            needed = self.limits.response_for(
                min(self.gui.rollout.max_steps, self.gui.rollout.history_images),
                picture_tokens=self._picture_tokens(image),
                answer_tokens=self.gui.rollout.max_new_tokens,
            )
            _warn_of_small_limits(self.limits, len(prompt_ids), needed, self.gui.rollout.when_full)
        episode.segments.append(Segment(list(prompt_ids), images))

    async def _answer(
        self, episode: TokenEpisode, request_id: str, sampling_params: dict[str, Any]
    ) -> str | None:
        """Sample an answer and append it; None when the token budget is spent (the episode then ends)."""
        if episode.full:
            episode.images.pop()  # nobody answered it
            episode.screenshots.pop()
            episode.outcome = "length_limit"
            return None
        segment = episode.segments[-1]
        room = self.limits.room(len(segment.prompt_ids), len(segment.response_ids))
        started = time.monotonic()
        output = await self.server_manager.generate(
            request_id=request_id,
            prompt_ids=segment.ids,
            sampling_params={
                **sampling_params,
                "max_tokens": min(self.gui.rollout.max_new_tokens, room - 1),
                "logit_bias": dict.fromkeys(self.unsampled, -100.0),
            },
            image_data=list(segment.images),
            mm_processor_kwargs=self.pixels,
        )
        seconds = time.monotonic() - started
        episode.generate_s += seconds
        version = output.extra_fields
        low, high = episode.versions
        episode.versions = (
            version.get("min_global_steps") if low is None else low,
            version.get("max_global_steps", high),
        )
        ids = list(output.token_ids)
        log_probs = list(output.log_probs) if output.log_probs else [0.0] * len(ids)
        usable = next((i for i, token in enumerate(ids) if token in self.unsampled), len(ids))
        segment.append(ids[:usable], sampled_log_probs=log_probs[:usable])
        if usable < len(ids) or not ids:
            logger.warning(
                "%s: the model sampled a picture token or nothing; the answer is cut there", episode.task.id
            )
            segment.append([self.stop_id])
        text = self.tokenizer.decode(ids[:usable], skip_special_tokens=False)
        episode.answers.append(text.removesuffix("<|im_end|>"))
        mean = sum(log_probs[:usable]) / usable if usable and output.log_probs else None
        episode.steps.append(
            TrajectoryStep(episode.screenshots[-1], text, log_prob_mean=mean, seconds={"generate": seconds})
        )
        return text

    def outputs(self, episode: TokenEpisode, reward: Reward) -> list[AgentLoopOutput]:
        """What verl stores of an episode that was played: an output for each of its sequences."""
        low, high = episode.versions
        outputs = []
        for segment in episode.segments:
            most = self.limits.room(len(segment.prompt_ids), 0)
            if len(segment.response_ids) > most:  # the engine gave more than it was asked for
                truncate(segment, most, placeholders=self.placeholders)
            check_sequence(
                segment,
                placeholders=self.placeholders,
                picture_tokens=[self._picture_tokens(image) for image in segment.images],
                limits=self.limits,
            )
            outputs.append(
                AgentLoopOutput(
                    prompt_ids=segment.prompt_ids,
                    response_ids=segment.response_ids,
                    response_mask=segment.response_mask,
                    response_logprobs=segment.log_probs,
                    multi_modal_data={"images": segment.images},
                    mm_processor_kwargs=self.pixels,
                    reward_score=reward.total,
                    num_turns=2 * len(episode.answers),
                    metrics=AgentLoopMetrics(generate_sequences=episode.generate_s, tool_calls=episode.env_s),
                    extra_fields={
                        "min_global_steps": low,
                        "max_global_steps": high,
                        "task_id": episode.task.id,
                        "domain": episode.task.domain,
                        "steps": len(episode.answers),
                        "reward_extra_info": {
                            "acc": float(reward.score >= 1.0),
                            "score": reward.score,
                            "format": reward.format,
                        },
                    },
                )
            )
        return outputs

    def _picture_tokens(self, image: Image.Image | Screenshot) -> int:
        processor = self.processor.image_processor
        return processor.get_number_of_image_patches(image.height, image.width, self.pixels) // (
            processor.merge_size**2
        )

    def _system_prompt(self) -> str:
        prompt = self.gui.rollout.system_prompt
        return self.grammar.system_prompt(self.gui.rollout.language) if prompt is None else prompt

    async def _record(
        self,
        episode: Episode,
        seed: int | None,
        reward: Reward | None,
        failure: str | None,
        row: dict[str, Any],
    ) -> None:
        """Write the episode down for people, if this one is among those to be recorded."""
        report, validate = self.gui.report, bool(row.get("is_validation", False))
        every = report.validate_every if validate else report.train_every
        if report.dir is None or (
            failure is None and crc32(f"{row['uid']}_{row['session_id']}".encode()) % every
        ):
            return
        record = episode.record(
            reward,
            failure,
            seed=seed,
            uid=str(row["uid"]),
            global_step=int(row["global_steps"]),
            validate=validate,
            session=int(row["session_id"]),
        )
        await self.loop.run_in_executor(None, _writer(report.dir, os.getpid()).write, record)


@lru_cache(maxsize=16)
def _warn_of_small_limits(limits: LengthLimits, prompt_tokens: int, needed: int, when_full: str) -> None:
    """Say once a process that long episodes will meet a limit."""
    if limits.room(prompt_tokens, 0) < needed:
        logger.warning(
            "with answers of gui.rollout.max_new_tokens the screenshots of an episode need a response of %d "
            "tokens, but %s leave %d; longer episodes follow gui.rollout.when_full=%s",
            needed,
            limits,
            limits.room(prompt_tokens, 0),
            when_full,
        )


def _publish(png: bytes) -> Screenshot:
    screenshot = Screenshot(png)
    screenshot.publish()
    return screenshot


def _decode(png: bytes) -> Image.Image:
    return Image.open(io.BytesIO(png)).convert("RGB")
