"""The computer-use tool calls of Qwen-VL: a thought, then JSON calls in ``<tool_call>`` tags.

``qwen_vl`` (Qwen2.5-VL) reads coordinates as pixels of the picture the model saw, ``qwen3_vl`` as thousandths
of the screen. An answer may hold several calls; nothing but blanks may stand between and after them. A call
is strict JSON and every argument must have the type the tool gives it: nothing is guessed or repaired.

A single key is read as a press, several as a hotkey, because the tool has one action for both.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from verl_gui.actions.coordinates import (
    RELATIVE_FRAME,
    OutOfFrameError,
    Point,
    Size,
    to_frame,
    to_screen,
)
from verl_gui.actions.errors import ActionFormatError, UnsupportedActionError
from verl_gui.actions.grammar import LANGUAGES, Grammar, register_grammar
from verl_gui.actions.keys import MAX_KEYS, UnknownKeyError, split_combination
from verl_gui.actions.types import Action, ActionType, Response
from verl_gui.actions.wrapping import unwrap

TOOL = "computer_use"
PIXELS_PER_NOTCH = 100
"""The tool scrolls by pixels, a wheel by notches; programs scroll about this far for one."""
MAX_SCROLL_PIXELS = 10_000
MAX_WAIT_SECONDS = 60.0

_PARAMETERS: dict[str, dict[str, Any]] = {
    "coordinate": {"type": "array", "description": "Point [x, y] to act on, from the top left corner."},
    "start_coordinate": {"type": "array", "description": "Where a drag begins, if not at the pointer."},
    "text": {"type": "string", "description": "What to type or to answer; a line break presses Enter."},
    "keys": {"type": "array", "description": "Key names, pressed in this order, released in reverse."},
    "pixels": {"type": "number", "description": "How far to scroll; up and right are positive."},
    "time": {"type": "number", "description": "Seconds to wait."},
    "status": {"type": "string", "enum": ["success", "failure"], "description": "How the task ended."},
}


@dataclass(frozen=True)
class Entry:
    """One action of the tool: its name, the parameters it must and may have, what the prompt says."""

    name: str
    required: tuple[str, ...]
    note: str
    optional: tuple[str, ...] = ()


_POINTER = {
    "mouse_move": ActionType.HOVER,
    "left_click": ActionType.CLICK,
    "right_click": ActionType.RIGHT_SINGLE,
    "middle_click": ActionType.MIDDLE,
    "double_click": ActionType.LEFT_DOUBLE,
    "triple_click": ActionType.LEFT_TRIPLE,
}
_POINTER_NAMES = {kind: name for name, kind in _POINTER.items()}
_KEYBOARD = {"key_down": ActionType.KEY_DOWN, "key_up": ActionType.KEY_UP}

ACTIONS = (
    Entry("key", ("keys",), "press keys together"),
    Entry("key_down", ("keys",), "press one key and hold it"),
    Entry("key_up", ("keys",), "release a held key"),
    Entry("type", ("text",), "type text"),
    *(Entry(name, ("coordinate",), f"{name.replace('_', ' ')} at the point") for name in _POINTER),
    Entry("left_click_drag", ("coordinate",), "drag to the point", ("start_coordinate",)),
    Entry("scroll", ("pixels",), "scroll up (positive) or down (negative)", ("coordinate",)),
    Entry("hscroll", ("pixels",), "scroll right (positive) or left (negative)", ("coordinate",)),
    Entry("wait", (), "let the screen change", ("time",)),
    Entry("answer", ("text",), "answer the question and end the task"),
    Entry("terminate", ("status",), "end the task"),
)
_BY_NAME = {entry.name: entry for entry in ACTIONS}

_OPENING = "<tool_call>"
_OPEN = re.compile(r"\s*<tool_call>\s*")
_CLOSE = re.compile(r"\s*</tool_call>\s*")


class _Refused(ValueError):
    """What a call says isn't in the tool; becomes an ActionFormatError with the call's place."""


class QwenVlGrammar(Grammar):
    """Qwen-VL; ``relative`` says that coordinates are thousandths of the screen."""

    def __init__(self, name: str, *, relative: bool) -> None:
        self.name = name
        self.frame = RELATIVE_FRAME if relative else None

    def parse(self, text: str, *, frame: Size, screen: Size) -> Response:
        start, end = unwrap(text)
        opening = text.find(_OPENING, start, end)
        if opening < 0:
            raise ActionFormatError(f"no {_OPENING} in the answer", text)
        actions = []
        position = opening
        while position < end:
            action, position = _read_call(text, position, end, frame, screen)
            actions.append(action)
        return Response(text[start:opening].strip(), actions, text)

    def format(self, actions: Sequence[Action], *, thought: str = "", frame: Size, screen: Size) -> str:
        if not actions:
            raise UnsupportedActionError("an answer needs at least one action")
        calls = [_OPENING + "\n" + _write(action, frame, screen) + "\n</tool_call>" for action in actions]
        return "\n".join([thought, *calls] if thought else calls)

    def system_prompt(self, language: str = "en", *, frame: Size | None = None) -> str:
        width, height = self.frame or frame or (None, None)
        if width is None:
            raise ValueError(f"the prompt of {self.name!r} states the size of the pictures: give frame")
        units = "thousandths of the screen" if self.frame else "pixels of the screenshot"
        notes = "\n".join(f"* {entry.name}: {entry.note}" for entry in ACTIONS)
        tool = {
            "type": "function",
            "function": {
                "name": TOOL,
                "description": (
                    f"Operate a computer with mouse and keyboard. Coordinates are {units}; the screen is "
                    f"{width}x{height} of them. Click in the middle of things."
                ),
                "parameters": {
                    "type": "object",
                    "required": ["action"],
                    "properties": {
                        "action": {
                            "type": "string",
                            "enum": [entry.name for entry in ACTIONS],
                            "description": f"What to do:\n{notes}",
                        },
                        **_PARAMETERS,
                    },
                },
            },
        }
        return (
            "You operate a computer. You are given a task, what you did so far, and the current screenshot. "
            "Do the next step.\n\n"
            f"<tools>\n{json.dumps(tool, ensure_ascii=False)}\n</tools>\n\n"
            f"Say in {LANGUAGES.get(language, language)}, in a sentence or two, what you do next. Then call "
            f'the tool:\n<tool_call>\n{{"name": "{TOOL}", "arguments": {{"action": ...}}}}\n</tool_call>'
        )


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_JSON = json.JSONDecoder(parse_constant=_no_constant)


def _read_call(text: str, start: int, end: int, frame: Size, screen: Size) -> tuple[Action, int]:
    """The call that begins at ``start``, and where it ends."""
    opening = _OPEN.match(text, start, end)
    if opening is None:
        raise ActionFormatError("there is more after the call", text, text[start:end], start)
    try:
        call, json_end = _JSON.raw_decode(text, opening.end())
    except (ValueError, RecursionError) as error:
        reason = f"the call isn't JSON: {str(error)[:80]}"
        raise ActionFormatError(reason, text, text[start:end], start) from error
    closing = _CLOSE.match(text, json_end, end)
    if closing is None:
        raise ActionFormatError("the call isn't closed", text, text[start:end], start)
    try:
        return _read(_arguments(call), frame, screen), closing.end()
    except (_Refused, UnknownKeyError, OutOfFrameError) as error:
        piece = text[opening.end() : json_end]
        raise ActionFormatError(str(error), text, piece, opening.end()) from error


def _arguments(call: object) -> dict[str, Any]:
    """The checked arguments of one call: a known action, with known parameters of the right types."""
    if not isinstance(call, dict) or set(call) != {"name", "arguments"} or call["name"] != TOOL:
        raise _Refused(f"a call is an object with the name {TOOL!r} and arguments")
    arguments = call["arguments"]
    if not isinstance(arguments, dict) or not isinstance(arguments.get("action"), str):
        raise _Refused("arguments must be an object with an action")
    entry = _BY_NAME.get(arguments["action"])
    if entry is None:
        raise _Refused(f"unknown action {arguments['action'][:40]!r}")
    given = set(arguments) - {"action"}
    missing = set(entry.required) - given
    unknown = given - set(entry.required) - set(entry.optional)
    if missing:
        raise _Refused(f"{entry.name} lacks {min(missing)}")
    if unknown:
        raise _Refused(f"{entry.name} takes no {min(unknown)[:40]!r}")
    return arguments


def _read(arguments: dict[str, Any], frame: Size, screen: Size) -> Action:
    try:
        return Action(**_fields(arguments, frame, screen))
    except (_Refused, UnknownKeyError, OutOfFrameError):
        raise
    except ValueError as error:
        raise _Refused(str(error)) from error


def _fields(arguments: dict[str, Any], frame: Size, screen: Size) -> dict[str, Any]:
    name = arguments["action"]
    point = _point(arguments, "coordinate", frame, screen)
    place = {} if point is None else {"x": point[0], "y": point[1]}
    if name in _POINTER:
        return {"type": _POINTER[name], **place}
    if name == "left_click_drag":
        start = _point(arguments, "start_coordinate", frame, screen)
        begin = {} if start is None else {"x": start[0], "y": start[1]}
        return {"type": ActionType.DRAG, **begin, "end_x": place["x"], "end_y": place["y"]}
    if name in ("scroll", "hscroll"):
        return {"type": ActionType.SCROLL, **place, **_scroll(name, _number(arguments, "pixels"))}
    if name == "type":
        return {"type": ActionType.TYPE, "text": _text(arguments)}
    if name == "answer":
        return {"type": ActionType.FINISHED, "text": _text(arguments)}
    if name == "wait":
        seconds = _number(arguments, "time") if "time" in arguments else None
        if seconds is not None and not 0 <= seconds <= MAX_WAIT_SECONDS:
            raise _Refused(f"time must be 0 to {MAX_WAIT_SECONDS:g} seconds")
        return {"type": ActionType.WAIT, "seconds": seconds}
    if name == "terminate":
        if arguments["status"] not in ("success", "failure"):
            raise _Refused("status must be 'success' or 'failure'")
        return {"type": ActionType.FINISHED if arguments["status"] == "success" else ActionType.FAIL}
    keys = _keys(arguments)
    kind = ActionType.PRESS if len(keys) == 1 else ActionType.HOTKEY
    return {"type": _KEYBOARD.get(name, kind), "keys": keys}


def _point(arguments: dict[str, Any], name: str, frame: Size, screen: Size) -> Point | None:
    if name not in arguments:
        return None
    value = arguments[name]
    if not isinstance(value, list) or len(value) != 2 or not all(_is_number(number) for number in value):
        raise _Refused(f"{name} must be two numbers [x, y]")
    return to_screen((value[0], value[1]), frame, screen)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e9


def _number(arguments: dict[str, Any], name: str) -> float:
    value = arguments[name]
    if not _is_number(value) or not math.isfinite(value):
        raise _Refused(f"{name} must be a number")
    return float(value)


def _text(arguments: dict[str, Any]) -> str:
    value = arguments["text"]
    if not isinstance(value, str):
        raise _Refused("text must be a string")
    return value.replace("\r\n", "\n").replace("\r", "\n")


def _keys(arguments: dict[str, Any]) -> tuple[str, ...]:
    names = arguments["keys"]
    if not isinstance(names, list) or not 1 <= len(names) <= MAX_KEYS:
        raise _Refused(f"keys must be a list of 1 to {MAX_KEYS} names")
    keys: list[str] = []
    for name in names:
        if not isinstance(name, str):
            raise _Refused("keys must be names")
        keys.extend(("space",) if name == " " else split_combination(name))
    return tuple(keys)


def _scroll(name: str, pixels: float) -> dict[str, Any]:
    if not 0 < abs(pixels) <= MAX_SCROLL_PIXELS:
        raise _Refused(f"pixels must be 1 to {MAX_SCROLL_PIXELS}, up or down")
    forward, backward = ("up", "down") if name == "scroll" else ("right", "left")
    notches = max(1, round(abs(pixels) / PIXELS_PER_NOTCH))
    return {"direction": forward if pixels > 0 else backward, "amount": notches}


def _write(action: Action, frame: Size, screen: Size) -> str:
    arguments = _write_arguments(action)
    for name, x, y in (("coordinate", action.x, action.y), ("end", action.end_x, action.end_y)):
        if x is not None and y is not None:
            arguments[name] = list(to_frame((x, y), frame, screen))
    if action.type is ActionType.DRAG:
        if "coordinate" in arguments:
            arguments["start_coordinate"] = arguments.pop("coordinate")
        arguments["coordinate"] = arguments.pop("end")
    return json.dumps({"name": TOOL, "arguments": arguments}, ensure_ascii=False)


def _write_arguments(action: Action) -> dict[str, Any]:
    """Everything but coordinates."""
    kind = action.type
    if kind in _POINTER_NAMES:
        return {"action": _POINTER_NAMES[kind]}
    if kind is ActionType.DRAG:
        return {"action": "left_click_drag"}
    if kind is ActionType.SCROLL:
        name = "scroll" if action.direction in ("up", "down") else "hscroll"
        sign = 1 if action.direction in ("up", "right") else -1
        pixels = sign * (action.amount or 0) * PIXELS_PER_NOTCH
        if abs(pixels) > MAX_SCROLL_PIXELS:
            raise UnsupportedActionError(f"the tool scrolls at most {MAX_SCROLL_PIXELS} pixels, not {pixels}")
        return {"action": name, "pixels": pixels}
    if kind is ActionType.TYPE:
        return {"action": "type", "text": action.text}
    if kind in (ActionType.HOTKEY, ActionType.PRESS):
        return {"action": "key", "keys": list(action.keys or ())}
    if kind in (ActionType.KEY_DOWN, ActionType.KEY_UP):
        return {"action": kind.value, "keys": list(action.keys or ())}
    if kind is ActionType.WAIT:
        return {"action": "wait", **({} if action.seconds is None else {"time": action.seconds})}
    if kind is ActionType.FINISHED and action.text is not None:
        return {"action": "answer", "text": action.text}
    if kind in (ActionType.FINISHED, ActionType.FAIL) and action.text is None:
        return {"action": "terminate", "status": "success" if kind is ActionType.FINISHED else "failure"}
    raise UnsupportedActionError(f"the tool has no call for {action}")


QWEN_VL = register_grammar(QwenVlGrammar("qwen_vl", relative=False))
QWEN3_VL = register_grammar(QwenVlGrammar("qwen3_vl", relative=True))
