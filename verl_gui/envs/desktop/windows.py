"""The top-level windows that the window manager knows."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from Xlib import X
from Xlib import error as xerror
from Xlib.protocol import event

from verl_gui.actions.errors import DisplayGoneError
from verl_gui.actions.x11_display import deadline, open_display
from verl_gui.envs.base import EnvFailure

_ANSWER_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Window:
    """One window: X id, title, class name (``Mousepad``) and whether it can be seen."""

    id: int
    title: str
    class_name: str
    mapped: bool


class WindowManager:
    """Asks and instructs the window manager of a display.

    Args:
        display: name of the X server.
        authority: file with its cookie.

    Raises:
        EnvFailure: ``dead``, here and in every method; the X server is gone or does not answer.
    """

    def __init__(self, display: str, authority: Path) -> None:
        try:
            self._display: Any = open_display(display, str(authority))
        except DisplayGoneError as gone:
            raise EnvFailure("dead", str(gone)) from gone
        self._root = self._display.screen().root

    @contextlib.contextmanager
    def _bounded(self, doing: str) -> Iterator[None]:
        try:
            with deadline(self._display, _ANSWER_TIMEOUT_S, doing):
                yield
        except DisplayGoneError as gone:
            raise EnvFailure("dead", str(gone)) from gone

    def wait_until_managed(self, timeout_s: float = 20.0) -> None:
        """Return as soon as a window manager manages windows.

        Raises:
            EnvFailure: ``reset``; there is none within ``timeout_s``.
        """
        latest = time.monotonic() + timeout_s
        while True:
            with self._bounded("looking for the window manager"):
                if self._client_list() is not None:
                    return
            if time.monotonic() > latest:
                raise EnvFailure("reset", "openbox did not start; is the openbox package installed?")
            time.sleep(0.003)

    def windows(self) -> list[Window]:
        """The managed windows, oldest first."""
        with self._bounded("listing windows"):
            found = []
            for number in self._client_list() or []:
                with contextlib.suppress(xerror.BadWindow):  # closed meanwhile
                    found.append(self._describe(number))
            return found

    def activate(self, window: Window) -> None:
        """Raise a window and give it the focus."""
        with self._bounded("activating a window"):
            message = event.ClientMessage(
                window=self._display.create_resource_object("window", window.id),
                client_type=self._display.intern_atom("_NET_ACTIVE_WINDOW"),
                data=(32, [2, X.CurrentTime, 0, 0, 0]),
            )
            mask = X.SubstructureRedirectMask | X.SubstructureNotifyMask
            self._root.send_event(message, event_mask=mask)
            self._display.sync()

    def close(self) -> None:
        """Close the connection. Safe to call again."""
        if self._display is not None:
            with contextlib.suppress(DisplayGoneError), deadline(self._display, 1.0, "closing"):
                self._display.close()
            self._display = None

    def _client_list(self) -> list[int] | None:
        atom = self._display.intern_atom("_NET_CLIENT_LIST")
        answer = self._root.get_full_property(atom, X.AnyPropertyType)
        return None if answer is None else list(answer.value)

    def _describe(self, number: int) -> Window:
        window = self._display.create_resource_object("window", number)
        mapped = window.get_attributes().map_state == X.IsViewable
        name = window.get_full_property(self._display.intern_atom("_NET_WM_NAME"), X.AnyPropertyType)
        title = name.value if name is not None else window.get_wm_name() or ""
        if isinstance(title, bytes):
            title = title.decode(errors="replace")
        classes = window.get_wm_class() or ("", "")
        return Window(number, title, classes[-1], mapped)
