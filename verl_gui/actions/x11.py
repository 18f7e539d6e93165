"""Performs actions on an X server through XTEST, from outside of whatever runs on it."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from Xlib import X

from verl_gui.actions.coordinates import to_pixel
from verl_gui.actions.errors import DisplayGoneError, ExecutorError
from verl_gui.actions.types import Action, ActionType
from verl_gui.actions.x11_clipboard import CLIPBOARD, PRIMARY, Offer, read_selection, text_contents
from verl_gui.actions.x11_display import deadline, open_display
from verl_gui.actions.x11_keyboard import Layout, Stroke, char_keysym, key_keysym

logger = logging.getLogger(__name__)

_LEFT, _MIDDLE, _RIGHT = 1, 2, 3
_WHEEL = {"up": 4, "down": 5, "left": 6, "right": 7}
_CLICKS = {
    ActionType.CLICK: (_LEFT, 1),
    ActionType.LEFT_DOUBLE: (_LEFT, 2),
    ActionType.LEFT_TRIPLE: (_LEFT, 3),
    ActionType.RIGHT_SINGLE: (_RIGHT, 1),
    ActionType.MIDDLE: (_MIDDLE, 1),
}
_DRAG_STEPS = 10
_PASTE_CHUNK = 30_000
_PASTE_TIMEOUT_S = 1.0
_PASTE_QUIET_S = 0.2
_SEGMENT = re.compile(r"[\n\t]|[^\n\t]+")

# Terminals paste with Shift+Insert; Control+V is a character there.
_TERMINALS = frozenset({
    "xterm", "uxterm", "rxvt", "urxvt", "gnome-terminal", "gnome-terminal-server", "xfce4-terminal",
    "mate-terminal", "lxterminal", "konsole", "terminator", "tilix", "alacritty", "kitty", "st-256color",
    "qterminal",
})  # fmt: skip


class X11Executor:
    """Performs actions on one X server.

    It holds one connection and isn't meant for several threads at once. Characters are typed with the keys of
    the layout the server has at that time; text with characters the layout lacks is pasted, line by line, and
    the clipboard gets its content back. Terminal actions do nothing.

    Args:
        display_name: the server, such as ``:7``.
        xauthority: file with its cookie; ``None`` uses python-xlib's search.
        default_wait_s: length of a wait that names none.
        max_wait_s: longest wait, whatever the action asks for.
        drag_s: how long a drag takes. Programs that never see the pointer on its way see no drag.
        timeout_s: longest time the server may take for one action.

    Raises:
        DisplayGoneError: here and in every method, if the server can't be reached or doesn't answer.
    """

    def __init__(
        self,
        display_name: str,
        xauthority: str | None = None,
        *,
        default_wait_s: float = 1.0,
        max_wait_s: float = 10.0,
        drag_s: float = 0.1,
        timeout_s: float = 15.0,
    ) -> None:
        self._name = display_name
        self._xauthority = xauthority
        self._default_wait_s = default_wait_s
        self._max_wait_s = max_wait_s
        self._drag_s = drag_s
        self._timeout_s = timeout_s
        self._held_keys: dict[int, None] = {}
        self._held_buttons: dict[int, None] = {}
        self._restored: Offer | None = None
        self._display = open_display(display_name, xauthority)
        with self._deadline("asking for XTEST"):
            if self._display.query_extension("XTEST") is None:
                raise ExecutorError(f"X server {display_name!r} has no XTEST extension")
            root = self._display.screen().root.get_geometry()
        self.screen: tuple[int, int] = (root.width, root.height)

    def perform(self, actions: Sequence[Action]) -> None:
        """Perform ``actions`` in order; returns when the server has taken all events."""
        for action in actions:
            if action.type is ActionType.WAIT:
                asked = self._default_wait_s if action.seconds is None else action.seconds
                time.sleep(min(asked, self._max_wait_s))
            elif not action.type.is_terminal:
                with self._deadline(f"performing {action.type.value}"):
                    self._perform(action)
                    self._display.sync()

    def release_all(self) -> None:
        """Release every key and button that an action left pressed."""
        with self._deadline("releasing keys"):
            for keycode in reversed(list(self._held_keys)):
                self._send(X.KeyRelease, keycode)
            for button in reversed(list(self._held_buttons)):
                self._send(X.ButtonRelease, button)
            self._display.sync()
        self._held_keys.clear()
        self._held_buttons.clear()

    def close(self) -> None:
        """Close the connection, if it is open. The clipboard content put back goes with it."""
        if self._restored is not None:
            self._restored.close()
            self._restored = None
        try:
            with self._deadline("closing"):
                self._display.close()
        except DisplayGoneError as gone:
            logger.debug("closed already: %s", gone)

    def _perform(self, action: Action) -> None:
        if action.x is not None and action.y is not None:
            self._move(action.x, action.y)
        if action.type in _CLICKS:
            button, times = _CLICKS[action.type]
            for _ in range(times):
                self._click(button)
        elif action.type is ActionType.DRAG:
            self._drag(action)
        elif action.type is ActionType.SCROLL:
            for _ in range(action.amount or 0):
                self._click(_WHEEL[action.direction or ""])
        elif action.type is ActionType.TYPE:
            self._type(action.text or "")
        elif action.keys is not None:
            self._press_keys(action.type, action.keys)

    # Pointer

    def _move(self, x: float, y: float) -> None:
        pixel = to_pixel(x, y, self.screen)
        self._display.xtest_fake_input(X.MotionNotify, x=pixel[0], y=pixel[1])

    def _click(self, button: int) -> None:
        self._send(X.ButtonPress, button)
        self._send(X.ButtonRelease, button)

    def _drag(self, action: Action) -> None:
        pointer = self._display.screen().root.query_pointer()
        start_x, start_y = pointer.root_x, pointer.root_y
        end_x, end_y = action.end_x or 0.0, action.end_y or 0.0
        self._send(X.ButtonPress, _LEFT)
        self._held_buttons[_LEFT] = None
        for step in range(1, _DRAG_STEPS + 1):
            self._display.sync()
            time.sleep(self._drag_s / _DRAG_STEPS)
            share = step / _DRAG_STEPS
            self._move(start_x + (end_x - start_x) * share, start_y + (end_y - start_y) * share)
        self._send(X.ButtonRelease, _LEFT)
        del self._held_buttons[_LEFT]

    # Keyboard

    def _press_keys(self, kind: ActionType, keys: tuple[str, ...]) -> None:
        layout = Layout.of(self._display)
        codes = [code for key in keys for code in self._keycodes(layout, key)]
        if kind is not ActionType.KEY_UP:
            for code in codes:
                self._send(X.KeyPress, code)
        if kind is ActionType.KEY_DOWN:
            self._held_keys.update(dict.fromkeys(codes))
            return
        for code in reversed(codes):
            self._send(X.KeyRelease, code)
            self._held_keys.pop(code, None)

    def _keycodes(self, layout: Layout, key: str) -> tuple[int, ...]:
        keysym = key_keysym(key)
        stroke = layout.stroke(keysym) or self._bind_spare_key(layout, key, keysym)
        return (*stroke.modifiers, stroke.keycode)

    def _bind_spare_key(self, layout: Layout, key: str, keysym: int) -> Stroke:
        """Give a key the layout lacks (a Latin letter on a Greek keyboard) a keycode that has none."""
        keycode = layout.spare_keycode()
        if keycode is None:
            raise ExecutorError(
                f"the layout of X server {self._name!r} has no key {key!r} and no room for it"
            )
        self._display.change_keyboard_mapping(keycode, [(keysym, keysym)])
        self._display.sync()
        return Stroke(keycode)

    def _type(self, text: str) -> None:
        layout = Layout.of(self._display)
        for segment in _SEGMENT.findall(text):
            strokes = [layout.stroke(char_keysym(char)) for char in segment]
            known = [stroke for stroke in strokes if stroke is not None]
            if len(known) < len(strokes):
                self._paste(segment)
            else:
                for stroke in known:
                    self._strike(stroke)

    def _strike(self, stroke: Stroke) -> None:
        with self._keys_down(stroke.modifiers):
            self._send(X.KeyPress, stroke.keycode)
            self._send(X.KeyRelease, stroke.keycode)

    @contextmanager
    def _keys_down(self, keycodes: Sequence[int]) -> Iterator[None]:
        for keycode in keycodes:
            self._send(X.KeyPress, keycode)
        yield
        for keycode in reversed(keycodes):
            self._send(X.KeyRelease, keycode)

    # Clipboard

    def _paste(self, text: str) -> None:
        in_terminal = self._focus_is_terminal()
        selections = (CLIPBOARD, PRIMARY) if in_terminal else (CLIPBOARD,)
        before = {name: read_selection(self._name, self._xauthority, name) for name in selections}
        chord = ("shift", "insert") if in_terminal else ("ctrl", "v")
        for start in range(0, len(text), _PASTE_CHUNK):
            chunk = text[start : start + _PASTE_CHUNK]
            offer = Offer(self._name, self._xauthority, selections, text_contents(chunk))
            self._press_keys(ActionType.HOTKEY, chord)
            self._display.sync()
            if not offer.taken.wait(_PASTE_TIMEOUT_S):
                logger.info("nothing took the pasted text; no text field has the focus")
            # The program must have read the text before the next key or the old content reaches it.
            offer.wait_quiet(_PASTE_QUIET_S, _PASTE_TIMEOUT_S)
            offer.close()
        self._restore(before[CLIPBOARD])

    def _restore(self, contents: dict[str, Any]) -> None:
        previous = self._restored
        self._restored = None
        if contents:
            self._restored = Offer(self._name, self._xauthority, (CLIPBOARD,), contents)
        if previous is not None:
            previous.close()

    def _focus_is_terminal(self) -> bool:
        window = self._display.get_input_focus().focus
        root = self._display.screen().root
        while hasattr(window, "get_wm_class") and window.id != root.id:
            names = window.get_wm_class()
            if names:
                return any(name.lower() in _TERMINALS for name in names)
            window = window.query_tree().parent
        return False

    # Connection

    def _send(self, kind: int, detail: int) -> None:
        self._display.xtest_fake_input(kind, detail)

    def _deadline(self, doing: str) -> Any:
        return deadline(self._display, self._timeout_s, doing)
