"""A fleet of environments shared by all processes of a Ray job.

One named actor, :class:`verl_gui.envs.pool_actor.GuiEnvPool`, owns the workers, repairs them and decides who
gets one. Agent loops talk to it through :func:`get_env_pool` only to get and give back a lease; ``reset``,
``step`` and ``evaluate`` go straight to the worker::

    pool = get_env_pool(EnvPoolConfig(backend="desktop", num_envs=16))
    async with pool.lease() as env:
        observation = await env.reset(task, seed=0)
        result = await env.step(actions)
        score = await env.evaluate()

Every wait has a deadline. A failure ends the lease with a typed :class:`EnvFailure`; the environment is
repaired or replaced behind the caller's back.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from verl_gui.actions import Action
from verl_gui.envs.base import EnvFailure, Observation, StepResult
from verl_gui.envs.pool_actor import CLOSE_TIMEOUT_S, REPLY_GRACE_S, Grant, GuiEnvPool, answer, check_same
from verl_gui.envs.pool_state import EnvPoolConfig
from verl_gui.tasks.task import Task

__all__ = ["EnvPool", "EnvPoolConfig", "LeasedEnv", "get_env_pool", "pool_metrics"]

logger = logging.getLogger(__name__)

POOL_NAME = "gui_env_pool"
RECONNECT_S = 1.0
MAX_CALLS = 100_000  # calls in the pool actor at once; each waiting lease is one


class EnvPool:
    """A process's handle on the pool; made by :func:`get_env_pool`. Safe to use from several event loops."""

    def __init__(self, config: EnvPoolConfig, name: str) -> None:
        self.config, self.name = config, name
        self._session = _session()
        self._lock = threading.Lock()
        self._actor: Any = None
        self._leases: dict[str, weakref.ref[LeasedEnv]] = {}
        self._stop = threading.Event()
        self._connect()
        threading.Thread(target=self._keep_leases, name=f"{name}-heartbeat", daemon=True).start()

    def lease(
        self, *, timeout_s: float | None = None, task: Task | None = None, seed: int | None = None
    ) -> LeasedEnv:
        """An environment for the length of an ``async with`` block.

        Args:
            timeout_s: longest wait in the queue; ``config.lease_timeout_s`` by default.
            task: what the first reset will be for, where that is known: while the lease waits in the queue,
                the task is set up on a spare environment (``config.spares``), and the reset takes no time.
            seed: its seed.
        """
        wait_s = self.config.lease_timeout_s if timeout_s is None else timeout_s
        return LeasedEnv(self, wait_s, None if task is None else (task, seed))

    async def metrics(self) -> dict[str, float]:
        """Numbers since the last call.

        ``env/utilisation`` (share of ``num_envs`` held), ``env/working`` (share inside reset, step or
        evaluate), ``env/count/<what>``, ``env/failures/<kind>``, ``env/<what>_s/p50|p95|p99`` for what in
        reset, step, evaluate, lease (wait in the queue) and prepare (reset ahead of time), and as of now
        ``env/workers`` (usable environments) and ``env/queued``. What did not happen is left out.

        Raises:
            EnvFailure: ``dead`` or ``timeout`` when the pool does not answer.
        """
        return await answer(self._connect().metrics.remote(), REPLY_GRACE_S, "metrics of the pool")

    async def close(self) -> None:
        """Close all environments and end the pool, for all processes. Safe to call again."""
        self._stop.set()
        with self._lock:
            actor, self._actor = self._actor, None
        if actor is None:
            return
        try:
            await answer(actor.close.remote(), CLOSE_TIMEOUT_S + 2 * REPLY_GRACE_S, "close of the pool")
        except EnvFailure as failure:
            logger.warning("environment pool did not close in order, killing it: %s", failure)
        ray.kill(actor)  # its workers go with it

    def _connect(self) -> Any:
        """The pool's actor; whoever comes first creates it (again)."""
        with self._lock:
            if self._stop.is_set():
                raise EnvFailure("capacity", "the environment pool is closed")
            if self._actor is None:
                actor_class = ray.remote(GuiEnvPool).options(
                    name=self.name, get_if_exists=True, num_cpus=0, max_concurrency=MAX_CALLS
                )
                self._actor = actor_class.remote(self.config)
                self._actor.open.remote()
            return self._actor

    def _usable(self) -> bool:
        return not self._stop.is_set() and self._session == _session()

    def _hold(self, lease: LeasedEnv) -> None:
        with self._lock:
            self._leases[lease._id] = weakref.ref(lease)

    def _let_go(self, lease: LeasedEnv) -> None:
        with self._lock:
            self._leases.pop(lease._id, None)

    def _disconnect(self, actor: Any) -> None:
        with self._lock:
            if self._actor is actor:
                self._actor = None

    def _keep_leases(self) -> None:
        """Renew the leases of this process; in a thread, so that a busy event loop loses none."""
        while not self._stop.wait(self.config.heartbeat_s):
            with self._lock:
                self._leases = {lease: ref for lease, ref in self._leases.items() if ref() is not None}
                held, actor = list(self._leases), self._actor
            if not held or actor is None:
                continue
            try:
                actor.renew.remote(held)
            except RayError as error:
                logger.warning("environment pool %s: leases are no longer renewed: %s", self.name, error)
                return


class LeasedEnv:
    """One environment, held by one trajectory; see :meth:`EnvPool.lease`.

    Any :class:`EnvFailure` ends the lease; the environment is then no longer this holder's.
    """

    def __init__(
        self, pool: EnvPool, timeout_s: float, instance: tuple[Task, int | None] | None = None
    ) -> None:
        self._pool, self._timeout_s, self._instance = pool, timeout_s, instance
        self._id = uuid.uuid4().hex
        self._owner: Any = None  # the pool actor that gave the lease
        self._grant: Grant | None = None
        self._running: str | None = None
        self._took: list[tuple[str, float]] = []

    @property
    def screen(self) -> tuple[int, int]:
        """Width and height of the screen in pixels."""
        return self._held().screen

    async def __aenter__(self) -> LeasedEnv:
        deadline = time.monotonic() + self._timeout_s
        self._pool._hold(self)
        while True:
            self._owner = self._pool._connect()
            try:
                self._grant = await self._acquire(max(0.0, deadline - time.monotonic()))
                return self
            except BaseException as error:
                pool_died = isinstance(error, EnvFailure) and error.kind == "dead"
                if not pool_died or time.monotonic() >= deadline:
                    self._leave(None)
                    raise
                logger.warning("environment pool is gone, starting another: %s", error)
            self._pool._disconnect(self._owner)
            await asyncio.sleep(RECONNECT_S)  # its name stays taken for a moment

    async def __aexit__(self, *_: object) -> None:
        if self._grant is not None:
            # Cancelled inside a call: the environment still works on it, nobody else may get it like this.
            self._leave("abandoned" if self._running else None)

    async def reset(self, task: Task, *, seed: int | None = None) -> Observation:
        """Prepare ``task``, if need be on another environment.

        Raises:
            EnvFailure: ``reset`` when all attempts failed; ``capacity`` when there was no fresh environment.
        """
        timeout_s = self._pool.config.reset_timeout_s
        attempts = 1 + self._pool.config.max_reset_retries
        for attempt in range(attempts):
            try:
                return await self._call("reset", (task, seed), timeout_s)
            except EnvFailure as failure:
                if attempt + 1 == attempts:
                    self._leave(failure.kind)
                    why = f"task {task.id!r} failed on {attempts} environments; the last said: {failure}"
                    raise EnvFailure("reset", why) from failure
                logger.warning("reset %d of %d, task %r: %s", attempt + 1, attempts, task.id, failure)
                await self._swap(failure.kind)
        raise AssertionError("unreachable")

    async def step(self, actions: Sequence[Action]) -> StepResult:
        """Carry out ``actions`` and look again."""
        return await self._call_once("step", (list(actions),), self._pool.config.step_timeout_s)

    async def evaluate(self) -> float:
        """Score of the current state in [0, 1]."""
        return await self._call_once("evaluate", (), self._pool.config.evaluate_timeout_s)

    def _held(self) -> Grant:
        if self._grant is None:
            raise EnvFailure("dead", "the lease is over (failed, left or never entered)")
        return self._grant

    async def _call(self, operation: str, arguments: tuple[Any, ...], timeout_s: float) -> Any:
        grant, began = self._held(), time.monotonic()
        ref = getattr(grant.actor, operation).remote(*arguments, timeout_s)
        self._running = operation
        try:
            result = await answer(ref, timeout_s + REPLY_GRACE_S, f"{operation} in {grant.worker}")
        except Exception:
            self._running = None  # it ended, only badly; a cancellation leaves it running
            raise
        finally:
            self._took.append((operation, time.monotonic() - began))
        self._running = None
        return result

    async def _call_once(self, operation: str, arguments: tuple[Any, ...], timeout_s: float) -> Any:
        try:
            return await self._call(operation, arguments, timeout_s)
        except EnvFailure as failure:
            self._leave(failure.kind)
            raise

    async def _acquire(self, timeout_s: float) -> Grant:
        ref = self._owner.acquire.remote(self._id, timeout_s, self._pool.config, self._instance)
        return await answer(ref, timeout_s + REPLY_GRACE_S, "lease of an environment")

    async def _swap(self, failure: str) -> None:
        self._grant = None
        ref = self._owner.swap.remote(self._id, failure, self._timeout_s)
        try:
            self._grant = await answer(ref, self._timeout_s + REPLY_GRACE_S, "swap of an environment")
        except BaseException:
            self._leave(failure)  # again the failure: Ray may deliver this call before the swap
            raise

    def _leave(self, failure: str | None) -> None:
        """Give the lease back. Only sends, so that it also works while being cancelled."""
        if self._owner is not None:
            self._owner.release.remote(self._id, failure, self._took)
        self._pool._let_go(self)
        self._grant, self._owner, self._running, self._took = None, None, None, []


def pool_metrics(name: str = POOL_NAME, timeout_s: float = 5.0) -> dict[str, float]:
    """:meth:`EnvPool.metrics` of the pool of this job; nothing where no pool runs, or none that answers.

    For those who only watch: no pool is created, and a failure is a warning.
    """
    try:
        return ray.get(ray.get_actor(name).metrics.remote(), timeout=timeout_s)
    except ValueError:  # no actor of this name
        return {}
    except RayError as error:
        logger.warning("environment pool %s tells no metrics: %s", name, error)
        return {}


_POOLS: dict[str, EnvPool] = {}
_POOLS_LOCK = threading.Lock()


def _session() -> tuple[str, str]:
    """Names the Ray cluster and job that this process belongs to."""
    context = ray.get_runtime_context()
    return context.get_node_id(), context.get_job_id()


def get_env_pool(config: EnvPoolConfig | Mapping[str, Any], name: str = POOL_NAME) -> EnvPool:
    """The pool of this Ray job, created by whoever asks first; its environments start at once.

    The pool lives until it is closed, until the process that created it ends, or until the job ends. If
    its creator ends early, the next lease creates the pool again.

    Args:
        config: the same in every process.
        name: one pool a name.

    Raises:
        ValueError: bad configuration, or another one than the pool of this name has (in this process; in
            others the first lease raises it).
    """
    if not isinstance(config, EnvPoolConfig):
        config = EnvPoolConfig(**config)
    with _POOLS_LOCK:
        pool = _POOLS.get(name)
        if pool is None or not pool._usable():
            pool = _POOLS[name] = EnvPool(config, name)
    check_same(pool.config, config)
    return pool
