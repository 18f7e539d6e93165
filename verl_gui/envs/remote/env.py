"""An environment that lives in a server."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
import weakref
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from verl_gui.actions import Action
from verl_gui.envs.base import EnvFailure, FailureKind, Observation, StepResult
from verl_gui.envs.remote import wire
from verl_gui.envs.remote.http import HttpAnswer, HttpCallError, background, call, fetch
from verl_gui.envs.worker import check_screenshot
from verl_gui.tasks.task import Task

logger = logging.getLogger(__name__)

TOKEN_VARIABLE = "VERL_GUI_TOKEN"
"""Environment variable that holds the token when the options do not."""

_STATUS_TIMEOUT_S = 5.0
_MARGIN_S = 5.0  # of our deadline over the server's own, for the way there and back
_LONGEST_PAUSE_S = 10.0
_MAX_STATUS_BYTES = 1 << 16


class RemoteEnv:
    """One environment of one of several ``verl-gui env serve``. Implements ``GuiEnv`` and ``PausableEnv``.

    It takes a place at the server with the largest share of free ones and keeps it, telling the server now
    and then that it lives. When the server is lost, or the place, the call fails and the next :meth:`reset`
    takes another one, at any of the servers.

    Args:
        urls: base addresses of the servers, ``http://host:port``; one may be given as a string.
        token: the servers' token; None takes it from the environment variable ``VERL_GUI_TOKEN``.
        acquire_timeout_s: longest wait for a free place.
        start_timeout_s: longest wait for a server that starts an environment on a free place.

    Raises:
        ValueError: an address is no address.
        EnvFailure: ``capacity`` when all servers are full, ``dead`` when none can be reached.
    """

    def __init__(
        self,
        urls: Sequence[str] | str,
        *,
        token: str | None = None,
        acquire_timeout_s: float = 60.0,
        start_timeout_s: float = 120.0,
    ) -> None:
        self._urls = [_base(url) for url in ([urls] if isinstance(urls, str) else urls)]
        if not self._urls:
            raise ValueError("urls is empty; give the address of at least one `verl-gui env serve`")
        token = token or os.environ.get(TOKEN_VARIABLE)
        self._headers = {"Content-Type": wire.CONTENT_TYPE}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._acquire_timeout_s, self._start_timeout_s = acquire_timeout_s, start_timeout_s
        self._closed = False
        self._lease: _Lease | None = None
        self.screen: tuple[int, int] = self._hold().grant.screen

    def reset(self, task: Task, *, seed: int | None = None) -> Observation:
        """Prepare ``task`` on the environment, or on another one if it was lost.

        Raises:
            TaskFormatError: the backend cannot use the task.
            EnvFailure: as the environment says, or ``dead``, ``timeout``, ``capacity`` for the way there.
        """
        if self._closed:
            raise EnvFailure("dead", "the environment is closed")
        lease = self._hold()
        if lease.grant.screen != self.screen:
            self._drop()
            why = f"{lease.url} has screens of {lease.grant.screen} pixels, the others {self.screen}"
            raise EnvFailure("reset", why)
        answer = self._ask(wire.ResetCall(task.to_dict(), seed), "reset")
        return wire.observation_of(self._picture(answer, "reset"))

    def step(self, actions: Sequence[Action]) -> StepResult:
        """Carry out ``actions`` there and look again."""
        answer = self._picture(self._ask(wire.StepCall(tuple(actions)), "step"), "step")
        return StepResult(wire.observation_of(answer), answer.terminated, answer.step_info)

    def evaluate(self) -> float:
        """Score of the current state in [0, 1]."""
        answer = self._ask(wire.EvaluateCall(), "evaluate")
        if not isinstance(answer, wire.Scored) or not 0.0 <= answer.score <= 1.0:
            raise EnvFailure("evaluate", f"expected a score in [0, 1], got {answer!r:.200}")
        return answer.score

    def pause(self) -> None:
        """Let the environment rest until the next call, if its backend can."""
        self._ask(wire.PauseCall(), "step")

    def close(self) -> None:
        """Give the place back. Safe to call again."""
        self._closed = True
        self._drop(wait=True)

    # -- inside ---------------------------------------------------------------------------------------

    def _hold(self) -> _Lease:
        if self._lease is None or self._lease.lost:
            self._lease = None
            url, grant = _acquire(self._urls, self._headers, self._acquire_timeout_s, self._start_timeout_s)
            self._lease = _Lease(url, grant, self._headers)
            weakref.finalize(self, self._lease.stop_renewing)
        return self._lease

    def _ask(self, question: wire.EnvCall, kind: FailureKind) -> wire.Answer:
        lease = self._lease
        if self._closed or lease is None or lease.lost:
            raise EnvFailure("dead", "no environment is held; reset() takes one")
        name = type(question).__struct_config__.tag
        timeout_s = lease.grant.timeout_s[str(name)] + _MARGIN_S
        try:
            answer = call(
                "POST", lease.address, data=wire.encode(question), headers=self._headers, timeout_s=timeout_s
            )
            if answer.status == 404:
                raise EnvFailure("dead", f"{lease.url} has taken the environment back")
            message = _message(answer, wire.Answer, lease.url, kind)
        except HttpCallError as error:
            self._drop()
            raise EnvFailure("timeout" if error.fault == "timeout" else "dead", str(error)) from error
        except EnvFailure:
            self._drop()
            raise
        wire.raise_failure(message)
        return message

    def _picture(self, answer: wire.Answer, kind: FailureKind) -> wire.Seen:
        if not isinstance(answer, wire.Seen):
            raise EnvFailure(kind, f"expected a screenshot, got {answer!r:.200}")
        check_screenshot(answer.screenshot, self.screen)
        return answer

    def _drop(self, *, wait: bool = False) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.give_back(wait=wait)


class _Lease:
    """A place at a server, renewed in the background until it is given back or lost."""

    def __init__(self, url: str, grant: wire.LeaseGrant, headers: dict[str, str]) -> None:
        self.url, self.grant, self.lost = url, grant, False
        self.address = f"{url}/leases/{grant.id}"
        self._headers = headers
        self._renewing = background(self._renew())

    def stop_renewing(self) -> None:
        self._renewing.cancel()

    def give_back(self, *, wait: bool) -> None:
        """Best effort: a server that does not hear it takes the place back when the lease ends."""
        self.stop_renewing()
        self.lost = True
        work = background(self._release())
        if wait:
            work.result()

    async def _release(self) -> None:
        try:
            await fetch("DELETE", self.address, headers=self._headers, timeout_s=_STATUS_TIMEOUT_S)
        except HttpCallError as error:
            logger.warning("cannot give an environment back; %s takes it back itself: %s", self.url, error)

    async def _renew(self) -> None:
        while not self.lost:
            await asyncio.sleep(self.grant.ttl_s / 3)
            try:
                answer = await fetch(
                    "POST", f"{self.address}/renew", headers=self._headers, timeout_s=_STATUS_TIMEOUT_S
                )
            except HttpCallError as error:  # the next call will meet what is wrong
                logger.warning("cannot renew the lease of an environment: %s", error)
                continue
            self.lost = self.lost or answer.status == 404


def _base(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"expected an address like http://host:8600, got {url!r}")
    return url.rstrip("/")


def _acquire(
    urls: Sequence[str], headers: dict[str, str], timeout_s: float, start_timeout_s: float
) -> tuple[str, wire.LeaseGrant]:
    """Take a place at one of the servers, the least busy first; wait while all are full."""
    deadline = time.monotonic() + timeout_s
    while True:
        refusals: list[str] = []
        pause_s, full = _LONGEST_PAUSE_S, False
        for url in _by_load(urls, headers):
            try:
                answer = call("POST", f"{url}/leases", headers=headers, timeout_s=start_timeout_s)
            except HttpCallError as error:
                refusals.append(str(error))
                continue
            if answer.status == 201:
                return url, _message(answer, wire.LeaseGrant, url, "dead")
            if answer.status == 503:
                full = True
                pause_s = min(pause_s, _retry_after(answer))
            refusals.append(f"{url}: {_refusal(answer)}")
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not full:
            raise EnvFailure(
                "capacity" if full else "dead", "no server has an environment: " + "; ".join(refusals)
            )
        # Not all at once again: those who were refused together would meet at the same place.
        time.sleep(min(left_s, pause_s * random.uniform(0.5, 1.5)))


def _by_load(urls: Sequence[str], headers: dict[str, str]) -> list[str]:
    """The servers that answer, those with the largest share of free places first, then the silent ones."""

    async def load(url: str) -> float:
        try:
            answer = await fetch(
                "GET",
                f"{url}/status",
                headers=headers,
                timeout_s=_STATUS_TIMEOUT_S,
                max_bytes=_MAX_STATUS_BYTES,
            )
            status = wire.decode(answer.body, wire.ServerStatus)
        except (HttpCallError, wire.WireError):
            return 2.0  # asked last, and then it says what is wrong
        return status.leased / status.capacity

    async def loads() -> list[float]:
        return list(await asyncio.gather(*map(load, urls)))

    if len(urls) == 1:
        return list(urls)
    found = background(loads()).result()
    order = sorted(range(len(urls)), key=lambda i: (found[i], random.random()))
    return [urls[i] for i in order]


def _retry_after(answer: HttpAnswer) -> float:
    value = answer.headers.get("retry-after", "")
    return float(value) if value.isdigit() else 1.0


def _refusal(answer: HttpAnswer) -> str:
    if answer.status == 401:
        return f"the token is missing or wrong; set {TOKEN_VARIABLE} or gui.env.options.token"
    if answer.status == 503:
        return "all places are taken"
    return answer.excerpt()


def _message(answer: HttpAnswer, kind: Any, url: str, failure: FailureKind) -> Any:
    """The message in an answer; what is none, such as a proxy's error page, is a failure."""
    if answer.status in (200, 201) and answer.content_type == wire.CONTENT_TYPE:
        try:
            return wire.decode(answer.body, kind)
        except wire.WireError as error:
            raise EnvFailure(failure, f"{url} answered with no message: {error}") from error
    raise EnvFailure(failure, f"{url}: {_refusal(answer)}")
