"""A real environment server in a thread of the test, and HTTP servers that misbehave on command."""

import contextlib
import socket
import threading
import time
from pathlib import Path

import uvicorn

from verl_gui.envs.server.app import build_app
from verl_gui.envs.server.settings import ServerSettings

HERE = Path(__file__).parent


@contextlib.contextmanager
def serving(**settings):
    """The address of a running server of fault environments (or of another backend)."""
    chosen = ServerSettings(**{"backend": "fault_env:FaultEnv", "capacity": 2, **settings})
    with running_app(build_app(chosen)) as url:
        yield url


@contextlib.contextmanager
def running_app(app):
    """The address of a running ASGI application."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()


@contextlib.contextmanager
def raw_server(answer, *, with_request=False):
    """The address of a server that does ``answer(connection, stop)`` after each request.

    With ``with_request`` the answer gets the head and body of the request, too.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def one(connection):
        with connection, contextlib.suppress(OSError):
            request = read_request(connection)
            answer(connection, stop, *([request] if with_request else []))

    def loop():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=one, args=(connection,), daemon=True).start()

    threading.Thread(target=loop, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        stop.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def read_request(connection):
    """One HTTP request, body included."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536) or b"\r\n\r\n"
    head, _, body = data.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            while len(body) < int(line.split(b":")[1]):
                body += connection.recv(65536)
    return head, body


def http(status, content_type, body, length=None):
    """The bytes of an HTTP answer, whose announced length may lie."""
    size = len(body) if length is None else length
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\nContent-Length: {size}\r\n\r\n"
    return head.encode() + body


def slow_drip(payload, every_s=0.05):
    """An answer of one byte now and then, for ever: no pause is long, the whole never ends."""

    def answer(connection, stop):
        while not stop.is_set():
            for byte in payload:
                connection.sendall(bytes([byte]))
                time.sleep(every_s)
                if stop.is_set():
                    return

    return answer


def says(data):
    """An answer that is always these bytes."""

    def answer(connection, stop):
        connection.sendall(data)

    return answer


def says_nothing(connection, stop):
    """Accepts the request and keeps the line open."""
    stop.wait(30)
