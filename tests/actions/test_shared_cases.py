"""Every case that broke another system, against grammar, coordinates, executors and reward."""

from __future__ import annotations

from typing import Any

import pytest
from fake_guest import FakeGuest, called_modules
from shared_cases import cases

from verl_gui.actions import Action, ActionFormatError, ActionType, format_reward, parse, to_pyautogui
from verl_gui.actions.coordinates import clamp, frame_from_grid, scale_point

PIXEL = pytest.approx


@cases("parse")
def test_answer(case: dict[str, Any]) -> None:
    expected = case["expect"]
    options = [expected]
    if "any_of" in expected:
        options = expected["any_of"]
    try:
        actions = parse(case["raw"], frame=tuple(case["frame"]), screen=tuple(case["screen"])).actions
    except ActionFormatError as error:
        assert "format_error" in options, error
        return
    sentences = [option for option in options if option != "format_error"]
    assert sentences, f"must be a format error, got {actions}"
    for option in sentences:
        wanted = option.get("actions", [option])
        assert len(wanted) == len(actions)
        for action, want in zip(actions, wanted, strict=True):
            check_action(action, want)


def check_action(action: Action, want: dict[str, Any]) -> None:
    assert action.type == want["type"]
    if "pixel" in want:
        assert (action.x, action.y) == PIXEL(tuple(want["pixel"]), abs=1e-3)
    if "pixel_end" in want:
        assert (action.end_x, action.end_y) == PIXEL(tuple(want["pixel_end"]), abs=1e-3)
    if "text" in want:
        assert action.text == want["text"] + "\n" * want["enter"]
    if action.type is ActionType.TYPE and "keys" in want:
        assert action.text == "".join("\n" if key == "<enter>" else key for key in want["keys"])
    elif "keys" in want:
        assert action.keys == tuple(want["keys"])
    source = to_pyautogui([action])
    called_modules(source)
    if action.text and action.type is ActionType.TYPE:
        assert FakeGuest().run(source).text == action.text
    if "axis" in want:
        name, args, _ = FakeGuest().run(source).calls[-1]
        assert name == {"v": "pyautogui.scroll", "h": "pyautogui.hscroll"}[want["axis"]]
        assert args[0] * want["sign"] > 0


@cases("coord")
def test_absolute_coordinates(case: dict[str, Any]) -> None:
    point, frame, screen = (tuple(case[name]) for name in ("point", "frame", "screen"))
    assert scale_point(point, frame, screen) == PIXEL(tuple(case["pixel"]), abs=1e-3)
    answer = f"Thought: t\nAction: click(start_box='({point[0]},{point[1]})')"
    action = parse(answer, frame=frame, screen=screen).actions[0]
    assert (action.x, action.y) == PIXEL(tuple(case["pixel"]), abs=0.02)
    assert action.x <= screen[0] - 1 and action.y <= screen[1] - 1


@cases("coord_rel")
def test_relative_coordinates(case: dict[str, Any]) -> None:
    answer = f"Thought: t\nAction: click(start_box='({case['point'][0]},{case['point'][1]})')"
    action = parse(answer, grammar="uitars_rel", screen=tuple(case["screen"])).actions[0]
    assert (action.x, action.y) == tuple(case.get("clamped", case["pixel"]))


@cases("scale")
def test_scaling(case: dict[str, Any]) -> None:
    point, frame, screen = (tuple(case[name]) for name in ("point", "frame", "screen"))
    assert clamp(scale_point(point, frame, screen), screen) == tuple(case["pixel"])


@cases("proc")
def test_frame_of_a_grid(case: dict[str, Any]) -> None:
    assert frame_from_grid(case["grid"]) == tuple(case["frame"])


@cases("typing")
def test_typed_text(case: dict[str, Any]) -> None:
    text = case["text"] + "\n" * case.get("enter", 0)
    guest = FakeGuest().run(to_pyautogui([Action(ActionType.TYPE, text=text)]))
    assert guest.text == case["expect"] + "\n" * case.get("enter", 0)


@cases("reward")
def test_reward(case: dict[str, Any]) -> None:
    malformed = [False, *[True] * case["malformed"]]
    assert case["env"] + format_reward(malformed) == case["expect"]
