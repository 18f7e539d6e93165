"""One environment in a process of its own, seen from the server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from verl_gui.envs import processes
from verl_gui.envs.base import EnvFailure
from verl_gui.envs.remote import wire
from verl_gui.envs.remote.env import TOKEN_VARIABLE
from verl_gui.envs.server.host import LENGTH

_CLOSE_TIMEOUT_S = 10.0
_MAX_ANSWER_BYTES = 64 << 20


class HostedEnv:
    """An environment that can be killed whatever it does. One call at a time.

    Attributes:
        screen: width and height in pixels, once started.
    """

    def __init__(self) -> None:
        self.screen = (0, 0)
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @classmethod
    async def start(cls, backend: str, options: Mapping[str, Any], timeout_s: float) -> HostedEnv:
        """Start the process and build the environment in it.

        Raises:
            EnvFailure: it does not start, or not in time.
        """
        env = cls()
        ours, theirs = socket.socketpair()
        try:
            variables = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
            env._process = processes.start(
                [sys.executable, "-m", "verl_gui.envs.server.host", str(theirs.fileno())],
                env=variables,
                pass_fds=[theirs.fileno()],
                stdout=sys.__stderr__.fileno() if sys.__stderr__ else subprocess.DEVNULL,
            )
        except OSError as error:
            ours.close()
            raise EnvFailure("reset", f"cannot start the process of an environment: {error}") from error
        finally:
            theirs.close()
        env._reader, env._writer = await asyncio.open_connection(sock=ours)
        try:
            answer = await env.call(wire.StartCall(backend, dict(options)), timeout_s)
            wire.raise_failure(answer)
        except BaseException:
            await env.kill()
            raise
        assert isinstance(answer, wire.Started)
        env.screen = answer.screen
        return env

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    async def call(self, question: wire.StartCall | wire.EnvCall, timeout_s: float) -> wire.Answer:
        """Ask the environment; failures it reports come back as answers.

        Raises:
            EnvFailure: ``timeout`` or ``dead``; it has to be killed.
        """
        assert self._reader is not None and self._writer is not None
        data = wire.encode(question)
        try:
            self._writer.write(LENGTH.pack(len(data)) + data)
            return await asyncio.wait_for(self._answer(self._reader), timeout_s)
        except (asyncio.TimeoutError, TimeoutError) as error:
            raise EnvFailure("timeout", f"the environment took longer than {timeout_s:g} s") from error
        except (OSError, asyncio.IncompleteReadError) as error:
            raise EnvFailure("dead", "the process of the environment has ended") from error
        except wire.WireError as error:
            raise EnvFailure("dead", f"the process of the environment talks nonsense: {error}") from error

    @staticmethod
    async def _answer(reader: asyncio.StreamReader) -> wire.Answer:
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        if length > _MAX_ANSWER_BYTES:
            raise wire.WireError(f"an answer of {length} bytes")
        return wire.decode(await reader.readexactly(length), wire.Answer)

    async def close(self) -> None:
        """Let the environment close itself, then end its process. Safe to call again."""
        if self._writer is not None:
            self._writer.close()  # the process sees the end of its calls
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, _CLOSE_TIMEOUT_S)
        await self.kill()

    async def kill(self) -> None:
        """End the process at once; what it started dies with it. Safe to call again."""
        if self._writer is not None:
            self._writer.close()
        if self._process is not None:
            await asyncio.to_thread(processes.stop, self._process, term_s=0)
