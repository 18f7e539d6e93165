"""Key names: one canonical set, and how the spellings of models map to it.

The canonical names are those that pyautogui knows on X11 and that a usual keyboard has there, so that the
same action works through every executor. The others (F13, Select) would do nothing, silently.
"""

from __future__ import annotations

import re
import string

MODIFIERS = frozenset({"ctrl", "shift", "alt", "win", "ctrlleft", "ctrlright", "shiftleft", "shiftright",
                       "altleft", "altright", "winleft", "winright"})  # fmt: skip

_NAMED = frozenset({
    "enter", "tab", "space", "backspace", "delete", "insert", "esc", "home", "end", "pageup", "pagedown",
    "up", "down", "left", "right", "capslock", "numlock", "scrolllock", "printscreen", "pause", "apps",
    "help", "print", "multiply", "add", "subtract", "decimal", "divide",
})  # fmt: skip

KEYS: frozenset[str] = (
    MODIFIERS
    | _NAMED
    | {f"f{n}" for n in range(1, 13)}
    | {f"num{n}" for n in range(10)}
    | set(string.ascii_lowercase + string.digits + string.punctuation)
)
"""Every key name an :class:`~verl_gui.actions.types.Action` may carry."""

_ALIASES: dict[str, str] = {
    "return": "enter",
    "linefeed": "enter",
    "kpenter": "enter",
    "spacebar": "space",
    "bksp": "backspace",
    "del": "delete",
    "ins": "insert",
    "escape": "esc",
    "pgup": "pageup",
    "prior": "pageup",
    "pgdn": "pagedown",
    "pgdown": "pagedown",
    "next": "pagedown",
    "control": "ctrl",
    "ctl": "ctrl",
    "controlleft": "ctrlleft",
    "controlright": "ctrlright",
    "controll": "ctrlleft",
    "controlr": "ctrlright",
    "ctrll": "ctrlleft",
    "ctrlr": "ctrlright",
    "leftctrl": "ctrlleft",
    "rightctrl": "ctrlright",
    "option": "alt",
    "opt": "alt",
    "altl": "altleft",
    "altr": "altright",
    "altgr": "altright",
    "leftalt": "altleft",
    "rightalt": "altright",
    "shiftl": "shiftleft",
    "shiftr": "shiftright",
    "leftshift": "shiftleft",
    "rightshift": "shiftright",
    "cmd": "win",
    "command": "win",
    "meta": "win",
    "super": "win",
    "windows": "win",
    "superl": "winleft",
    "superr": "winright",
    "metal": "winleft",
    "metar": "winright",
    "leftwin": "winleft",
    "rightwin": "winright",
    "menu": "apps",
    "caps": "capslock",
    "scroll": "scrolllock",
    "prtsc": "printscreen",
    "prtscr": "printscreen",
    "prntscrn": "printscreen",
    "printscr": "printscreen",
    "break": "pause",
    "plus": "+",
    "minus": "-",
    "hyphen": "-",
    "dash": "-",
    "equal": "=",
    "equals": "=",
    "comma": ",",
    "period": ".",
    "dot": ".",
    "slash": "/",
    "backslash": "\\",
    "semicolon": ";",
    "colon": ":",
    "apostrophe": "'",
    "quote": "'",
    "grave": "`",
    "backtick": "`",
    "bracketleft": "[",
    "bracketright": "]",
    "leftbracket": "[",
    "rightbracket": "]",
    "underscore": "_",
    "asterisk": "*",
    "less": "<",
    "greater": ">",
    "question": "?",
    **{f"arrow{way}": way for way in ("up", "down", "left", "right")},
    **{f"{way}arrow": way for way in ("up", "down", "left", "right")},
    **{f"kp{n}": f"num{n}" for n in range(10)},
    **{f"numpad{n}": f"num{n}" for n in range(10)},
}

# Names that models write as two words, with the blank kept.
_TWO_WORDS = frozenset({
    "page up", "page down", "arrow up", "arrow down", "arrow left", "arrow right", "up arrow", "down arrow",
    "left arrow", "right arrow", "caps lock", "num lock", "scroll lock", "print screen", "space bar",
    "back space",
})  # fmt: skip
_TOKEN = re.compile(r"\+|[^\s+]+")
MAX_KEYS = 8
"""More keys than this in one combination is no keyboard shortcut."""


class UnknownKeyError(ValueError):
    """A key name that no spelling rule maps to a known key. ``piece`` is the name."""

    def __init__(self, message: str, piece: str) -> None:
        super().__init__(message)
        self.piece = piece


def canonical_key(name: str) -> str:
    """The canonical name of one key: case, ``_`` and ``-`` inside names don't matter.

    Raises:
        UnknownKeyError: there is no such key.
    """
    lowered = name.lower()
    if lowered in KEYS:
        return lowered
    bare = lowered.replace("_", "").replace("-", "").replace(" ", "")
    found = _ALIASES.get(bare, bare)
    if len(bare) < 2 or found not in KEYS:
        raise UnknownKeyError(f"unknown key {name[:40]!r}", name)
    return found


def split_combination(text: str) -> tuple[str, ...]:
    """The keys of a combination such as ``ctrl c``, ``Ctrl+C``, ``ctrl-c``, ``ctrl ++`` or ``alt page_down``.

    Blanks separate names. ``+`` separates two names, and is itself a key where a name should stand or where
    nothing follows it. ``-`` separates after a modifier, unless it is all that follows.

    Raises:
        UnknownKeyError: a name is unknown, there is none, or there are more than :data:`MAX_KEYS`.
    """
    if len(text) > 40 * MAX_KEYS:
        raise UnknownKeyError(f"no key combination is {len(text)} characters long", text)
    tokens = _TOKEN.findall(text)
    keys: list[str] = []
    after_name = False
    index = 0
    while index < len(tokens):
        token = tokens[index]
        index += 1
        if token == "+":
            if after_name and index < len(tokens):
                after_name = False
                continue
            keys.append("+")
        elif index < len(tokens) and f"{token} {tokens[index]}".lower() in _TWO_WORDS:
            keys.append(canonical_key(token + tokens[index]))
            index += 1
        else:
            keys.extend(_split_hyphens(token))
        after_name = True
    if not keys or len(keys) > MAX_KEYS:
        raise UnknownKeyError(f"{len(keys)} keys in one combination; 1 to {MAX_KEYS} can be pressed", text)
    return tuple(keys)


def _split_hyphens(token: str) -> list[str]:
    head, hyphen, rest = token.partition("-")
    if head and hyphen:
        try:
            first = canonical_key(head)
        except UnknownKeyError:
            first = ""
        if first in MODIFIERS:
            return [first, *(_split_hyphens(rest) if rest else ["-"])]
    return [canonical_key(token)]
