"""The web page at which a person plays, on this machine's loopback.

==================  =========================================  =============================================
request             answer                                     otherwise
==================  =========================================  =============================================
``GET /``           the page, which holds nothing secret
``GET /turn?seen=`` 200 the turn that waits                    204 none, or the one already seen
``POST /answer``    200 the answer in words                    422 it cannot be played, with the reason
``POST /skip``      204                                        422
==================  =========================================  =============================================

All but the page need the token. It stands in the URL's fragment, which a browser sends to nobody.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import secrets
import socket
import threading
from collections.abc import Iterator
from importlib import resources
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response

from verl_gui.evaluation.policies.base import PolicySetupError
from verl_gui.evaluation.policies.person import Desk, NotAnAnswer

_STOP_S = 5.0


def build_app(desk: Desk, token: str) -> FastAPI:
    """The page and its three calls."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    page = resources.files("verl_gui.evaluation.policies").joinpath("person.html").read_bytes()

    def check(request: Request) -> None:
        given = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, f"Bearer {token}".encode()):
            raise HTTPException(401, "open the address that the command printed")

    @app.get("/")
    def index() -> Response:
        return Response(page, media_type="text/html; charset=utf-8")

    @app.get("/turn")
    def turn(request: Request, seen: int = 0) -> Any:
        check(request)
        waiting = desk.turn
        if waiting is None or waiting.number == seen:
            return Response(status_code=204)
        return {
            "turn": waiting.number,
            "step": waiting.step,
            "instruction": waiting.instruction,
            "screen": waiting.screen,
            "png": base64.b64encode(waiting.png).decode(),
        }

    @app.post("/answer")
    def answer(request: Request, body: dict[str, Any]) -> dict[str, str]:
        check(request)
        try:
            return {
                "text": desk.play(
                    body.get("turn", 0), list(body.get("actions") or []), str(body.get("thought") or "")
                )
            }
        except (NotAnAnswer, TypeError) as error:
            raise HTTPException(422, str(error)) from error

    @app.post("/skip", status_code=204)
    def skip(request: Request, body: dict[str, Any]) -> None:
        check(request)
        try:
            desk.skip(body.get("turn", 0))
        except NotAnAnswer as error:
            raise HTTPException(422, str(error)) from error

    return app


@contextlib.contextmanager
def serve(desk: Desk, port: int) -> Iterator[str]:
    """Serve the page while the block runs; gives its address.

    Args:
        desk: where turns wait. port: of the loopback; 0 takes a free one.

    Raises:
        PolicySetupError: the port is taken.
    """
    try:
        listening = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise PolicySetupError(
            f"the page for a person cannot use port {port} ({error.strerror}); give another --person-port"
        ) from error
    token = secrets.token_urlsafe(16)
    server = uvicorn.Server(uvicorn.Config(build_app(desk, token), log_level="warning"))
    # In a thread of its own, where uvicorn leaves Ctrl-C to the evaluation. The socket queues until it is up.
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [listening]}, name="person-page", daemon=True
    )
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/#{token}"
    finally:
        server.should_exit = True
        thread.join(_STOP_S)
        listening.close()
