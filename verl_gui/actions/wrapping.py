"""What servers and habits put around an answer: stop tokens and code fences."""

from __future__ import annotations

import re

_STOP_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end|>", "</s>")
_LEADING_FENCE = re.compile(r"\s*(?:```[\w-]{0,20}[^\S\n]*\n\s*)?")


def unwrap(text: str) -> tuple[int, int]:
    """The span of ``text`` without blanks, stop tokens and a code fence around it."""
    end = len(text)
    while True:
        while end and text[end - 1].isspace():
            end -= 1
        trailing = next((token for token in (*_STOP_TOKENS, "```") if text.endswith(token, 0, end)), None)
        if trailing is None:
            break
        end -= len(trailing)
    fence = _LEADING_FENCE.match(text, 0, end)
    return (fence.end() if fence else 0), end
