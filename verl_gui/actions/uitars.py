"""The grammar of UI-TARS 1.0 and 1.5: ``Thought: …`` then ``Action: click(start_box='(x,y)')``.

``uitars`` reads coordinates as pixels of the picture the model saw (1.5, Qwen2.5-VL base), ``uitars_rel`` as
thousandths of the screen (1.0, Qwen2-VL base). Which of the two holds belongs to the model and is never
guessed from the numbers. The spellings of both generations are accepted by both.

What is repaired and what is refused: a coordinate argument whose closing quote or bracket is missing at the
very end is read if its own bracket or tag is closed, because then both numbers are whole; everything else
that is unfinished is refused. So are an answer without ``Action:``, coordinates outside the frame, and text
after the call. If there are several ``Action:`` lines, the last one counts.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from verl_gui.actions.calls import Call, Signature, Value, read_calls
from verl_gui.actions.coordinates import (
    RELATIVE_FRAME,
    OutOfFrameError,
    Point,
    Size,
    box_center,
    check_in_frame,
    to_frame,
    to_screen,
)
from verl_gui.actions.errors import ActionFormatError, UnsupportedActionError
from verl_gui.actions.grammar import LANGUAGES, Grammar, register_grammar
from verl_gui.actions.keys import UnknownKeyError, split_combination
from verl_gui.actions.types import DIRECTIONS, Action, ActionType, Response
from verl_gui.actions.wrapping import unwrap

SCROLL_NOTCHES = 5
"""The grammar has no amount; a scroll is this many notches of the wheel."""

START, END, CONTENT, KEY, DIRECTION = "start_box", "end_box", "content", "key", "direction"
_SPELLINGS = {
    START: (START, "point", "start_point"),
    END: (END, "end_point"),
    CONTENT: (CONTENT,),
    KEY: (KEY, "hotkey", "press"),
    DIRECTION: (DIRECTION,),
}
_EXAMPLES = {
    START: "'(x1,y1)'",
    END: "'(x2,y2)'",
    CONTENT: "'…'",
    KEY: "'ctrl c'",
    DIRECTION: "'down'",
}


@dataclass(frozen=True)
class Entry:
    """One row of the action space.

    Attributes:
        type: the action it stands for.
        names: how models write it; the first is how we do.
        arguments: canonical names of the arguments it must have.
        optional: arguments it may have.
        note: what the prompt tells the model about it; ``None`` keeps it out of the prompt.
    """

    type: ActionType
    names: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    note: str | None = None


ACTIONS = (
    Entry(ActionType.CLICK, ("click", "left_single", "left_click"), (START,), note=""),
    Entry(ActionType.LEFT_DOUBLE, ("left_double", "double_click"), (START,), note=""),
    Entry(ActionType.RIGHT_SINGLE, ("right_single", "right_click"), (START,), note=""),
    Entry(ActionType.MIDDLE, ("middle_single", "middle_click", "middle"), (START,)),
    Entry(ActionType.LEFT_TRIPLE, ("left_triple", "triple_click"), (START,)),
    Entry(ActionType.HOVER, ("hover", "mouse_move"), (START,)),
    Entry(ActionType.DRAG, ("drag", "select", "left_click_drag"), (START, END), note=""),
    Entry(ActionType.HOTKEY, ("hotkey",), (KEY,), note="keys in lower case, divided by blanks, at most 3"),
    Entry(ActionType.PRESS, ("press",), (KEY,)),
    Entry(ActionType.KEY_DOWN, ("keydown", "key_down"), (KEY,)),
    Entry(ActionType.KEY_UP, ("keyup", "key_up", "release"), (KEY,)),
    Entry(
        ActionType.TYPE,
        ("type",),
        (CONTENT,),
        note=r"write \' for a quote, \\ for a backslash and \n for Enter; end with \n to submit",
    ),
    Entry(ActionType.SCROLL, ("scroll",), (START, DIRECTION), note="direction: up, down, left or right"),
    Entry(ActionType.WAIT, ("wait",), note="let the screen change, then look again"),
    Entry(ActionType.FINISHED, ("finished",), optional=(CONTENT,), note="the task is done"),
    Entry(ActionType.FAIL, ("fail", "infeasible", "error_env"), optional=(CONTENT,), note="it can't be done"),
    Entry(ActionType.CALL_USER, ("call_user",), optional=(CONTENT,), note="only the user can go on"),
)
_BY_NAME = {name: entry for entry in ACTIONS for name in entry.names}
_BY_TYPE = {entry.type: entry for entry in ACTIONS}


def _signature(entry: Entry) -> Signature:
    taken = entry.arguments + entry.optional
    spellings = {spelling: key for key in taken for spelling in _SPELLINGS[key]}
    return Signature(spellings, frozenset({START, END}.intersection(taken)))


_SIGNATURES = {name: _signature(entry) for name, entry in _BY_NAME.items()}

_ACTION_LINE = re.compile(r"^[^\S\n]*Action[^\S\n]*[:：]", re.MULTILINE)
_THOUGHT_PREFIX = re.compile(r"\s*Thought[^\S\n]*[:：]\s*")
_BODY_FENCE = re.compile(r"\s*```\w{0,20}[^\S\n]*\n")

_NUMBER = r"-?\d{1,7}(?:\.\d{1,7})?"
_NUMBERS = rf"\s*({_NUMBER}(?:(?:\s*,\s*|\s+){_NUMBER})*)\s*"
_CLOSED_BOX = (
    rf"(?:<point>{_NUMBERS}</point>|<bbox>{_NUMBERS}</bbox>|<point>\s*\({_NUMBERS}\)\s*</point>"
    rf"|\({_NUMBERS}\)|\[{_NUMBERS}\])"
)
_BOX = re.compile(rf"\s*(?:{_CLOSED_BOX}|{_NUMBERS})\s*", re.ASCII)
_UNFINISHED_BOX = re.compile(rf"\s*{_CLOSED_BOX}\s*\)?\s*", re.ASCII)
_SEPARATOR = re.compile(r"[\s,]+")
_MAX_BOX = 200
_FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: " "}
_BOX_TOKENS = re.compile(r"<\|box_(?:start|end)\|>")

_ESCAPE = re.compile(r"\\(?:r\\n|[nt'\"\\])|\r\n?")
_UNESCAPED = {
    "\\r\\n": "\n",
    "\\n": "\n",
    "\\t": "\t",
    "\\'": "'",
    '\\"': '"',
    "\\\\": "\\",
    "\r": "\n",
    "\r\n": "\n",
}
_ESCAPED = str.maketrans({"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t"})


class UiTarsGrammar(Grammar):
    """UI-TARS; ``relative`` says that coordinates are thousandths of the screen."""

    def __init__(self, name: str, *, relative: bool) -> None:
        self.name = name
        self.frame = RELATIVE_FRAME if relative else None

    def parse(self, text: str, *, frame: Size, screen: Size) -> Response:
        start, end = unwrap(text)
        prefix = _last(_ACTION_LINE.finditer(text, start, end))
        if prefix is None:
            raise ActionFormatError("no line begins with 'Action:'", text)
        fence = _BODY_FENCE.match(text, prefix.end(), end)
        calls = read_calls(text, fence.end() if fence else prefix.end(), end, _SIGNATURES)
        if not calls:
            raise ActionFormatError("nothing follows 'Action:'", text, prefix.group(), prefix.start())
        actions = [_to_action(call, text, frame, screen) for call in calls]
        return Response(_thought(text, start, prefix.start()), actions, text)

    def format(self, actions: Sequence[Action], *, thought: str = "", frame: Size, screen: Size) -> str:
        if not actions:
            raise UnsupportedActionError("an answer needs at least one action")
        calls = "\n\n".join(_write_call(action, frame, screen) for action in actions)
        return f"Thought: {thought}\nAction: {calls}"

    def system_prompt(self, language: str = "en", *, frame: Size | None = None) -> str:
        units = "thousandths of its width and height" if self.frame else "its pixels"
        rows = "\n".join(_describe(entry) for entry in ACTIONS if entry.note is not None)
        return (
            "You operate a computer. You are given a task, what you did so far, and the current screenshot. "
            "Do the next step.\n\n"
            "Answer in this form:\nThought: ...\nAction: ...\n\n"
            f"You can use these actions:\n{rows}\n\n"
            f"(x,y) is a point of the screenshot in {units}, counted from the top left corner.\n"
            f"Write the thought in {LANGUAGES.get(language, language)}: what you plan, and at its end the "
            "next action and its target in one sentence."
        )


def _last(found: Iterable[re.Match[str]]) -> re.Match[str] | None:
    remaining = deque(found, maxlen=1)
    return remaining[0] if remaining else None


def _thought(text: str, start: int, end: int) -> str:
    prefix = _THOUGHT_PREFIX.match(text, start, end)
    return text[prefix.end() if prefix else start : end].strip()


def _to_action(call: Call, text: str, frame: Size, screen: Size) -> Action:
    entry = _BY_NAME[call.name]
    values = call.arguments
    piece = text[call.position : call.end]
    missing = [key for key in entry.arguments if key not in values]
    if missing:
        raise ActionFormatError(f"{call.name} lacks {missing[0]}", text, piece, call.position)
    fields: dict[str, object] = {}
    if START in values:
        fields["x"], fields["y"] = _read_point(values[START], text, frame, screen)
    if END in values:
        fields["end_x"], fields["end_y"] = _read_point(values[END], text, frame, screen)
    if CONTENT in values:
        fields["text"] = _unescape(values[CONTENT])
    if KEY in values:
        fields["keys"] = _read_keys(values[KEY], text)
    if DIRECTION in values:
        fields["direction"] = _read_direction(values[DIRECTION], text)
        fields["amount"] = SCROLL_NOTCHES
    try:
        return Action(entry.type, **fields)  # type: ignore[arg-type]
    except ValueError as error:
        raise ActionFormatError(str(error), text, piece, call.position) from error


def _read_point(value: Value, text: str, frame: Size, screen: Size) -> Point:
    def error(reason: str) -> ActionFormatError:
        return ActionFormatError(reason, text, value.text, value.position)

    if len(value.text) > _MAX_BOX:
        raise error(f"a coordinate argument of {len(value.text)} characters")
    written = _BOX_TOKENS.sub("", value.text).translate(_FULL_WIDTH)
    found = (_BOX if value.closed else _UNFINISHED_BOX).fullmatch(written)
    if found is None:
        raise error("not a point (x,y) or box (x1,y1,x2,y2)" if value.closed else "unfinished coordinates")
    digits = next(group for group in found.groups() if group is not None)
    numbers = [float(number) for number in _SEPARATOR.split(digits)]
    if len(numbers) not in (2, 4):
        raise error(f"{len(numbers)} numbers; a point has 2 and a box 4")
    try:
        for corner in range(0, len(numbers), 2):
            check_in_frame((numbers[corner], numbers[corner + 1]), frame)
        point = (numbers[0], numbers[1]) if len(numbers) == 2 else box_center(numbers)
        return to_screen(point, frame, screen)
    except OutOfFrameError as cause:
        raise error(str(cause)) from cause


def _unescape(value: Value) -> str:
    return _ESCAPE.sub(lambda found: _UNESCAPED[found.group()], value.text)


def _read_keys(value: Value, text: str) -> tuple[str, ...]:
    try:
        return split_combination(_unescape(value))
    except UnknownKeyError as error:
        raise ActionFormatError(str(error), text, value.text, value.position) from error


def _read_direction(value: Value, text: str) -> str:
    direction = value.text.strip().lower()
    if direction not in DIRECTIONS:
        raise ActionFormatError(f"direction must be one of {DIRECTIONS}", text, value.text, value.position)
    return direction


def _write_call(action: Action, frame: Size, screen: Size) -> str:
    entry = _BY_TYPE[action.type]
    values: dict[str, str] = {}
    if action.x is not None and action.y is not None:
        values[START] = _write_point((action.x, action.y), frame, screen)
    if action.end_x is not None and action.end_y is not None:
        values[END] = _write_point((action.end_x, action.end_y), frame, screen)
    if action.text is not None:
        values[CONTENT] = action.text.translate(_ESCAPED)
    if action.keys is not None:
        values[KEY] = " ".join(action.keys).translate(_ESCAPED)
    if action.direction is not None:
        values[DIRECTION] = action.direction
    unsaid = [key for key in entry.arguments if key not in values]
    if unsaid or action.seconds is not None or action.amount not in (None, SCROLL_NOTCHES):
        raise UnsupportedActionError(f"the grammar can't say {action}")
    arguments = ", ".join(f"{key}='{value}'" for key, value in values.items())
    return f"{entry.names[0]}({arguments})"


def _write_point(point: Point, frame: Size, screen: Size) -> str:
    x, y = to_frame(point, frame, screen)
    return f"({x},{y})"


def _describe(entry: Entry) -> str:
    arguments = ", ".join(f"{key}={_EXAMPLES[key]}" for key in entry.arguments + entry.optional)
    call = f"{entry.names[0]}({arguments})"
    return f"{call}  # {entry.note}" if entry.note else call


UITARS = register_grammar(UiTarsGrammar("uitars", relative=False))
UITARS_RELATIVE = register_grammar(UiTarsGrammar("uitars_rel", relative=True))
