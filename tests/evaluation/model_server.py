"""A small real HTTP server that speaks OpenAI's chat completions, and misbehaves on command."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CLICK = "Thought: b\nAction: click(start_box='(28,56)')"


class ModelServer:
    """Answers every request with ``CLICK``, after the faults in ``faults`` (one a request) are used up.

    A fault is a status to answer with, ``"hang"``, ``"drop"`` (the connection), ``"garbage"`` (no JSON),
    ``"empty"`` (no choices) or a pair of status and message.
    """

    def __init__(
        self, faults: list[Any] | None = None, answer: Callable[[dict], str] = lambda _: CLICK
    ) -> None:
        self.faults, self.answer = list(faults or []), answer
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self._released = threading.Event()
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with server._lock:
                    server.requests.append(body)
                    server.keys.append(self.headers.get("Authorization"))
                    fault = server.faults.pop(0) if server.faults else None
                server._reply(self, body, fault)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    def _reply(self, http: BaseHTTPRequestHandler, body: dict[str, Any], fault: Any) -> None:
        if fault == "hang":
            self._released.wait(30)
            fault = "drop"
        if fault == "drop":
            http.close_connection = True
            return
        status, message = fault if isinstance(fault, tuple) else (fault, "as told")
        if isinstance(status, int):
            data = json.dumps({"error": {"message": message, "type": "x"}}).encode()
        elif fault == "garbage":
            status, data = 200, b"<html>busy</html>"
        elif fault == "empty":
            status, data = 200, b'{"id": "x", "object": "chat.completion", "choices": []}'
        else:
            choice = {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": self.answer(body)},
            }
            usage = {"prompt_tokens": 50, "completion_tokens": 7, "total_tokens": 57}
            reply = {
                "id": "x",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": body["model"],
            }
            status, data = 200, json.dumps({**reply, "choices": [choice], "usage": usage}).encode()
        http.send_response(status)
        http.send_header("Content-Type", "application/json")
        http.send_header("Content-Length", str(len(data)))
        http.end_headers()
        http.wfile.write(data)

    def __enter__(self) -> ModelServer:
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()
        self._http.shutdown()
        self._http.server_close()
