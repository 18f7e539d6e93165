"""Connections to an X server: independent of DISPLAY and XAUTHORITY, and never waiting for ever."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from Xlib import display as xlib_display
from Xlib import error, xauth
from Xlib.protocol import display as xlib_protocol

from verl_gui.actions.errors import DisplayGoneError

logger = logging.getLogger(__name__)

CONNECTION_ERRORS = (error.DisplayError, error.ConnectionClosedError, error.XauthError, OSError)
"""What python-xlib raises when a server isn't there, refuses, or goes away."""


def open_display(name: str, xauthority: str | None = None, *, timeout_s: float = 5.0) -> Any:
    """Connect to the X server ``name`` (such as ``:7``).

    Args:
        name: display name.
        xauthority: file with the server's cookie; ``None`` uses python-xlib's search (environment, home).
        timeout_s: how long the server may take to answer.

    Returns:
        An ``Xlib.display.Display``. Protocol errors are logged; they don't end the connection.

    Raises:
        DisplayGoneError: there is no server, it refused the connection, or it doesn't answer.
    """
    opening = _Opening(xauthority)
    try:
        with _alarm(timeout_s, opening.cut) as expired:
            display = opening.open(name)
    except CONNECTION_ERRORS as cause:
        reason = f"no answer within {timeout_s:g} s" if expired.is_set() else str(cause)
        raise DisplayGoneError(f"can't connect to X server {name!r}: {reason}") from cause
    display.set_error_handler(lambda problem, request: logger.warning("X server %s: %s", name, problem))
    return display


class _Opening:
    """python-xlib takes its cookie file from the environment only, and waits for ever for a frozen server.
    Run its constructors with our lookups in place of theirs, on copies, so that neither the environment nor
    the library changes for anybody else."""

    def __init__(self, xauthority: str | None) -> None:
        self._xauthority = xauthority
        self._socket: socket.socket | None = None
        self._theirs = xlib_protocol.connect

    def open(self, name: str) -> Any:
        connect = _with_globals(xlib_protocol.Display.__init__, connect=self)

        class OurDisplay(xlib_display._BaseDisplay):
            def __init__(self, display: str) -> None:
                self.resource_classes = xlib_display._resource_baseclasses.copy()
                connect(self, display)
                self._atom_cache: dict[str, int] = {}

        opened = xlib_display.Display.__new__(xlib_display.Display)
        _with_globals(xlib_display.Display.__init__, _BaseDisplay=OurDisplay)(opened, name)
        return opened

    def cut(self) -> None:
        if self._socket is not None:
            self._socket.shutdown(socket.SHUT_RDWR)

    # What python-xlib's constructor calls.

    def get_display(self, name: str) -> Any:
        return self._theirs.get_display(name)

    def get_socket(self, *address: Any) -> socket.socket:
        self._socket = self._theirs.get_socket(*address)
        return self._socket

    def get_auth(
        self, sock: socket.socket, name: str, protocol: str, host: str, number: int
    ) -> tuple[bytes, bytes]:
        if self._xauthority is None:
            kind, cookie = self._theirs.get_auth(sock, name, protocol, host, number)
            return kind, cookie
        for _, _, entry_number, kind, cookie in xauth.Xauthority(self._xauthority).entries:
            if entry_number in (b"", str(number).encode()):
                return kind, cookie
        raise error.XauthError(f"{self._xauthority} has no cookie for display {number}")


def _with_globals(function: Callable[..., Any], **replaced: Any) -> Callable[..., Any]:
    known: dict[str, Any] = function.__globals__
    unknown = [name for name in replaced if name not in known or name not in function.__code__.co_names]
    if unknown:
        raise RuntimeError(
            f"this python-xlib doesn't use {unknown} where 0.33 does; open_display must be adapted"
        )
    return FunctionType(function.__code__, {**known, **replaced}, function.__name__, function.__defaults__)


@contextmanager
def deadline(display: Any, seconds: float, doing: str) -> Iterator[None]:
    """Cut the connection if the block takes longer than ``seconds``, so that a frozen server can't hold us.

    Raises:
        DisplayGoneError: the server is gone, or the time is over (the connection is then unusable).
    """
    # A reader blocked on the socket wakes up with an end of file.
    with _alarm(seconds, lambda: display.display.socket.shutdown(socket.SHUT_RDWR)) as expired:
        try:
            yield
        except CONNECTION_ERRORS as cause:
            reason = f"no answer within {seconds:g} s" if expired.is_set() else str(cause)
            name = display.get_display_name()
            raise DisplayGoneError(f"X server {name!r} is gone while {doing}: {reason}") from cause


@contextmanager
def _alarm(seconds: float, ring: Callable[[], None]) -> Iterator[threading.Event]:
    """Call ``ring`` if the block takes longer than ``seconds``; the event tells whether it did."""
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        ring()

    timer = threading.Timer(seconds, expire)
    timer.daemon = True
    timer.start()
    try:
        yield expired
    finally:
        timer.cancel()
