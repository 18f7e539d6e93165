"""What must hold of a token sequence before it may be trained on, and where it ends when it gets too long.

Three lists run side by side (ids, mask, log-probabilities), and a fourth, the pictures, hangs on them by the
runs of placeholders in the ids. They are cut together or not at all: a picture leaves with all its
placeholders, and never more or fewer of either stay behind. Pure: no tensors, no verl.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from verl_gui.rollout.context import Segment

TURN_TOKENS = 12
"""Tokens of Qwen's chat template from the end of one answer to the start of the next, but the picture's."""


class SequenceError(ValueError):
    """A sequence whose tokens, masks, log-probabilities and pictures do not belong together."""


@dataclass(frozen=True)
class LengthLimits:
    """How long a sequence may get, in tokens.

    Attributes:
        prompt: tokens before the first answer (verl's ``data.max_prompt_length``).
        response: tokens from the first answer on (``data.max_response_length``).
        model: both together, as far as the engine goes (``rollout.max_model_len``).
    """

    prompt: int
    response: int
    model: int

    @classmethod
    def of_rollout(cls, rollout: Any) -> LengthLimits:
        """From verl's ``actor_rollout_ref.rollout`` node; without ``max_model_len`` the sum is the limit."""
        both = rollout.prompt_length + rollout.response_length
        return cls(
            rollout.prompt_length, rollout.response_length, min(rollout.get("max_model_len") or both, both)
        )

    def room(self, prompt_tokens: int, response_tokens: int) -> int:
        """Tokens that may still be added to a response; negative when there are too many already."""
        return min(self.response, self.model - prompt_tokens) - response_tokens

    def prompt_excess(self, prompt_tokens: int, *, least_answer: int) -> int:
        """Tokens by which a prompt is too long, with room for an answer of ``least_answer`` after it."""
        return max(0, prompt_tokens - min(self.prompt, self.model - least_answer))

    def response_for(self, answers: int, *, picture_tokens: int, answer_tokens: int) -> int:
        """Response tokens that so many answers need at most, with a picture between two of them."""
        return answers * answer_tokens + (answers - 1) * (picture_tokens + TURN_TOKENS)


def pictures_to_drop(excess: int, picture_tokens: Sequence[int]) -> int:
    """How many of the oldest pictures have to go so that ``excess`` tokens are saved.

    What takes their place in the prompt is not counted, so the result can be too small, never too large. The
    last picture stays: without it there is nothing to act on.
    """
    saved = itertools.accumulate(picture_tokens[:-1], initial=0)
    return next((count for count, tokens in enumerate(saved) if tokens >= excess), len(picture_tokens) - 1)


def placeholder_runs(ids: Sequence[int], placeholders: Collection[int]) -> list[int]:
    """Length of each longest stretch of placeholders, in order."""
    return [
        len(list(run))
        for stands_for_picture, run in itertools.groupby(ids, key=lambda token: token in placeholders)
        if stands_for_picture
    ]


def truncate(segment: Segment, limit: int, *, placeholders: Collection[int]) -> int:
    """Cut the response to at most ``limit`` tokens, everything together.

    The cut is moved back to the last sampled token before it: nothing is learnt from context at the end, and
    no picture is cut in two. Pictures whose placeholders went go as well.

    Args:
        segment: is changed.
        limit: tokens that the response may have.
        placeholders: ids of the tokens that stand for pictures.

    Returns:
        How many pictures went; they were the last ones of the segment.
    """
    keep = min(max(limit, 0), len(segment.response_ids))
    while keep and not segment.response_mask[keep - 1]:
        keep -= 1
    stay = len(placeholder_runs(segment.prompt_ids + segment.response_ids[:keep], placeholders))
    gone = len(segment.images) - stay
    del segment.response_ids[keep:], segment.response_mask[keep:], segment.log_probs[keep:]
    del segment.images[stay:]
    return gone


def check_sequence(
    segment: Segment, *, placeholders: Collection[int], picture_tokens: Sequence[int], limits: LengthLimits
) -> None:
    """Refuse a sequence that would train wrongly or stop the training.

    Args:
        segment: a finished one.
        placeholders: ids of the tokens that stand for pictures.
        picture_tokens: number of tokens of each of its pictures.
        limits: how long it may be.

    Raises:
        SequenceError: says what is wrong, with the numbers.
    """
    length = len(segment.response_ids)
    if not length == len(segment.response_mask) == len(segment.log_probs):
        raise SequenceError(
            f"{length} response tokens, but {len(segment.response_mask)} mask entries and "
            f"{len(segment.log_probs)} log-probabilities"
        )
    for index, (token, sampled, log_prob) in enumerate(
        zip(segment.response_ids, segment.response_mask, segment.log_probs, strict=True)
    ):
        if sampled and token in placeholders:
            raise SequenceError(f"response token {index} is the placeholder {token}, but it was sampled")
        if not sampled and log_prob:
            raise SequenceError(f"response token {index} was not sampled, but has log-probability {log_prob}")
    runs = placeholder_runs(segment.ids, placeholders)
    if len(runs) != len(segment.images) or runs != list(picture_tokens):
        raise SequenceError(
            f"{len(segment.images)} pictures of {list(picture_tokens)} tokens, but {runs} placeholders"
        )
    if len(segment.prompt_ids) > limits.prompt or limits.room(len(segment.prompt_ids), length) < 0:
        raise SequenceError(
            f"{len(segment.prompt_ids)} prompt tokens and {length} response tokens are more than {limits}"
        )
