"""Writes actions as Python source for desktops that are driven through pyautogui, such as OSWorld guests.

Whatever the model wrote gets into the source as literals only. The source calls nothing but ``pyautogui``,
``pyperclip`` and ``time``, and is one statement a line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from verl_gui.actions.coordinates import to_pixel
from verl_gui.actions.types import Action, ActionType

DRAG_SECONDS = 0.5
WAIT_SECONDS = 1.0
CLIPBOARD_SECONDS = 0.1
PASTE_KEYS = ("ctrl", "v")

_CLICKS = {
    ActionType.CLICK: "click({x}, {y})",
    ActionType.LEFT_DOUBLE: "doubleClick({x}, {y})",
    ActionType.LEFT_TRIPLE: "tripleClick({x}, {y})",
    ActionType.RIGHT_SINGLE: "click({x}, {y}, button='right')",
    ActionType.MIDDLE: "click({x}, {y}, button='middle')",
    ActionType.HOVER: "moveTo({x}, {y})",
}
_SCROLLS = {"up": ("scroll", 1), "down": ("scroll", -1), "right": ("hscroll", 1), "left": ("hscroll", -1)}
_KEY_CALLS = {
    ActionType.HOTKEY: "hotkey",
    ActionType.PRESS: "press",
    ActionType.KEY_DOWN: "keyDown",
    ActionType.KEY_UP: "keyUp",
}
# pyautogui finds '<' on the extra ISO key and adds shift, which makes '>'.
_LESS_THAN = ("shift", ",")
_TYPED = re.compile(r"[\n\t<]|[^\n\t<]+")
_LINE = re.compile(r"[\n\t]|[^\n\t]+")
_TYPED_KEYS = {"\n": "press('enter')", "\t": "press('tab')", "<": "hotkey('shift', ',')"}


def to_pyautogui(
    actions: Sequence[Action],
    *,
    default_wait_s: float = WAIT_SECONDS,
    paste_keys: Sequence[str] = PASTE_KEYS,
) -> str:
    """Source that performs ``actions``; empty if they send nothing to the screen.

    ASCII text is typed for a US keyboard. A line with other characters is pasted from the clipboard, which
    then keeps that line; if the guest has no clipboard tool, pyperclip raises there instead of losing text.

    Args:
        actions: what to do, in order. Terminal actions write nothing.
        default_wait_s: length of a wait that names none.
        paste_keys: the keys that paste in the program with the focus; terminals want ctrl, shift and v.

    Returns:
        Python source of calls with literal arguments.
    """
    lines = [line for action in actions for line in _lines(action, default_wait_s, tuple(paste_keys))]
    if not lines:
        return ""
    imports = ["import time", "import pyautogui"]
    if any(line.startswith("pyperclip.") for line in lines):
        imports.append("import pyperclip")
    return "\n".join([*imports, "pyautogui.FAILSAFE = False", *lines]) + "\n"


def _lines(action: Action, default_wait_s: float, paste_keys: tuple[str, ...]) -> list[str]:
    if action.type in _CLICKS:
        x, y = to_pixel(action.x or 0.0, action.y or 0.0)
        return ["pyautogui." + _CLICKS[action.type].format(x=x, y=y)]
    if action.type is ActionType.DRAG:
        end_x, end_y = to_pixel(action.end_x or 0.0, action.end_y or 0.0)
        return [
            *_move(action),
            f"pyautogui.dragTo({end_x}, {end_y}, duration={DRAG_SECONDS}, button='left')",
        ]
    if action.type is ActionType.SCROLL:
        call, sign = _SCROLLS[action.direction or ""]
        place = ""
        if action.x is not None and action.y is not None:
            x, y = to_pixel(action.x, action.y)
            place = f", x={x}, y={y}"
        return [f"pyautogui.{call}({sign * (action.amount or 0)}{place})"]
    if action.type is ActionType.TYPE:
        return [line for part in _LINE.findall(action.text or "") for line in _type(part, paste_keys)]
    if action.type in _KEY_CALLS:
        return _keys(action)
    if action.type is ActionType.WAIT:
        return [f"time.sleep({default_wait_s if action.seconds is None else action.seconds!r})"]
    return []


def _move(action: Action) -> list[str]:
    if action.x is None or action.y is None:
        return []
    x, y = to_pixel(action.x, action.y)
    return [f"pyautogui.moveTo({x}, {y})"]


def _type(part: str, paste_keys: tuple[str, ...]) -> list[str]:
    if not part.isascii():
        keys = ", ".join(map(repr, paste_keys))
        # Clipboard tools take over the selection in the background; the program must find the new text.
        return [
            f"pyperclip.copy({part!r})",
            f"time.sleep({CLIPBOARD_SECONDS})",
            f"pyautogui.hotkey({keys})",
            f"time.sleep({CLIPBOARD_SECONDS})",
        ]
    return ["pyautogui." + _TYPED_KEYS.get(piece, f"write({piece!r})") for piece in _TYPED.findall(part)]


def _keys(action: Action) -> list[str]:
    keys = [name for key in action.keys or () for name in (_LESS_THAN if key == "<" else (key,))]
    call = _KEY_CALLS[action.type]
    if call == "press" and len(keys) > 1:
        call = "hotkey"
    if call == "hotkey":
        return [f"pyautogui.hotkey({', '.join(map(repr, keys))})"]
    ordered = reversed(keys) if call == "keyUp" else keys
    return [f"pyautogui.{call}({key!r})" for key in ordered]
