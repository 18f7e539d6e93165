"""The HTTP face of an environment server.

===========================  ==============================  ==========================================
request                      answer                          otherwise
===========================  ==============================  ==========================================
``GET /status``              200 ``ServerStatus``
``POST /leases``             201 ``LeaseGrant``              503 with Retry-After: all places taken
``POST /leases/ID``          200 an answer to the call       404 no such lease, 409 busy, 422 no call
``POST /leases/ID/renew``    204                             404
``DELETE /leases/ID``        204                             404
===========================  ==============================  ==========================================

All bodies are MessagePack (:mod:`verl_gui.envs.remote.wire`). Without the token every answer is 401.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response

from verl_gui.envs.base import EnvFailure
from verl_gui.envs.remote import wire
from verl_gui.envs.server.service import BusyError, EnvService, NoLeaseError
from verl_gui.envs.server.settings import ServerSettings

RETRY_AFTER_S = 2
"""When a refused client should ask again."""


def build_app(settings: ServerSettings) -> FastAPI:
    """The application; its environments live as long as it runs."""
    service = EnvService(settings)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with service:
            yield

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)

    @app.middleware("http")
    async def guard(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        if not _authorized(request, settings.token):
            return Response(status_code=401, headers={"WWW-Authenticate": "Bearer"})
        # A page in a browser of this machine cannot send this type without asking, and asking is refused.
        if request.method == "POST" and request.headers.get("content-type") != wire.CONTENT_TYPE:
            return Response(f"expected {wire.CONTENT_TYPE}", status_code=415)
        return await go_on(request)

    @app.get("/status")
    async def status() -> Response:
        return _message(service.status())

    @app.post("/leases")
    async def lease() -> Response:
        try:
            grant = await service.lease()
        except EnvFailure as failure:
            raise HTTPException(502, str(failure)) from failure
        if grant is None:
            return Response(status_code=503, headers={"Retry-After": str(RETRY_AFTER_S)})
        return _message(grant, 201)

    @app.post("/leases/{lease}")
    async def call(lease: str, request: Request) -> Response:
        body = await _body(request, settings)
        try:
            question = wire.decode(body, wire.EnvCall)
        except wire.WireError as error:
            raise HTTPException(422, str(error)) from error
        try:
            return _message(await service.call(lease, question))
        except NoLeaseError as error:
            raise HTTPException(404, "no such lease") from error
        except BusyError as error:
            raise HTTPException(409, str(error)) from error

    @app.post("/leases/{lease}/renew")
    async def renew(lease: str) -> Response:
        try:
            service.renew(lease)
        except NoLeaseError as error:
            raise HTTPException(404, "no such lease") from error
        return Response(status_code=204)

    @app.delete("/leases/{lease}")
    async def release(lease: str) -> Response:
        try:
            service.release(lease)
        except NoLeaseError as error:
            raise HTTPException(404, "no such lease") from error
        return Response(status_code=204)

    return app


def _authorized(request: Request, token: str | None) -> bool:
    if token is None:
        return True
    shown = request.headers.get("authorization", "")
    return hmac.compare_digest(shown.encode(), f"Bearer {token}".encode())


async def _body(request: Request, settings: ServerSettings) -> bytes:
    """The body of a request, if it is small enough and comes soon enough."""

    async def read() -> bytes:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > settings.max_request_bytes:
                raise HTTPException(413, f"a request may have {settings.max_request_bytes} bytes")
        return bytes(body)

    try:
        return await asyncio.wait_for(read(), settings.request_timeout_s)
    except (asyncio.TimeoutError, TimeoutError) as error:
        raise HTTPException(408, f"no whole request in {settings.request_timeout_s:g} s") from error


def _message(message: Any, status: int = 200) -> Response:
    return Response(wire.encode(message), status_code=status, media_type=wire.CONTENT_TYPE)
