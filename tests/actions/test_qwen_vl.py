from __future__ import annotations

import json
from typing import Any

import pytest

from verl_gui.actions import (
    Action,
    ActionFormatError,
    ActionType,
    UnsupportedActionError,
    format_actions,
    get_grammar,
    parse,
)
from verl_gui.actions.qwen_vl import ACTIONS

FRAME = (1932, 1092)
SCREEN = (1920, 1080)
T = ActionType


def answer(*calls: dict[str, Any], thought: str = "t") -> str:
    bodies = [json.dumps({"name": "computer_use", "arguments": call}) for call in calls]
    return "\n".join([thought, *(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)])


def read(*calls: dict[str, Any], grammar: str = "qwen_vl") -> list[Action]:
    return parse(answer(*calls), grammar=grammar, frame=FRAME, screen=SCREEN).actions


@pytest.mark.parametrize(
    ("call", "action"),
    [
        ({"action": "left_click", "coordinate": [966, 546]}, Action(T.CLICK, x=960, y=540)),
        ({"action": "double_click", "coordinate": [0, 0]}, Action(T.LEFT_DOUBLE, x=0, y=0)),
        ({"action": "triple_click", "coordinate": [1932, 1092]}, Action(T.LEFT_TRIPLE, x=1919, y=1079)),
        ({"action": "right_click", "coordinate": [966.0, 546]}, Action(T.RIGHT_SINGLE, x=960, y=540)),
        ({"action": "middle_click", "coordinate": [966, 546]}, Action(T.MIDDLE, x=960, y=540)),
        ({"action": "mouse_move", "coordinate": [966, 546]}, Action(T.HOVER, x=960, y=540)),
        ({"action": "left_click_drag", "coordinate": [966, 546]}, Action(T.DRAG, end_x=960, end_y=540)),
        (
            {"action": "left_click_drag", "start_coordinate": [0, 0], "coordinate": [966, 546]},
            Action(T.DRAG, x=0, y=0, end_x=960, end_y=540),
        ),
        ({"action": "scroll", "pixels": -500}, Action(T.SCROLL, direction="down", amount=5)),
        ({"action": "scroll", "pixels": 3}, Action(T.SCROLL, direction="up", amount=1)),
        (
            {"action": "hscroll", "pixels": 200, "coordinate": [966, 546]},
            Action(T.SCROLL, x=960, y=540, direction="right", amount=2),
        ),
        ({"action": "type", "text": "a\r\n'<é\n"}, Action(T.TYPE, text="a\n'<é\n")),
        ({"action": "key", "keys": ["Ctrl", "C"]}, Action(T.HOTKEY, keys=("ctrl", "c"))),
        ({"action": "key", "keys": ["ctrl+shift+t"]}, Action(T.HOTKEY, keys=("ctrl", "shift", "t"))),
        ({"action": "key", "keys": ["Return"]}, Action(T.PRESS, keys=("enter",))),
        ({"action": "key", "keys": [" "]}, Action(T.PRESS, keys=("space",))),
        ({"action": "key_down", "keys": ["shift"]}, Action(T.KEY_DOWN, keys=("shift",))),
        ({"action": "key_up", "keys": ["shift"]}, Action(T.KEY_UP, keys=("shift",))),
        ({"action": "wait"}, Action(T.WAIT)),
        ({"action": "wait", "time": 2}, Action(T.WAIT, seconds=2.0)),
        ({"action": "terminate", "status": "success"}, Action(T.FINISHED)),
        ({"action": "terminate", "status": "failure"}, Action(T.FAIL)),
        ({"action": "answer", "text": "42"}, Action(T.FINISHED, text="42")),
    ],
)
def test_calls(call: dict[str, Any], action: Action) -> None:
    assert read(call) == [action]
    written = format_actions([action], grammar="qwen_vl", frame=FRAME, screen=SCREEN)
    assert parse(written, grammar="qwen_vl", frame=FRAME, screen=SCREEN).actions == [action]


def test_relative_option() -> None:
    call = {"action": "left_click", "coordinate": [500, 500]}
    assert read(call, grammar="qwen3_vl") == [Action(T.CLICK, x=960, y=540)]
    with pytest.raises(ActionFormatError, match="outside"):
        read({"action": "left_click", "coordinate": [966, 1092]}, grammar="qwen3_vl")


def test_several_calls_and_the_thought() -> None:
    text = '</tool_call> "<tool_call>'
    calls = ({"action": "left_click", "coordinate": [966, 546]}, {"action": "type", "text": text})
    written = answer(*calls, thought=" I click.\n") + "<|im_end|>"
    response = parse(written, grammar="qwen_vl", frame=FRAME, screen=SCREEN)
    assert response.thought == "I click."
    assert response.actions == [Action(T.CLICK, x=960, y=540), Action(T.TYPE, text=text)]


@pytest.mark.parametrize(
    "call",
    [
        {"action": "left_click"},
        {"action": "left_click", "coordinate": [1]},
        {"action": "left_click", "coordinate": [1, 2, 3, 4]},
        {"action": "left_click", "coordinate": "1, 2"},
        {"action": "left_click", "coordinate": [True, 1]},
        {"action": "left_click", "coordinate": ["1", "2"]},
        {"action": "left_click", "coordinate": [None, 2]},
        {"action": "left_click", "coordinate": [-1, 2]},
        {"action": "left_click", "coordinate": [1e300, 2]},
        {"action": "left_click", "coordinate": [10**400, 2]},
        {"action": "left_click", "coordinate": [5, 5], "button": "x"},
        {"action": "left_click_drag", "start_coordinate": [5, 5]},
        {"action": "fly", "coordinate": [5, 5]},
        {"action": ["left_click"], "coordinate": [5, 5]},
        {"coordinate": [5, 5]},
        {"action": "scroll", "pixels": 0},
        {"action": "scroll", "pixels": 1e9},
        {"action": "scroll", "pixels": "5"},
        {"action": "type", "text": ""},
        {"action": "type", "text": 5},
        {"action": "type", "text": "\ud800"},
        {"action": "type", "text": "\0"},
        {"action": "key", "keys": "enter"},
        {"action": "key", "keys": []},
        {"action": "key", "keys": [1]},
        {"action": "key", "keys": ["a"] * 9},
        {"action": "key", "keys": ["hyperdrive"]},
        {"action": "key_down", "keys": ["ctrl", "c"]},
        {"action": "wait", "time": -1},
        {"action": "wait", "time": 1e6},
        {"action": "terminate", "status": "maybe"},
        {"action": "terminate", "status": ["success"]},
    ],
)
def test_refused_calls(call: dict[str, Any]) -> None:
    with pytest.raises(ActionFormatError):
        read(call)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "left click",
        "<tool_call>",
        "<tool_call>{}</tool_call>",
        "<tool_call>[]</tool_call>",
        "<tool_call>null</tool_call>",
        "<tool_call>{'name': 'computer_use'}</tool_call>",
        '<tool_call>{"name": "computer_use", "arguments": []}</tool_call>',
        '<tool_call>{"name": "shell", "arguments": {"action": "wait"}}</tool_call>',
        '<tool_call>{"name": "computer_use", "arguments": {"action": "wait"}}',
        '<tool_call>{"name": "computer_use", "arguments": {"action": "wait", "time": NaN}}</tool_call>',
        '<tool_call>{"name": "computer_use", "arguments": {"action": "wait"}}</tool_call> and more',
        '<tool_call>{"name": "computer_use", "arguments": {"action": "wait"}}</tool_call><tool_call>',
        "<tool_call>" + "[" * 100_000 + "</tool_call>",
        '<tool_call>{"name": "computer_use", "arguments": {"action": "wait", "time": '
        + "1" * 9000
        + "}}</tool_call>",
    ],
)
def test_refused_answers(text: str) -> None:
    with pytest.raises(ActionFormatError):
        parse(text, grammar="qwen_vl", frame=FRAME, screen=SCREEN)


@pytest.mark.parametrize(
    "action",
    [
        Action(T.CALL_USER),
        Action(T.FAIL, text="why"),
        Action(T.SCROLL, direction="up", amount=101),
    ],
)
def test_what_the_tool_cannot_say_is_refused(action: Action) -> None:
    with pytest.raises(UnsupportedActionError):
        format_actions([action], grammar="qwen_vl", frame=FRAME, screen=SCREEN)


def test_prompt_holds_the_tool_as_json() -> None:
    prompt = get_grammar("qwen_vl").system_prompt(frame=FRAME)
    tool = json.loads(prompt.partition("<tools>")[2].partition("</tools>")[0])["function"]
    assert tool["parameters"]["properties"]["action"]["enum"] == [entry.name for entry in ACTIONS]
    assert "1932x1092" in tool["description"]
    relative = get_grammar("qwen3_vl").system_prompt("zh")
    assert "1000x1000" in relative and "Chinese" in relative
    with pytest.raises(ValueError, match="frame"):
        get_grammar("qwen_vl").system_prompt()
