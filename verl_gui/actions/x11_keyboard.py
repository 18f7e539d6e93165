"""Which physical keys make a character on the keyboard layout an X server has now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SHIFT_L = 0xFFE1
LEVEL3_SHIFT = 0xFE03
MODE_SWITCH = 0xFF7E

_NAMED_KEYSYMS = {
    "enter": 0xFF0D, "tab": 0xFF09, "space": 0x20, "backspace": 0xFF08, "delete": 0xFFFF, "insert": 0xFF63,
    "esc": 0xFF1B, "home": 0xFF50, "end": 0xFF57, "pageup": 0xFF55, "pagedown": 0xFF56,
    "left": 0xFF51, "up": 0xFF52, "right": 0xFF53, "down": 0xFF54,
    "capslock": 0xFFE5, "numlock": 0xFF7F, "scrolllock": 0xFF14, "printscreen": 0xFF61, "pause": 0xFF13,
    "apps": 0xFF67, "help": 0xFF6A, "print": 0xFF61,
    "multiply": 0xFFAA, "add": 0xFFAB, "subtract": 0xFFAD, "decimal": 0xFFAE,
    "divide": 0xFFAF,
    "shift": SHIFT_L, "shiftleft": SHIFT_L, "shiftright": 0xFFE2, "ctrl": 0xFFE3, "ctrlleft": 0xFFE3,
    "ctrlright": 0xFFE4, "alt": 0xFFE9, "altleft": 0xFFE9, "altright": 0xFFEA, "win": 0xFFEB,
    "winleft": 0xFFEB, "winright": 0xFFEC,
    **{f"f{n}": 0xFFBD + n for n in range(1, 13)},
    **{f"num{n}": 0xFFB0 + n for n in range(10)},
}  # fmt: skip


def key_keysym(key: str) -> int:
    """Keysym of a canonical key name."""
    return _NAMED_KEYSYMS[key] if key in _NAMED_KEYSYMS else char_keysym(key)


def char_keysym(char: str) -> int:
    """Keysym of a character: Latin-1 is itself, Enter and Tab are keys, the rest is Unicode's own range."""
    if char == "\n":
        return _NAMED_KEYSYMS["enter"]
    if char == "\t":
        return _NAMED_KEYSYMS["tab"]
    code = ord(char)
    return code if code < 0x100 else 0x01000000 + code


@dataclass(frozen=True)
class Stroke:
    """A key and the modifier keys that must be down with it, as X keycodes."""

    keycode: int
    modifiers: tuple[int, ...] = ()


class Layout:
    """The keyboard layout of a server at one time.

    Args:
        rows: keysyms of each keycode, in the core protocol's order: group 1 levels 1 and 2, group 2 levels 1
            and 2, then levels 3 and 4 of group 1 and of group 2.
        first_keycode: keycode of the first row.
        group: the active group, 0 or 1.
        caps_lock: whether Caps Lock is on; it swaps the case of letters.
    """

    def __init__(self, rows: list[list[int]], first_keycode: int, group: int, caps_lock: bool) -> None:
        self._rows = rows
        self._first_keycode = first_keycode
        self._caps_lock = caps_lock
        columns = ((0, 1, 4, 5), (2, 3, 6, 7))[group]
        self._places: dict[int, tuple[int, int]] = {}
        for level, column in enumerate(columns):
            for row, keysyms in enumerate(rows):
                if column < len(keysyms) and keysyms[column]:
                    self._places.setdefault(keysyms[column], (first_keycode + row, level))

    @classmethod
    def of(cls, display: Any) -> Layout:
        """Read the layout ``display`` has now."""
        info = display.display.info
        first, last = info.min_keycode, info.max_keycode
        rows = [list(row) for row in display.get_keyboard_mapping(first, last - first + 1)]
        state = display.screen().root.query_pointer().mask
        return cls(rows, first, group=(state >> 13) & 1, caps_lock=bool(state & 2))

    def stroke(self, keysym: int) -> Stroke | None:
        """How to make ``keysym``; ``None`` if the layout lacks it.

        Unshifted places are preferred. A key of several characters (``<`` and ``>`` on the extra ISO key) is
        used at the right level, which is what table-driven tools get wrong.
        """
        place = self._places.get(keysym)
        if place is None:
            return None
        keycode, level = place
        shift = bool(level & 1)
        if self._caps_lock and _is_letter(keysym):
            shift = not shift
        modifiers = []
        if level >= 2:
            third = self._keycode_of(LEVEL3_SHIFT) or self._keycode_of(MODE_SWITCH)
            if third is None:
                return None
            modifiers.append(third)
        if shift:
            shift_key = self._keycode_of(SHIFT_L)
            if shift_key is None:
                return None
            modifiers.append(shift_key)
        return Stroke(keycode, tuple(modifiers))

    def spare_keycode(self) -> int | None:
        """A keycode without any keysym, to which a missing key can be bound."""
        for row in range(len(self._rows) - 1, -1, -1):
            if not any(self._rows[row]):
                return self._first_keycode + row
        return None

    def _keycode_of(self, keysym: int) -> int | None:
        place = self._places.get(keysym)
        return place[0] if place else None


def _is_letter(keysym: int) -> bool:
    code = keysym - 0x01000000 if keysym >= 0x01000000 else keysym
    return code < 0x110000 and chr(code).lower() != chr(code).upper()
