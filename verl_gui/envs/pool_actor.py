"""The pool's actor: one a Ray job, it owns the workers, repairs them and decides who gets one.

Nothing here is for users; :mod:`verl_gui.envs.pool` is the handle on it.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from verl_gui.envs.base import EnvFailure
from verl_gui.envs.cgroups import remove_dead_groups
from verl_gui.envs.leftovers import remove_dead_directories
from verl_gui.envs.pool_state import PROCESS_FAILURES, EnvPoolConfig, PoolState
from verl_gui.envs.worker import GuiEnvWorker
from verl_gui.tasks.task import Task

logger = logging.getLogger(__name__)

REPLY_GRACE_S = 15.0  # beyond a deadline that the other side keeps itself; past it, that side is stuck
CLOSE_TIMEOUT_S = 10.0
PING_TIMEOUT_S = 10.0  # at least; a worker answers while its environment hangs, unless the process does
DEATH_TIMEOUT_S = 10.0
RETRY_START_S = (0.5, 30.0)  # first and longest pause between attempts to start an environment
HOPELESS_STARTS = 3  # this many failed starts and not one success: refuse leases instead of waiting


async def answer(ref: ray.ObjectRef, timeout_s: float, what: str) -> Any:
    """Wait for a Ray result, but not for ever.

    Raises:
        EnvFailure: the remote one as it was raised, ``timeout`` past the deadline, ``dead`` when the
            actor is gone.
    """
    future = asyncio.wrap_future(ref.future())
    try:
        # asyncio.wait, not wait_for: that one can swallow a cancellation before Python 3.12.
        done, _ = await asyncio.wait({future}, timeout=timeout_s)
    finally:
        future.cancel()  # without effect on an answer; otherwise nobody waits for one any more
    if not done:
        raise EnvFailure("timeout", f"{what}: no answer within {timeout_s:.1f} s")
    try:
        return future.result()
    except RayTaskError as error:
        if isinstance(error.cause, EnvFailure):
            raise EnvFailure(error.cause.kind, error.cause.message) from None
        raise
    except RayError as error:
        why = str(error).strip().partition("\n")[0]  # Ray adds a screenful of guesses
        raise EnvFailure("dead", f"{what}: {type(error).__name__}: {why}") from error


@dataclass(frozen=True)
class Grant:
    """A lease's worker: its name in the pool, its actor, its screen size."""

    worker: str
    actor: Any
    screen: tuple[int, int]


class GuiEnvPool:
    """The pool's actor: starts, hands out, takes back, repairs. Use it through :class:`EnvPool`."""

    def __init__(self, config: EnvPoolConfig) -> None:
        self._config = config
        self._state = PoolState(config.num_envs, spares=config.spares, lease_ttl_s=config.lease_ttl_s)
        self._worker_class = ray.remote(GuiEnvWorker).options(
            num_cpus=0,
            max_restarts=0,  # a restarted actor would have lost its environment; the pool makes a new one
            scheduling_strategy="SPREAD",
            resources={config.resource: 1} if config.resource else None,
        )
        self._actors: dict[str, Any] = {}
        self._screens: dict[str, tuple[int, int]] = {}
        self._granted: dict[str, asyncio.Future[Grant]] = {}
        self._instances: dict[str, tuple[Task, int | None]] = {}  # what waiting leases are for, if they said
        self._ping_timeout_s = max(PING_TIMEOUT_S, config.lease_ttl_s)
        self._checking: set[str] = set()  # workers that were asked for a sign of life
        self._pids: dict[str, int] = {}
        self._killed: set[int] = set()  # processes whose environments may not have been closed
        self._jobs: set[asyncio.Task[None]] = set()
        self._ever_started = False
        self._failed_starts = 0
        self._last_start_error = ""
        self._opened = self._closed = False

    async def open(self) -> None:
        """Start the fleet, unless that was done."""
        if not self._opened and not self._closed:
            self._opened = True
            self._spawn(self._watch())
            self._fill()

    # -- leases ----------------------------------------------------------------------------------

    async def acquire(
        self,
        lease: str,
        timeout_s: float,
        config: EnvPoolConfig,
        instance: tuple[Task, int | None] | None = None,
    ) -> Grant:
        """Wait for an environment.

        Args:
            lease: its name.
            timeout_s: longest wait.
            config: what the asking process takes the pool's configuration to be.
            instance: task and seed of the first reset; it is then done ahead of time where a spare is free.

        Raises:
            EnvFailure: ``capacity`` after ``timeout_s`` seconds in the queue, or when none can be started.
            ValueError: this pool does not run with ``config``.
        """
        check_same(self._config, config)
        self._check_hope()
        await self.open()
        self._state.request(lease, task_known=instance is not None)
        if instance is not None:
            self._instances[lease] = instance
        return await self._wait_for_grant(lease, timeout_s)

    async def swap(self, lease: str, failure: str, timeout_s: float) -> Grant:
        """Give a fresh environment for the broken one, ahead of the queue.

        Raises:
            EnvFailure: ``capacity`` after ``timeout_s`` seconds, or when the lease has expired.
        """
        if not self._state.knows(lease):
            raise EnvFailure("capacity", "the lease has expired: its holder was silent for too long")
        self._repair(self._state.swap(lease, failure), failure)
        return await self._wait_for_grant(lease, timeout_s)

    async def release(self, lease: str, failure: str | None, took: Sequence[tuple[str, float]]) -> None:
        """End a lease; ``took`` are the operations done under it, with their seconds."""
        for operation, seconds in took:
            self._state.metrics.took(operation, seconds)
        self._end(lease, failure)

    async def renew(self, leases: Iterable[str]) -> None:
        """The holder of these leases is alive."""
        self._state.renew(leases)

    async def metrics(self) -> dict[str, float]:
        """See :meth:`EnvPool.metrics`."""
        numbers = self._state.metrics.report()
        numbers["env/workers"] = float(self._state.usable)
        numbers["env/queued"] = float(self._state.queued)
        return numbers

    async def close(self) -> None:
        """Close all environments, then kill their processes; bounded in time."""
        self._closed = True
        for job in list(self._jobs):
            job.cancel()
        for lease in list(self._granted):
            self._refuse(lease, "the environment pool is closed")
        closing = {
            worker: answer(
                actor.close.remote(CLOSE_TIMEOUT_S), CLOSE_TIMEOUT_S + REPLY_GRACE_S, f"close of {worker}"
            )
            for worker, actor in self._actors.items()
        }
        results = await asyncio.gather(*closing.values(), return_exceptions=True)
        for worker, failure in zip(closing, results, strict=True):
            if isinstance(failure, Exception):
                logger.warning("environment did not close: %s", failure)
            else:
                self._pids.pop(worker, None)
            self._kill(worker)
        await self._clean_up()

    async def _clean_up(self) -> None:
        """Remove what killed processes left on this node; on others, the next environment there does.

        They are waited for, as Ray takes seconds to kill a process that is stopped. The number of one on
        another node may belong to somebody else here, who is then waited for in vain, but not for long.
        """
        until = time.monotonic() + DEATH_TIMEOUT_S
        while any(Path("/proc", str(pid)).exists() for pid in self._killed) and time.monotonic() < until:
            await asyncio.sleep(0.1)
        remove_dead_directories()
        remove_dead_groups()

    async def _wait_for_grant(self, lease: str, timeout_s: float) -> Grant:
        waiting = self._granted[lease] = asyncio.get_running_loop().create_future()
        self._hand_out()
        try:
            await asyncio.wait({waiting}, timeout=timeout_s)
        finally:
            self._granted.pop(lease, None)
            self._instances.pop(lease, None)
        if waiting.done():
            return waiting.result()
        self._state.release(lease)
        self._state.metrics.failed("capacity")
        why = f"; the last start failed: {self._last_start_error}" if self._last_start_error else ""
        raise EnvFailure(
            "capacity",
            f"no environment within {timeout_s:.1f} s ({self._state.usable} of {self._config.num_envs} work, "
            f"{self._state.queued} more leases wait){why}",
        )

    def _hand_out(self) -> None:
        for lease, worker in self._state.grants():
            waiting = self._granted.get(lease)
            if waiting is None or waiting.done():  # given up meanwhile; the environment is untouched
                self._state.release(lease)
                continue
            waiting.set_result(Grant(worker, self._actors[worker], self._screens[worker]))
        for lease, worker in self._state.reservations():
            if lease in self._instances:
                self._spawn(self._prepare(lease, worker, self._actors[worker], *self._instances[lease]))

    async def _prepare(self, lease: str, worker: str, actor: Any, task: Task, seed: int | None) -> None:
        """Set a task up on an idle environment, for the lease that it is reserved for."""
        timeout_s, began = self._config.reset_timeout_s, time.monotonic()
        try:
            ref = actor.prepare.remote(task, seed, timeout_s)
            await answer(ref, timeout_s + REPLY_GRACE_S, f"preparing {worker}")
        except EnvFailure as failure:
            self._state.stop_preparing(lease)  # if the task is at fault, it costs one spare, not all
            # Held by its lease meanwhile: then that one meets the failure, and swaps.
            if self._state.suspect(worker):
                logger.warning("preparing task %r: %s", task.id, failure)
                self._state.metrics.failed(failure.kind)
                self._repair(worker, failure.kind)
                self._hand_out()
        else:
            self._state.metrics.waited("prepare", time.monotonic() - began)

    def _end(self, lease: str, failure: str | None) -> None:
        broken = self._state.release(lease, failure)
        self._refuse(lease, "the lease was given back")
        if broken is not None:
            assert failure is not None
            self._repair(broken, failure)
        self._hand_out()

    def _refuse(self, lease: str, why: str) -> None:
        waiting = self._granted.get(lease)
        if waiting is not None and not waiting.done():
            waiting.set_exception(EnvFailure("capacity", why))

    def _check_hope(self) -> None:
        if self._closed:
            raise EnvFailure("capacity", "the environment pool is closed")
        if not self._ever_started and self._failed_starts >= HOPELESS_STARTS:
            raise EnvFailure(
                "capacity",
                f"not one environment of backend {self._config.backend!r} started in {self._failed_starts} "
                f"attempts; the last said: {self._last_start_error}",
            )

    # -- workers ---------------------------------------------------------------------------------

    def _spawn(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(job)
        self._jobs.add(task)
        task.add_done_callback(self._job_ended)

    def _job_ended(self, task: asyncio.Task[None]) -> None:
        self._jobs.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("environment pool: a background job failed", exc_info=task.exception())

    def _fill(self) -> None:
        for _ in range(self._state.missing):
            worker = f"env-{uuid.uuid4().hex[:8]}"
            self._state.add(worker)
            self._spawn(self._bring_up(worker))

    async def _bring_up(self, worker: str) -> None:
        """Start a worker, again and again until it runs."""
        pause_s, longest_s = RETRY_START_S
        while not await self._start(worker, fresh_process=True):
            self._kill(worker)
            if not self._ever_started and self._failed_starts >= HOPELESS_STARTS:
                for lease in list(self._granted):
                    self._refuse(lease, f"no environment starts; the last said: {self._last_start_error}")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)

    async def _start(self, worker: str, *, fresh_process: bool) -> bool:
        timeout_s = self._config.start_timeout_s
        if fresh_process:
            self._actors[worker] = self._worker_class.remote(
                self._config.backend, dict(self._config.options), pause=self._config.pause
            )
        actor = self._actors[worker]
        try:
            if fresh_process:  # known before anything is built in it that could be left behind
                alive = await answer(actor.ping.remote(), timeout_s + REPLY_GRACE_S, f"process of {worker}")
                self._pids[worker] = alive["pid"]
            ref = actor.start.remote(timeout_s)
            self._screens[worker] = await answer(ref, timeout_s + REPLY_GRACE_S, f"start of {worker}")
        except EnvFailure as failure:
            self._failed_starts += 1
            self._last_start_error = str(failure)
            self._state.metrics.failed("start")
            logger.warning("environment %s did not start: %s", worker, failure)
            return False
        self._ever_started, self._failed_starts, self._last_start_error = True, 0, ""
        self._state.ready(worker)
        self._hand_out()
        return True

    def _repair(self, worker: str, failure: str) -> None:
        """Bring a preparing worker back: a new environment in its process, or a new process."""
        logger.warning("environment %s broke (%s); replacing it", worker, failure)
        if failure in PROCESS_FAILURES:
            self._discard(worker)
        else:
            self._spawn(self._rebuild(worker))

    async def _rebuild(self, worker: str) -> None:
        if not await self._start(worker, fresh_process=False):
            self._discard(worker)

    def _discard(self, worker: str) -> None:
        self._kill(worker)
        self._state.remove(worker)
        self._fill()

    def _kill(self, worker: str) -> None:
        self._screens.pop(worker, None)
        if worker in self._pids:
            self._killed.add(self._pids.pop(worker))
        actor = self._actors.pop(worker, None)
        if actor is not None:
            ray.kill(actor)

    async def _watch(self) -> None:
        """Take back leases of silent holders; find workers that died or hang."""
        while True:
            await asyncio.sleep(self._config.heartbeat_s)
            for lease in self._state.expired():
                logger.warning("lease %s expired: its holder is gone", lease)
                self._end(lease, "abandoned")
            for worker in {*self._state.idle, *self._state.held} - self._checking:
                self._spawn(self._check(worker, self._actors[worker]))

    async def _check(self, worker: str, actor: Any) -> None:
        """Replace a worker that gives no sign of life."""
        self._checking.add(worker)
        try:
            alive = await self._is_alive(worker, actor)
        finally:
            self._checking.discard(worker)
        if alive or self._actors.get(worker) is not actor:
            return
        if self._state.suspect(worker):
            self._state.metrics.failed("dead")
            self._repair(worker, "dead")
        elif worker in self._state.held:
            ray.kill(actor)  # its holder meets ``dead`` now, not at the end of a deadline, and swaps

    async def _is_alive(self, worker: str, actor: Any) -> bool:
        try:
            await answer(actor.ping.remote(), self._ping_timeout_s, f"ping of {worker}")
        except EnvFailure as failure:
            logger.warning("environment %s gives no sign of life: %s", worker, failure)
            return False
        return True


def check_same(running: EnvPoolConfig, asked: EnvPoolConfig) -> None:
    """Raise ValueError unless a pool's configuration is the one that is asked for."""
    if asdict(running) != asdict(asked):
        raise ValueError(f"the pool of this name runs with another configuration: {running}, not {asked}")
