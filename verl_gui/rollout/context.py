"""Which part of an episode the model sees: a window of the last K screenshots, as segments of tokens.

An episode is one token sequence as long as its screenshots fit the window: sampled tokens stay where they
are and new turns are appended. When a screenshot has to leave, the sequence cannot be continued, for the
model would then be trained on a context it never saw; a new segment begins, whose prompt holds the window.
Every answer belongs to exactly one segment, so each sampled token is trained on once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from verl_gui.rollout.conversation import Message, first_messages, next_message, past_message


@dataclass
class Segment:
    """One token sequence of an episode.

    Attributes:
        prompt_ids: what the model was given before its first answer of this segment.
        response_ids: its answers and everything between them.
        response_mask: 1 on sampled tokens, 0 on the rest; as long as ``response_ids``.
        log_probs: log-probability of each sampled token when it was sampled, 0 on the rest.
        images: the screenshots of the segment in order.
    """

    prompt_ids: list[int]
    images: list[Any]
    response_ids: list[int] = field(default_factory=list)
    response_mask: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        """The whole sequence."""
        return self.prompt_ids + self.response_ids

    def append(self, ids: Sequence[int], *, sampled_log_probs: Sequence[float] | None = None) -> None:
        """Add sampled tokens (with their log-probabilities) or context tokens (without).

        Raises:
            ValueError: as many log-probabilities as tokens are needed.
        """
        if sampled_log_probs is not None and len(sampled_log_probs) != len(ids):
            raise ValueError(f"{len(ids)} sampled tokens but {len(sampled_log_probs)} log-probabilities")
        self.response_ids += ids
        self.response_mask += [int(sampled_log_probs is not None)] * len(ids)
        self.log_probs += sampled_log_probs if sampled_log_probs is not None else [0.0] * len(ids)


def window_messages(
    system_prompt: str,
    instruction: str,
    images: Sequence[Any],
    answers: Sequence[str],
    *,
    history_images: int,
) -> tuple[list[Message], list[Any]]:
    """The conversation that a new segment starts from, and the screenshots in it.

    Args:
        system_prompt: system prompt, may be empty.
        instruction: the task.
        images: all screenshots of the episode so far, the current one last.
        answers: the answers to all but the last screenshot.
        history_images: how many screenshots stay; older ones become a note in words.
    """
    if len(answers) != len(images) - 1:
        raise ValueError(f"{len(images)} screenshots need {len(images) - 1} answers, got {len(answers)}")
    first_kept = max(0, len(images) - history_images)
    messages = first_messages(system_prompt, instruction, image=images[0] if first_kept == 0 else None)
    for turn, answer in enumerate(answers, 1):
        messages.append({"role": "assistant", "content": answer})
        messages.append(next_message(image=images[turn]) if turn >= first_kept else past_message())
    return messages, list(images[first_kept:])
