"""HTTP calls that end in time, whatever the other side does, with bounded answers and typed errors.

The usual timeouts of HTTP libraries bound the pause between two bytes, so a server that sends one byte now
and then holds its caller for ever. Here the whole call has a deadline, from the look-up of the name to the
last byte. All calls of a process run on one event loop in a thread of its own, so they can be made from
anywhere.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import aiohttp

T = TypeVar("T")

CONNECT_TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 64 << 20
_GRACE_S = 5.0  # for the event loop to notice a deadline
_CHUNK = 1 << 16

CallFault = Literal["unreachable", "timeout", "broken"]


class HttpCallError(Exception):
    """A call got no whole answer.

    Attributes:
        fault: ``unreachable`` (nothing was sent), ``timeout``, or ``broken`` (cut off, too large, no HTTP).
    """

    def __init__(self, fault: CallFault, message: str) -> None:
        super().__init__(message)
        self.fault: CallFault = fault


@dataclass(frozen=True)
class HttpAnswer:
    """A whole answer: status, media type without parameters, headers (names in lower case) and body."""

    status: int
    content_type: str
    headers: Mapping[str, str]
    body: bytes

    def excerpt(self) -> str:
        """What it looks like, for an error message."""
        return f"status {self.status}, {self.content_type}, {len(self.body)} bytes: {self.body[:80]!r}"


async def fetch(
    method: str,
    url: str,
    *,
    timeout_s: float,
    data: Any = None,
    headers: Mapping[str, str] | None = None,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    max_bytes: int = MAX_ANSWER_BYTES,
) -> HttpAnswer:
    """One call. Redirects are not followed and proxies not used: both answer for somebody else.

    Args:
        method: ``GET``, ``POST`` …
        url: where to.
        timeout_s: longest duration of the whole call.
        data: body, as bytes or an aiohttp form.
        headers: further headers.
        connect_timeout_s: longest wait for the connection.
        max_bytes: largest body of an answer.

    Raises:
        HttpCallError: no whole answer came; any status is an answer.
    """
    limits = aiohttp.ClientTimeout(total=timeout_s, sock_connect=connect_timeout_s)
    connector = aiohttp.TCPConnector(force_close=True)
    try:
        async with (
            aiohttp.ClientSession(timeout=limits, connector=connector, trust_env=False) as session,
            session.request(method, url, data=data, headers=headers, allow_redirects=False) as response,
        ):
            body = bytearray()
            async for chunk in response.content.iter_chunked(_CHUNK):
                body += chunk
                if len(body) > max_bytes:
                    raise HttpCallError("broken", f"{method} {url}: answer of more than {max_bytes} bytes")
            found = {name.lower(): value for name, value in response.headers.items()}
            return HttpAnswer(response.status, response.content_type, found, bytes(body))
    except aiohttp.ConnectionTimeoutError as error:
        raise HttpCallError(
            "unreachable", f"{method} {url}: no connection in {connect_timeout_s:g} s"
        ) from error
    except (asyncio.TimeoutError, TimeoutError) as error:
        raise HttpCallError("timeout", f"{method} {url}: no whole answer in {timeout_s:g} s") from error
    except aiohttp.ClientConnectorError as error:
        raise HttpCallError("unreachable", f"{method} {url}: {error}") from error
    except (aiohttp.ClientError, ValueError, OSError) as error:
        raise HttpCallError("broken", f"{method} {url}: {type(error).__name__}: {error}") from error


def call(method: str, url: str, *, timeout_s: float, **options: Any) -> HttpAnswer:
    """:func:`fetch` from ordinary code.

    Raises:
        HttpCallError: no whole answer came.
    """
    future = background(fetch(method, url, timeout_s=timeout_s, **options))
    try:
        return future.result(timeout_s + _GRACE_S)
    except concurrent.futures.TimeoutError as error:
        future.cancel()
        raise HttpCallError("timeout", f"{method} {url}: no whole answer in {timeout_s:g} s") from error


_loop: asyncio.AbstractEventLoop | None = None
_lock = threading.Lock()


def background(work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
    """Run a coroutine on the event loop of all calls."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="verl-gui-http", daemon=True).start()
        loop = _loop
    return asyncio.run_coroutine_threadsafe(work, loop)


def _forget_loop() -> None:
    """After a fork the thread does not exist in the child."""
    global _loop, _lock
    _loop, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_loop)
