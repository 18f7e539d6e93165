"""What a GUI model can do, independent of the grammar it says it in.

An :class:`Action` carries everything an executor needs and nothing about how the model wrote it. Its
coordinates are screen pixels. It checks itself when built, so executors never meet a half-filled one.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import Enum

from verl_gui.actions.keys import KEYS

DIRECTIONS = ("up", "down", "left", "right")


class ActionType(str, Enum):
    """Kinds of action; the values are the names used in logs, records and tests."""

    CLICK = "click"
    LEFT_DOUBLE = "left_double"
    LEFT_TRIPLE = "left_triple"
    RIGHT_SINGLE = "right_single"
    MIDDLE = "middle"
    HOVER = "hover"
    DRAG = "drag"
    SCROLL = "scroll"
    TYPE = "type"
    HOTKEY = "hotkey"
    PRESS = "press"
    KEY_DOWN = "key_down"
    KEY_UP = "key_up"
    WAIT = "wait"
    FINISHED = "finished"
    FAIL = "fail"
    CALL_USER = "call_user"

    @property
    def is_terminal(self) -> bool:
        """True for actions that end the episode and send nothing to the screen."""
        return self in (ActionType.FINISHED, ActionType.FAIL, ActionType.CALL_USER)


POINTER_TYPES = frozenset(
    {
        ActionType.CLICK,
        ActionType.LEFT_DOUBLE,
        ActionType.LEFT_TRIPLE,
        ActionType.RIGHT_SINGLE,
        ActionType.MIDDLE,
        ActionType.HOVER,
    }
)
SINGLE_KEY_TYPES = frozenset({ActionType.PRESS, ActionType.KEY_DOWN, ActionType.KEY_UP})

_FIELDS: dict[ActionType, frozenset[str]] = {
    **{kind: frozenset({"x", "y"}) for kind in POINTER_TYPES},
    **{kind: frozenset({"keys"}) for kind in SINGLE_KEY_TYPES},
    ActionType.HOTKEY: frozenset({"keys"}),
    ActionType.DRAG: frozenset({"x", "y", "end_x", "end_y"}),
    ActionType.SCROLL: frozenset({"x", "y", "direction", "amount"}),
    ActionType.TYPE: frozenset({"text"}),
    ActionType.WAIT: frozenset({"seconds"}),
    ActionType.FINISHED: frozenset({"text"}),
    ActionType.FAIL: frozenset({"text"}),
    ActionType.CALL_USER: frozenset({"text"}),
}
_OPTIONAL: dict[ActionType, frozenset[str]] = {
    ActionType.DRAG: frozenset({"x", "y"}),
    ActionType.SCROLL: frozenset({"x", "y"}),
    ActionType.WAIT: frozenset({"seconds"}),
    ActionType.FINISHED: frozenset({"text"}),
    ActionType.FAIL: frozenset({"text"}),
    ActionType.CALL_USER: frozenset({"text"}),
}
_ALL_FIELDS = ("x", "y", "end_x", "end_y", "text", "keys", "direction", "amount", "seconds")


@dataclass(frozen=True)
class Action:
    """One event for the screen, or the end of the episode.

    Attributes:
        type: what to do.
        x, y: screen pixels, origin top left. ``None`` in a drag or scroll means "where the pointer is".
        end_x, end_y: where a drag ends, screen pixels.
        text: what to type (``\\n`` is the Enter key, ``\\t`` the Tab key), or what a terminal action says.
        keys: key names from :data:`verl_gui.actions.keys.KEYS`, pressed in order and released in reverse.
        direction: ``up``, ``down``, ``left`` or ``right`` (where the view moves).
        amount: wheel notches of a scroll, at least 1.
        seconds: how long to wait; ``None`` leaves it to the executor.

    Raises:
        ValueError: a field is missing, superfluous or out of its range.
    """

    type: ActionType
    x: float | None = None
    y: float | None = None
    end_x: float | None = None
    end_y: float | None = None
    text: str | None = None
    keys: tuple[str, ...] | None = None
    direction: str | None = None
    amount: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", ActionType(self.type))
        if isinstance(self.keys, list):
            object.__setattr__(self, "keys", tuple(self.keys))
        self._check_fields()
        self._check_coordinates()
        if self.text is not None:
            check_text(self.text)
        if self.type is ActionType.TYPE and not self.text:
            raise ValueError("type needs text that is not empty")
        if self.keys is not None:
            self._check_keys(self.keys)
        if self.direction is not None and self.direction not in DIRECTIONS:
            raise ValueError(f"direction must be one of {DIRECTIONS}, got {self.direction!r}")
        if self.amount is not None and (not isinstance(self.amount, int) or self.amount < 1):
            raise ValueError(f"amount must be an integer of at least 1, got {self.amount!r}")
        if self.seconds is not None and not (math.isfinite(self.seconds) and self.seconds >= 0):
            raise ValueError(f"seconds must be finite and not negative, got {self.seconds!r}")

    def _check_fields(self) -> None:
        given = {name for name in _ALL_FIELDS if getattr(self, name) is not None}
        allowed = _FIELDS[self.type]
        missing = allowed - _OPTIONAL.get(self.type, frozenset()) - given
        if missing:
            raise ValueError(f"{self.type.value} needs {', '.join(sorted(missing))}")
        if given - allowed:
            raise ValueError(f"{self.type.value} takes no {', '.join(sorted(given - allowed))}")
        if (self.x is None) != (self.y is None):
            raise ValueError(f"{self.type.value} needs x and y together, got x={self.x!r}, y={self.y!r}")

    def _check_coordinates(self) -> None:
        for name in ("x", "y", "end_x", "end_y"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be finite and not negative, got {value!r}")

    def _check_keys(self, keys: tuple[str, ...]) -> None:
        unknown = [key for key in keys if key not in KEYS]
        if unknown:
            raise ValueError(f"unknown key names {unknown}; see verl_gui.actions.keys.KEYS")
        if not keys or (self.type in SINGLE_KEY_TYPES and len(keys) != 1):
            raise ValueError(f"{self.type.value} needs {'one key' if keys else 'a key'}, got {keys!r}")


_UNTYPABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def check_text(text: str) -> None:
    """Raise ValueError if ``text`` holds a character no keyboard or clipboard can carry.

    Control characters other than newline and tab, and lone surrogates, are such characters: they break
    C strings, UTF-8 and terminals.
    """
    found = _UNTYPABLE.search(text)
    if found:
        raise ValueError(f"character U+{ord(found.group()):04X} at {found.start()} can't be typed")


@dataclass(frozen=True)
class Response:
    """A parsed answer of the model.

    Attributes:
        thought: the reasoning before the action, without its prefix; may be empty.
        actions: at least one action, in the order they are to be performed.
        raw: the answer as it came.
    """

    thought: str
    actions: list[Action]
    raw: str
