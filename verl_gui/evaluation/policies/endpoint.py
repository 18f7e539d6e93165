"""A model behind an OpenAI-compatible endpoint.

The conversation is the one that training lays out (:mod:`verl_gui.rollout.conversation`), with the
screenshots as data URLs.
"""

from __future__ import annotations

import base64
import io
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import openai
from PIL import Image

from verl_gui.config import RolloutConfig
from verl_gui.envs.base import Observation
from verl_gui.evaluation.policies.base import Answer, PolicyFailure, PolicySetupError, View
from verl_gui.rollout.context import window_messages
from verl_gui.rollout.conversation import Message
from verl_gui.rollout.episode import Episode

logger = logging.getLogger(__name__)

RESIZE_FACTOR = 28
"""Qwen-VL models see pictures whose sides are multiples of this (patches of 14 pixels, merged by two)."""
CONTEXT_IS_FULL = ("context length", "context_length_exceeded", "maximum model length", "max_model_len")
REFUSED = (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError)


@dataclass(frozen=True)
class EndpointConfig:
    """How to reach the model and how it samples.

    Attributes:
        base_url: ends in ``/v1`` as a rule.
        model: name of the model there.
        api_key: secret; endpoints without one take any.
        temperature: 0 samples greedily. top_p: nucleus.
        timeout_s: longest wait for one answer.
        max_retries: how often a request is repeated after a timeout, a lost connection, 408, 409, 429 or 5xx,
            with growing pauses.
        extra: more fields of the request's body, for the endpoint's own extensions.
    """

    base_url: str
    model: str
    api_key: str = "none"
    temperature: float = 1.0
    top_p: float = 1.0
    timeout_s: float = 120.0
    max_retries: int = 4
    extra: Mapping[str, Any] = field(default_factory=dict)


Frame = Callable[[bytes, tuple[int, int]], tuple[bytes, tuple[int, int]]]
"""PNG and its size -> the picture to send, and the size in which the model sees it."""


class EndpointPolicy:
    """Asks an endpoint for chat completions.

    Args:
        config: the endpoint.
        rollout: prompt, window and length of answers, as in training.
        system_prompt: in words.
        frame: what the model sees of a screenshot; by default the picture is resized before it is sent, as
            the model would do it within ``rollout.min_pixels`` and ``max_pixels``.
    """

    def __init__(
        self, config: EndpointConfig, rollout: RolloutConfig, system_prompt: str, frame: Frame | None = None
    ) -> None:
        self._config, self._rollout, self._system_prompt = config, rollout, system_prompt
        self._frame = frame or self._resized
        self._client = openai.AsyncOpenAI(
            base_url=config.base_url,
            api_key=config.api_key,
            timeout=config.timeout_s,
            max_retries=config.max_retries,
        )

    def look(self, png: bytes, screen: tuple[int, int]) -> View:
        """The screenshot as a data URL."""
        picture, frame = self._frame(png, screen)
        return View(f"data:image/png;base64,{base64.b64encode(picture).decode('ascii')}", frame)

    async def answer(self, episode: Episode, observation: Observation, rng: random.Random) -> Answer | None:
        """One chat completion.

        Raises:
            PolicyFailure: no answer after all retries, or the request was refused.
            PolicySetupError: the endpoint does not know us or the model.
        """
        messages, _ = window_messages(
            self._system_prompt,
            episode.instruction,
            episode.images,
            episode.answers,
            history_images=self._rollout.history_images,
        )
        try:
            completion = await self._client.chat.completions.create(
                model=self._config.model,
                messages=[_to_wire(message) for message in messages],  # type: ignore[misc]
                temperature=self._config.temperature,
                top_p=self._config.top_p,
                max_tokens=self._rollout.max_new_tokens,
                seed=rng.getrandbits(31),
                extra_body=dict(self._config.extra),
            )
        except REFUSED as error:
            raise PolicySetupError(
                f"{self._config.base_url} refused {self._config.model!r}: {error}"
            ) from error
        except openai.BadRequestError as error:
            if any(sign in str(error).lower() for sign in CONTEXT_IS_FULL):
                return None
            raise PolicyFailure(f"the endpoint refused the request: {error}") from error
        except (openai.OpenAIError, ValueError) as error:  # ValueError: an answer that is no JSON
            raise PolicyFailure(f"no answer from the endpoint: {type(error).__name__}: {error}") from error
        if not getattr(completion, "choices", None):
            raise PolicyFailure(f"the endpoint's answer holds no choices: {str(completion)[:200]!r}")
        usage = completion.usage
        return Answer(
            completion.choices[0].message.content or "",
            usage.prompt_tokens if usage else 0,
            usage.completion_tokens if usage else 0,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    def _resized(self, png: bytes, screen: tuple[int, int]) -> tuple[bytes, tuple[int, int]]:
        from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

        height, width = smart_resize(
            screen[1],
            screen[0],
            factor=RESIZE_FACTOR,
            min_pixels=self._rollout.min_pixels,
            max_pixels=self._rollout.max_pixels,
        )
        if (width, height) == tuple(screen):
            return png, screen
        out = io.BytesIO()
        picture = Image.open(io.BytesIO(png)).convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
        picture.save(out, "PNG", compress_level=1)
        return out.getvalue(), (width, height)


def _to_wire(message: Message) -> Message:
    """A message in OpenAI's form: pictures become ``image_url`` parts."""
    content = message["content"]
    if isinstance(content, str):
        return message
    parts = [
        {"type": "image_url", "image_url": {"url": part["image"]}} if part["type"] == "image" else part
        for part in content
    ]
    return {**message, "content": parts}
