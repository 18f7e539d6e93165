"""One environment in a process of its own, made asynchronous and given deadlines.

The class is plain; :mod:`verl_gui.envs.pool` turns it into a Ray actor. Neither Ray, torch nor verl is
imported here: hundreds of these processes are started.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import math
import os
import queue
import struct
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from verl_gui.actions import Action
from verl_gui.envs.base import EnvFailure, FailureKind, GuiEnv, Observation, PausableEnv, StepResult
from verl_gui.tasks.task import Task

logger = logging.getLogger(__name__)
T = TypeVar("T")

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def check_screenshot(png: object, screen: tuple[int, int]) -> None:
    """Refuse anything that is not a complete PNG of the whole screen.

    The chunks are walked and their checksums compared, which finds truncated and damaged files without
    decoding them (1 ms for a megabyte instead of 15).

    Args:
        png: what the environment calls a screenshot.
        screen: announced width and height in pixels.

    Raises:
        EnvFailure: of kind ``screenshot``.
    """
    if not isinstance(png, bytes):
        raise EnvFailure("screenshot", f"expected PNG bytes, got {type(png).__name__}")
    if not png.startswith(PNG_SIGNATURE):
        raise EnvFailure("screenshot", f"not a PNG: {len(png)} bytes that begin with {png[:16]!r}")
    view, at, has_pixels = memoryview(png), len(PNG_SIGNATURE), False
    while True:
        if at + 12 > len(png):
            raise EnvFailure("screenshot", f"PNG is cut off after {len(png)} bytes, before its end chunk")
        (length,) = struct.unpack_from(">I", png, at)
        kind, end = png[at + 4 : at + 8], at + 8 + length
        if end + 4 > len(png):
            raise EnvFailure("screenshot", f"PNG is cut off after {len(png)} bytes, inside chunk {kind!r}")
        if zlib.crc32(view[at + 4 : end]) != struct.unpack_from(">I", png, end)[0]:
            raise EnvFailure("screenshot", f"PNG is damaged: wrong checksum of chunk {kind!r} at byte {at}")
        if at == len(PNG_SIGNATURE):
            if kind != b"IHDR" or length != 13:
                raise EnvFailure("screenshot", f"PNG begins with chunk {kind!r}, not with its header")
            size = struct.unpack_from(">II", png, at + 8)
            if size != tuple(screen):
                raise EnvFailure("screenshot", f"screenshot has {size} pixels, the screen {tuple(screen)}")
        has_pixels = has_pixels or kind == b"IDAT"
        if kind == b"IEND":
            break
        at = end + 4
    if not has_pixels:
        raise EnvFailure("screenshot", "PNG holds no pixels")


def build_env(backend: str, options: Mapping[str, Any]) -> GuiEnv:
    """The environment behind a backend name, or behind ``"package.module:factory"``."""
    module, colon, factory = backend.partition(":")
    if colon:
        return getattr(importlib.import_module(module), factory)(**options)
    from verl_gui.envs.registry import make_env

    return make_env(backend, **options)


class _EnvThread:
    """One thread that does everything the environment is asked for, in order, as long as the process lives.

    One and the same thread, because a sandbox told to die with its parent dies with the *thread* that
    started it. A daemon, because a hung environment must not keep the process from ending.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="env", daemon=True).start()

    def submit(self, function: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._work.put((future, function))
        return future

    def _run(self) -> None:
        while True:
            future, function = self._work.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except BaseException as error:  # handed to the caller, who decides
                future.set_exception(error)
            del future, function  # or the last result stays in memory until the next call


def _log_failure(future: Future[Any]) -> None:
    if future.exception() is not None:  # the next call will meet what is wrong
        logger.warning("the environment could not be paused: %s", future.exception())


class GuiEnvWorker:
    """Runs one :class:`GuiEnv`; to be used by one caller at a time.

    Every method but :meth:`ping` raises :class:`EnvFailure`. After a ``timeout`` the environment is still
    stuck in that call: further calls are refused, the process has to be replaced.

    Args:
        backend: backend name (see :func:`build_env`).
        options: the backend's keyword arguments.
        pause: stop the environment's programs between two calls.
    """

    def __init__(self, backend: str, options: Mapping[str, Any], *, pause: bool = False) -> None:
        self._backend, self._options, self._pause = backend, dict(options), pause
        self._prepared: tuple[tuple[Task, int | None], asyncio.Task[Observation]] | None = None
        self._thread = _EnvThread()
        self._env: GuiEnv | None = None
        self._call: tuple[str, float] | None = None  # name and start of the running call

    async def start(self, timeout_s: float) -> tuple[int, int]:
        """Build the environment, after closing the one there is, if any.

        Returns:
            Width and height of the screen in pixels.
        """
        self._prepared = None
        return await self._run("start", "reset", self._start, timeout_s)

    async def prepare(self, task: Task, seed: int | None, timeout_s: float) -> None:
        """Reset to ``task`` ahead of time, for the next :meth:`reset`."""
        resetting = asyncio.ensure_future(self._reset_now(task, seed, timeout_s))
        self._prepared = ((task, seed), resetting)
        await resetting

    async def reset(self, task: Task, seed: int | None, timeout_s: float) -> Observation:
        """Prepare ``task``; the observation's screenshot is checked.

        What :meth:`prepare` has begun for the same task and seed is finished and used.
        """
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            instance, resetting = prepared
            began = time.monotonic()
            await asyncio.wait({resetting}, timeout=timeout_s)
            if instance == (task, seed) and resetting.done():
                return resetting.result()
            timeout_s = max(0.0, timeout_s - (time.monotonic() - began))
        return await self._reset_now(task, seed, timeout_s)

    async def _reset_now(self, task: Task, seed: int | None, timeout_s: float) -> Observation:
        observation = await self._run("reset", "reset", lambda: self._reset(task, seed), timeout_s)
        self._rest()
        return observation

    async def step(self, actions: Sequence[Action], timeout_s: float) -> StepResult:
        """Carry out ``actions``; the new screenshot is checked."""
        result = await self._run("step", "step", lambda: self._step(actions), timeout_s)
        self._rest()
        return result

    async def evaluate(self, timeout_s: float) -> float:
        """Score in [0, 1]."""
        return await self._run("evaluate", "evaluate", self._evaluate, timeout_s)

    async def close(self, timeout_s: float) -> None:
        """Close the environment; :meth:`start` may build another."""
        await self._run("close", "dead", self._close, timeout_s)

    async def ping(self) -> dict[str, Any]:
        """Sign of life, also while the environment hangs: process id, running call and its age in seconds."""
        name, since = self._call or (None, time.monotonic())
        return {"pid": os.getpid(), "call": name, "call_s": time.monotonic() - since}

    async def _run(self, name: str, kind: FailureKind, function: Callable[[], T], timeout_s: float) -> T:
        if self._call is not None:
            running, since = self._call
            raise EnvFailure(
                "timeout",
                f"{name} refused: the environment has been in {running} for {time.monotonic() - since:.1f} s",
            )
        self._call = (name, time.monotonic())
        future = self._thread.submit(function)
        future.add_done_callback(self._call_ended)
        answer = asyncio.wrap_future(future)
        done, _ = await asyncio.wait({answer}, timeout=timeout_s)
        if not done:
            answer.cancel()  # nobody waits for it any more
            raise EnvFailure("timeout", f"{name} of backend {self._backend!r} took longer than {timeout_s} s")
        try:
            return answer.result()
        except EnvFailure:
            raise
        except Exception as error:  # a fault of the backend must not look like one of the agent
            logger.exception("backend %r raised in %s", self._backend, name)
            why = f"{name} of backend {self._backend!r}: {type(error).__name__}: {error}"
            raise EnvFailure(kind, why) from None

    def _call_ended(self, _: Future[Any]) -> None:
        self._call = None

    def _rest(self) -> None:
        """Pause the environment behind the caller's back: the answer does not wait for it."""
        if self._pause:
            self._thread.submit(self._pause_env).add_done_callback(_log_failure)

    # -- in the environment's thread -------------------------------------------------------------

    def _start(self) -> tuple[int, int]:
        self._close()
        self._env = build_env(self._backend, self._options)
        if self._pause and not isinstance(self._env, PausableEnv):
            raise EnvFailure("reset", f"backend {self._backend!r} cannot pause; set gui.env.pause=false")
        width, height = self._env.screen
        return int(width), int(height)

    def _reset(self, task: Task, seed: int | None) -> Observation:
        env = self._running_env()
        observation = env.reset(task, seed=seed)
        check_screenshot(observation.screenshot, env.screen)
        return observation

    def _step(self, actions: Sequence[Action]) -> StepResult:
        env = self._running_env()
        result = env.step(actions)
        check_screenshot(result.observation.screenshot, env.screen)
        return result

    def _evaluate(self) -> float:
        score = float(self._running_env().evaluate())
        if not (math.isfinite(score) and 0.0 <= score <= 1.0):
            raise EnvFailure("evaluate", f"score must be in [0, 1], got {score}")
        return score

    def _pause_env(self) -> None:
        if isinstance(self._env, PausableEnv):
            self._env.pause()

    def _close(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _running_env(self) -> GuiEnv:
        if self._env is None:
            raise EnvFailure("dead", "the environment is not started, or closed; call start()")
        return self._env
