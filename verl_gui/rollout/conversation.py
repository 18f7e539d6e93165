"""How an episode is laid out as a conversation: one place for training, demonstrations and evaluation.

The instruction comes before the first screenshot, so that a causal model can look at the picture knowing what
to look for. Later turns bring the new screenshot alone.
"""

from __future__ import annotations

from typing import Any

Message = dict[str, Any]

LEFT_OUT = "(screenshot left out)"
"""What stands for a screenshot that has left the window."""


def first_messages(system_prompt: str, instruction: str, *, image: Any | None) -> list[Message]:
    """System prompt, instruction and first screenshot.

    Args:
        system_prompt: may be empty; the chat template then adds its default.
        instruction: the task in words.
        image: any object the image processor takes; None when the screenshot has left the window.
    """
    messages: list[Message] = []
    if system_prompt:
        messages.append({"role": "system", "content": system_prompt})
    picture = {"type": "text", "text": LEFT_OUT} if image is None else {"type": "image", "image": image}
    messages.append({"role": "user", "content": [{"type": "text", "text": instruction}, picture]})
    return messages


def next_message(*, image: Any) -> Message:
    """The screenshot after the agent's last answer."""
    return {"role": "user", "content": [{"type": "image", "image": image}]}


def past_message() -> Message:
    """A turn whose screenshot has left the window."""
    return {"role": "user", "content": [{"type": "text", "text": LEFT_OUT}]}
