"""Answers of a megabyte, made to be slow, take no more than their share."""

from __future__ import annotations

import time

import pytest

from verl_gui.actions import ActionFormatError, parse

MEGABYTE = 1_000_000
UNITS = {
    "numbers": ("Action: click(start_box='(", "1,", ")')"),
    "spaced numbers": ("Action: click(start_box='(", "1 , ", ")')"),
    "spaces in a box": ("Action: click(start_box='(1", " ", "')"),
    "open box": ("Action: click(start_box='", "(", ""),
    "box tokens": ("Action: click(start_box='", "<|box_start|>", "(1,2)')"),
    "quotes": ("Action: type(content='", "'", "')"),
    "half ends": ("Action: type(content='", "' )", "')"),
    "spaced quotes": ("Action: type(content='", "' ", "')"),
    "long gaps": ("Action: type(content='", "'" + " " * 1000, "')"),
    "false arguments": ("Action: type(content='", "', content = ", "')"),
    "backslashes": ("Action: type(content='", "\\", "')"),
    "open text": ("Action: type(content='", "a", ""),
    "calls": ("Action: ", "wait()\n", ""),
    "action lines": ("", "Action: \n", "wait()"),
    "action prefixes": ("", " Action", ""),
    "blank start": ("", " ", "Action: wait()"),
    "blank lines": ("Action: wait()", "\n", "wait()"),
    "stop tokens": ("Action: wait()", "<|im_end|>", ""),
    "fences": ("Action: wait()", "```\n", ""),
    "keys": ("Action: hotkey(key='", "ctrl+", "c')"),
    "hyphens": ("Action: hotkey(key='", "ctrl-", "c')"),
    "brackets": ("Action: ", "(", ""),
    "names": ("Action: ", "wait", "()"),
    "arguments": ("Action: click(", "start_box='(1,2)', ", ")"),
    "tool calls": ("", "<tool_call>", ""),
    "closed tool calls": ("", "<tool_call></tool_call>", ""),
    "json depth": ("<tool_call>", '{"a":', "</tool_call>"),
    "json digits": ('<tool_call>{"name": ', "1", "}</tool_call>"),
    "json text": (
        '<tool_call>{"name": "computer_use", "arguments": {"action": "type", "text": "',
        "\\u0041",
        '"}}</tool_call>',
    ),
}


def seconds(text: str, grammar: str) -> float:
    start = time.process_time()
    try:
        parse(text, grammar=grammar, frame=(1932, 1092), screen=(1920, 1080))
    except ActionFormatError as error:
        str(error)
    return time.process_time() - start


@pytest.mark.parametrize("grammar", ["uitars", "qwen_vl"])
@pytest.mark.parametrize("name", UNITS)
def test_a_megabyte(name: str, grammar: str) -> None:
    head, unit, tail = UNITS[name]
    text = head + unit * (MEGABYTE // len(unit)) + tail
    # Quadratic time on a megabyte would be hours; this leaves room for a slow, busy machine.
    assert seconds(text, grammar) < 10.0


def test_a_box_of_ten_thousand_numbers() -> None:
    numbers = ",".join(str(n) for n in range(10_000))
    assert seconds(f"Thought: t\nAction: click(start_box='({numbers})')", "uitars") < 0.5
