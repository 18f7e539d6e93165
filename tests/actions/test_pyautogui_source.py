from __future__ import annotations

import pytest
from fake_guest import FakeGuest, called_modules

from verl_gui.actions import Action, ActionType, to_pyautogui

T = ActionType


def calls(*actions: Action, **options):
    return FakeGuest().run(to_pyautogui(actions, **options)).calls


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (Action(T.CLICK, x=10.5, y=11.5), [("pyautogui.click", (10, 12), {})]),
        (Action(T.LEFT_DOUBLE, x=1, y=2), [("pyautogui.doubleClick", (1, 2), {})]),
        (Action(T.LEFT_TRIPLE, x=1, y=2), [("pyautogui.tripleClick", (1, 2), {})]),
        (Action(T.RIGHT_SINGLE, x=0, y=0), [("pyautogui.click", (0, 0), {"button": "right"})]),
        (Action(T.MIDDLE, x=1, y=2), [("pyautogui.click", (1, 2), {"button": "middle"})]),
        (Action(T.HOVER, x=1, y=2), [("pyautogui.moveTo", (1, 2), {})]),
        (
            Action(T.DRAG, x=1, y=2, end_x=3, end_y=4),
            [
                ("pyautogui.moveTo", (1, 2), {}),
                ("pyautogui.dragTo", (3, 4), {"duration": 0.5, "button": "left"}),
            ],
        ),
        (
            Action(T.SCROLL, x=1, y=2, direction="up", amount=5),
            [("pyautogui.scroll", (5,), {"x": 1, "y": 2})],
        ),
        (Action(T.SCROLL, direction="down", amount=5), [("pyautogui.scroll", (-5,), {})]),
        (Action(T.SCROLL, direction="left", amount=2), [("pyautogui.hscroll", (-2,), {})]),
        (Action(T.SCROLL, direction="right", amount=2), [("pyautogui.hscroll", (2,), {})]),
        (Action(T.HOTKEY, keys=("ctrl", "c")), [("pyautogui.hotkey", ("ctrl", "c"), {})]),
        (Action(T.PRESS, keys=("down",)), [("pyautogui.press", ("down",), {})]),
        (Action(T.PRESS, keys=("<",)), [("pyautogui.hotkey", ("shift", ","), {})]),
        (Action(T.KEY_DOWN, keys=("shift",)), [("pyautogui.keyDown", ("shift",), {})]),
        (
            Action(T.KEY_UP, keys=("<",)),
            [("pyautogui.keyUp", (",",), {}), ("pyautogui.keyUp", ("shift",), {})],
        ),
        (Action(T.WAIT), [("time.sleep", (1.0,), {})]),
        (Action(T.WAIT, seconds=2.5), [("time.sleep", (2.5,), {})]),
    ],
)
def test_calls(action: Action, expected) -> None:
    assert calls(action) == expected


def test_terminal_actions_write_nothing() -> None:
    assert to_pyautogui([Action(T.FINISHED, text="x"), Action(T.FAIL), Action(T.CALL_USER)]) == ""


def test_failsafe_is_off_and_the_clipboard_optional() -> None:
    source = to_pyautogui([Action(T.CLICK, x=0, y=0)])
    assert "pyautogui.FAILSAFE = False" in source
    assert "pyperclip" not in source


def test_text_is_typed_in_order_around_less_than() -> None:
    source = to_pyautogui([Action(T.TYPE, text="a<b\n<<\tc")])
    assert FakeGuest().run(source).text == "a<b\n<<\tc"
    assert called_modules(source) == {"pyautogui"}


def test_lines_with_other_characters_are_pasted() -> None:
    made = calls(Action(T.TYPE, text="北京<\nok\n"), paste_keys=("ctrl", "shift", "v"))
    names = [(name, args) for name, args, _ in made if name != "time.sleep"]
    assert names == [
        ("pyperclip.copy", ("北京<",)),
        ("pyautogui.hotkey", ("ctrl", "shift", "v")),
        ("pyautogui.press", ("enter",)),
        ("pyautogui.write", ("ok",)),
        ("pyautogui.press", ("enter",)),
    ]


@pytest.mark.parametrize(
    "text", ["'''", '"); import os; os.system("id")#', "\\N{bad}", "{x}", "%s", "\\", "\\n"]
)
def test_hostile_text_stays_a_literal(text: str) -> None:
    assert FakeGuest().run(to_pyautogui([Action(T.TYPE, text=text)])).text == text
