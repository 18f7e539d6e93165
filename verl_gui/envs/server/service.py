"""A server's environments and who holds them; without HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from verl_gui.envs.base import EnvFailure
from verl_gui.envs.remote import wire
from verl_gui.envs.server.hosted import HostedEnv
from verl_gui.envs.server.leases import LeaseTable
from verl_gui.envs.server.settings import ServerSettings

logger = logging.getLogger(__name__)


class NoLeaseError(LookupError):
    """There is no such lease (any more)."""


class BusyError(RuntimeError):
    """A call of this lease is still running."""


class EnvService:
    """Lends environments, each in a process of its own.

    An environment that failed in any way is killed, and the next reset of its holder gets a fresh one; so
    does whoever comes after a holder that fell silent. One that was given back in order is lent again: its
    reset starts from a clean state by contract.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self._leases = LeaseTable(settings.capacity, settings.lease_ttl_s)
        self._held: dict[str, HostedEnv] = {}
        self._idle: list[HostedEnv] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._reaper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> EnvService:
        self._reaper = asyncio.create_task(self._reap())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._reaper is not None:
            self._reaper.cancel()
        for env in (*self._held.values(), *self._idle):
            self._in_background(env.close)
        self._held.clear()
        self._idle.clear()
        await asyncio.gather(*self._closing, return_exceptions=True)

    def status(self) -> wire.ServerStatus:
        """How busy the server is."""
        return wire.ServerStatus(self.settings.backend, self._leases.capacity, len(self._leases))

    async def lease(self) -> wire.LeaseGrant | None:
        """Lend an environment; None if all places are taken.

        Raises:
            EnvFailure: it does not start.
        """
        lease = self._leases.admit()
        if lease is None:
            return None
        self._leases.begin(lease)
        try:
            env = self._held[lease] = await self._take()
        except BaseException:
            self._leases.release(lease)
            raise
        self._leases.end(lease)
        return wire.LeaseGrant(lease, env.screen, self.settings.lease_ttl_s, self.settings.call_timeouts())

    async def call(self, lease: str, question: wire.EnvCall) -> wire.Answer:
        """Ask the environment of a lease.

        Raises:
            NoLeaseError: there is none.
            BusyError: it has not answered the last question.
        """
        if lease not in self._leases:
            raise NoLeaseError(lease)
        if self._leases.busy(lease):
            raise BusyError("the last call of this lease is still running")
        self._leases.begin(lease)
        try:
            answer = await self._ask(lease, question)
        except EnvFailure as failure:
            answer = wire.Failed(failure.kind, failure.message)
        except BaseException:  # the server stops, or the client has gone: nobody knows its state
            self._discard(lease)
            raise
        finally:
            self._leases.end(lease)
        if isinstance(answer, wire.Failed):
            logger.warning("an environment failed and is replaced: [%s] %s", answer.kind, answer.message)
            self._discard(lease)
        return answer

    def renew(self, lease: str) -> None:
        """The holder is alive.

        Raises:
            NoLeaseError: there is no such lease.
        """
        if not self._leases.renew(lease):
            raise NoLeaseError(lease)

    def release(self, lease: str) -> None:
        """Take an environment back.

        Raises:
            NoLeaseError: there is no such lease.
        """
        if lease not in self._leases:
            raise NoLeaseError(lease)
        busy = self._leases.busy(lease)
        self._leases.release(lease)
        env = self._held.pop(lease, None)
        if env is not None and not busy and env.alive:
            self._idle.append(env)
        elif env is not None:
            self._in_background(env.kill)

    # -- inside ---------------------------------------------------------------------------------------

    async def _take(self) -> HostedEnv:
        while self._idle:
            env = self._idle.pop()
            if env.alive:
                return env
        return await HostedEnv.start(
            self.settings.backend, self.settings.options, self.settings.start_timeout_s
        )

    async def _ask(self, lease: str, question: wire.EnvCall) -> wire.Answer:
        env = self._held.get(lease)
        if env is None:
            if not isinstance(question, wire.ResetCall):
                raise EnvFailure("dead", "the environment is gone; reset() gives a fresh one")
            env = await self._take()
            if lease not in self._leases:  # given back meanwhile
                self._idle.append(env)
                raise EnvFailure("dead", "the lease was given back")
            self._held[lease] = env
        timeout_s = self.settings.call_timeouts()[str(type(question).__struct_config__.tag)]
        if isinstance(question, wire.ResetCall):
            timeout_s = self.settings.reset_timeout_s
        return await env.call(question, timeout_s)

    def _discard(self, lease: str) -> None:
        env = self._held.pop(lease, None)
        if env is not None:
            self._in_background(env.kill)

    def _in_background(self, ending: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            await ending()

        task = asyncio.create_task(run())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _reap(self) -> None:
        """Take back what silent holders have."""
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(min(1.0, self.settings.lease_ttl_s / 4))
                for lease in self._leases.expired():
                    logger.warning("a client has fallen silent; its environment is taken back")
                    self._leases.release(lease)
                    self._discard(lease)
