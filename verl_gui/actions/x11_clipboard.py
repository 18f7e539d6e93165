"""Offers text on an X selection until somebody took it, and puts back what was there before.

X has no clipboard store: a selection lives as long as its owner answers requests. So an offer is a thread
with a connection of its own, and what was there before is put back as a second offer.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from Xlib import X, Xatom
from Xlib.protocol import event

from verl_gui.actions.errors import DisplayGoneError
from verl_gui.actions.x11_display import CONNECTION_ERRORS, deadline, open_display

logger = logging.getLogger(__name__)

CLIPBOARD = "CLIPBOARD"
PRIMARY = "PRIMARY"
MAX_BYTES = 200_000
"""Largest content offered or kept. More would need X's incremental transfer."""

_TEXT_TARGETS = ("UTF8_STRING", "text/plain;charset=utf-8", "text/plain", "STRING", "TEXT")
_PROTOCOL_TARGETS = frozenset(
    {"TARGETS", "MULTIPLE", "TIMESTAMP", "SAVE_TARGETS", "DELETE", "INSERT_SELECTION", "INSERT_PROPERTY"}
)
_POLL_S = 0.2
_START_S = 5.0


@dataclass(frozen=True)
class Content:
    """One form of a selection's content: its type, its unit (8, 16 or 32 bits) and its data."""

    type: str
    format: int
    data: Any


def text_contents(text: str) -> dict[str, Content]:
    """The forms in which programs ask for ``text``."""
    encoded = text.encode()
    contents = {
        target: Content(target, 8, encoded) for target in _TEXT_TARGETS if target not in ("STRING", "TEXT")
    }
    contents["TEXT"] = Content("UTF8_STRING", 8, encoded)
    try:
        contents["STRING"] = Content("STRING", 8, text.encode("latin-1"))
    except UnicodeEncodeError:
        logger.debug("text isn't Latin-1, so it isn't offered as STRING")
    return contents


class Offer:
    """Owns selections and answers requests for them, in a thread, until another owner takes over.

    Attributes:
        taken: set once a program has received text.

    Raises:
        DisplayGoneError: the server is gone, or gave no ownership in time.
    """

    def __init__(
        self,
        display_name: str,
        xauthority: str | None,
        selections: Sequence[str],
        contents: Mapping[str, Content],
    ) -> None:
        self.taken = threading.Event()
        self._contents = contents
        self._last_request = time.monotonic()
        self._selections = selections
        self._ready = threading.Event()
        self._stop = threading.Event()
        self._display = open_display(display_name, xauthority)
        self._thread = threading.Thread(target=self._run, name=f"selection-{display_name}", daemon=True)
        self._thread.start()
        if not self._ready.wait(_START_S):
            self.close()
            raise DisplayGoneError(f"X server {display_name!r} gave no selection within {_START_S:g} s")

    def wait_quiet(self, quiet_s: float, limit_s: float) -> None:
        """Wait until nobody has asked for ``quiet_s`` seconds, at most ``limit_s``.

        One paste may be several requests: Chromium asks again 45 to 90 ms after it got the text.
        """
        end = time.monotonic() + limit_s
        while (now := time.monotonic()) < min(end, self._last_request + quiet_s):
            time.sleep(min(end, self._last_request + quiet_s) - now)

    def close(self) -> None:
        """Stop answering; the selection is empty then, unless somebody else owns it."""
        self._stop.set()
        self._thread.join(timeout=2 * _POLL_S + 1)

    def _run(self) -> None:
        try:
            self._serve()
            self._display.close()
        except CONNECTION_ERRORS as problem:
            logger.debug("selection offer ended: %s", problem)

    def _serve(self) -> None:
        display = self._display
        window = display.screen().root.create_window(0, 0, 1, 1, 0, X.CopyFromParent)
        owned = {display.intern_atom(name) for name in self._selections}
        for atom in owned:
            window.set_selection_owner(atom, X.CurrentTime)
        display.sync()
        self._ready.set()
        while owned and not self._stop.is_set():
            if not display.pending_events():
                select.select([display.fileno()], [], [], _POLL_S)
                continue
            received = display.next_event()
            if received.type == X.SelectionClear:
                owned.discard(received.atom)
            elif received.type == X.SelectionRequest:
                self._answer(received)

    def _answer(self, request: Any) -> None:
        display = self._display
        self._last_request = time.monotonic()
        target = display.get_atom_name(request.target)
        # Old clients name no property; the target's atom stands for it (ICCCM 2.2).
        place = request.property or request.target
        if target == "TARGETS":
            atoms = [display.intern_atom(name) for name in ("TARGETS", *self._contents)]
            request.requestor.change_property(place, Xatom.ATOM, 32, atoms)
        elif target in self._contents:
            content = self._contents[target]
            kind = display.intern_atom(content.type)
            request.requestor.change_property(place, kind, content.format, content.data)
        else:
            place = X.NONE
        request.requestor.send_event(
            event.SelectionNotify(
                time=request.time,
                requestor=request.requestor,
                selection=request.selection,
                target=request.target,
                property=place,
            )
        )
        display.sync()
        if place and target in _TEXT_TARGETS:
            self.taken.set()


def read_selection(
    display_name: str, xauthority: str | None, selection: str, timeout_s: float = 0.5
) -> dict[str, Content]:
    """All forms of what ``selection`` holds now; empty if it holds nothing or its owner doesn't answer.

    A form larger than :data:`MAX_BYTES` is left out with a warning.
    """
    display = open_display(display_name, xauthority)
    with deadline(display, timeout_s + _START_S, f"reading {selection}"):
        contents = _read_selection(display, selection, time.monotonic() + timeout_s)
        display.close()
    return contents


def _read_selection(display: Any, selection: str, until: float) -> dict[str, Content]:
    if display.get_selection_owner(display.intern_atom(selection)) == X.NONE:
        return {}
    window = display.screen().root.create_window(0, 0, 1, 1, 0, X.CopyFromParent)
    targets = _convert(display, window, selection, "TARGETS", until)
    if targets is None:
        return {}
    contents = {}
    for atom in targets.data:
        name = display.get_atom_name(atom)
        if name in _PROTOCOL_TARGETS:
            continue
        content = _convert(display, window, selection, name, until)
        if content is not None and content.type == "INCR":
            logger.warning("%s holds more than %d bytes of %s; not put back", selection, MAX_BYTES, name)
        elif content is not None:
            contents[name] = content
    return contents


def _convert(display: Any, window: Any, selection: str, target: str, until: float) -> Content | None:
    place = display.intern_atom("VERL_GUI_SELECTION")
    window.convert_selection(
        display.intern_atom(selection), display.intern_atom(target), place, X.CurrentTime
    )
    display.flush()
    while True:
        if display.pending_events():
            received = display.next_event()
            if received.type == X.SelectionNotify:
                break
            continue
        left = until - time.monotonic()
        if left <= 0:
            return None
        select.select([display.fileno()], [], [], left)
    if received.property == X.NONE:
        return None
    found = window.get_full_property(place, X.AnyPropertyType)
    window.delete_property(place)
    if found is None:
        return None
    kind = display.get_atom_name(found.property_type)
    size = len(found.value) * found.format // 8
    return Content(kind if size <= MAX_BYTES else "INCR", found.format, found.value)
