"""The Chrome DevTools Protocol over a pair of pipes, with a deadline on every call."""

from __future__ import annotations

import json
import os
import select
import time
from typing import Any


class CdpError(RuntimeError):
    """The browser answered with an error, or the page's script threw one."""


class CdpTimeout(TimeoutError):
    """The browser did not answer in time."""


class CdpClosed(ConnectionError):
    """The browser closed the connection, or the page is gone."""


_PAGE_GONE = frozenset({"Inspector.targetCrashed", "Target.targetDestroyed", "Target.detachedFromTarget"})


class CdpPipe:
    """Speaks to a browser that was started with ``--remote-debugging-pipe``.

    Messages are JSON ended by a zero byte. There is no port, so nothing but the two ends can take part.
    Not thread-safe.

    Args:
        write_fd: pipe to the browser (its descriptor 3); owned by this object from now on.
        read_fd: pipe from the browser (its descriptor 4); owned by this object from now on.
    """

    def __init__(self, write_fd: int, read_fd: int) -> None:
        self._write_fd, self._read_fd = write_fd, read_fd
        for fd in (write_fd, read_fd):
            os.set_blocking(fd, False)
        self._buffer = bytearray()
        self._last_id = 0
        self._closed = False

    def call(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        session: str | None = None,
        timeout_s: float,
    ) -> dict[str, Any]:
        """Call ``method`` and wait for its result; events in between are dropped.

        Args:
            method: such as ``"Page.navigate"``.
            params: its parameters.
            session: the page's session; None speaks to the browser.
            timeout_s: deadline for the answer.

        Raises:
            CdpError, CdpTimeout, CdpClosed: see there.
        """
        if self._closed:
            raise CdpClosed(f"{method}: the connection is closed")
        deadline = time.monotonic() + timeout_s
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": params or {}}
        if session is not None:
            message["sessionId"] = session
        self._send(json.dumps(message).encode() + b"\0", deadline, method)
        while True:
            answer = self._receive(deadline, method)
            if answer.get("id") == self._last_id:
                if "error" in answer:
                    raise CdpError(f"{method}: {answer['error'].get('message', answer['error'])}")
                return answer.get("result", {})
            if session is not None and _announces_loss(answer, session):
                raise CdpClosed(f"{method}: the page is gone ({answer['method']})")

    def _send(self, data: bytes, deadline: float, method: str) -> None:
        view = memoryview(data)
        while view:
            if not select.select([], [self._write_fd], [], max(0.0, deadline - time.monotonic()))[1]:
                raise CdpTimeout(f"{method}: the browser does not read")
            try:
                view = view[os.write(self._write_fd, view) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise CdpClosed(f"{method}: {error}") from error

    def _receive(self, deadline: float, method: str) -> dict[str, Any]:
        searched = 0
        while (end := self._buffer.find(b"\0", searched)) < 0:
            searched = len(self._buffer)
            if not select.select([self._read_fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise CdpTimeout(f"{method}: no answer in time")
            try:
                chunk = os.read(self._read_fd, 1 << 20)
            except BlockingIOError:
                continue
            if not chunk:
                raise CdpClosed(f"{method}: the browser closed the connection")
            self._buffer += chunk
        message = json.loads(self._buffer[:end].decode("utf-8", "replace"))
        del self._buffer[: end + 1]
        return message

    def close(self) -> None:
        """Close both pipes. Safe to call again."""
        if not self._closed:
            self._closed = True
            os.close(self._write_fd)
            os.close(self._read_fd)


def _announces_loss(event: dict[str, Any], session: str) -> bool:
    """Whether an event says that the page behind ``session`` has crashed or closed."""
    if event.get("method") not in _PAGE_GONE:
        return False
    return session in (event.get("sessionId"), event.get("params", {}).get("sessionId"))
