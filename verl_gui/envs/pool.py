"""A fleet of environments shared by all processes of a Ray job.

One named actor, :class:`GuiEnvPool`, owns the workers, repairs them and decides who gets one. Agent loops
talk to it through :func:`get_env_pool` only to get and give back a lease; ``reset``, ``step`` and
``evaluate`` go straight to the worker::

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
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from verl_gui.actions import Action
from verl_gui.envs.base import EnvFailure, Observation, StepResult
from verl_gui.envs.pool_state import PROCESS_FAILURES, EnvPoolConfig, PoolState
from verl_gui.envs.worker import GuiEnvWorker
from verl_gui.tasks.task import Task

__all__ = ["EnvPool", "EnvPoolConfig", "GuiEnvPool", "LeasedEnv", "get_env_pool"]

logger = logging.getLogger(__name__)

POOL_NAME = "gui_env_pool"
REPLY_GRACE_S = 15.0  # beyond a deadline that the other side keeps itself; past it, that side is stuck
CLOSE_TIMEOUT_S = 10.0
PING_TIMEOUT_S = 10.0
RECONNECT_S = 1.0
RETRY_START_S = (0.5, 30.0)  # first and longest pause between attempts to start an environment
HOPELESS_STARTS = 3  # this many failed starts and not one success: refuse leases instead of waiting
MAX_CALLS = 100_000  # calls in the pool actor at once; each waiting lease is one


async def _answer(ref: ray.ObjectRef, timeout_s: float, what: str) -> Any:
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
class _Grant:
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
        self._granted: dict[str, asyncio.Future[_Grant]] = {}
        self._instances: dict[str, tuple[Task, int | None]] = {}  # what waiting leases are for, if they said
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
    ) -> _Grant:
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
        _check_same(self._config, config)
        self._check_hope()
        await self.open()
        self._state.request(lease, task_known=instance is not None)
        if instance is not None:
            self._instances[lease] = instance
        return await self._wait_for_grant(lease, timeout_s)

    async def swap(self, lease: str, failure: str, timeout_s: float) -> _Grant:
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
        closing = [
            _answer(actor.close.remote(CLOSE_TIMEOUT_S), CLOSE_TIMEOUT_S + REPLY_GRACE_S, f"close of {name}")
            for name, actor in self._actors.items()
        ]
        for failure in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(failure, Exception):
                logger.warning("environment did not close: %s", failure)
        for worker in list(self._actors):
            self._kill(worker)

    async def _wait_for_grant(self, lease: str, timeout_s: float) -> _Grant:
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
            waiting.set_result(_Grant(worker, self._actors[worker], self._screens[worker]))
        for lease, worker in self._state.reservations():
            if lease in self._instances:
                self._spawn(self._prepare(lease, worker, self._actors[worker], *self._instances[lease]))

    async def _prepare(self, lease: str, worker: str, actor: Any, task: Task, seed: int | None) -> None:
        """Set a task up on an idle environment, for the lease that it is reserved for."""
        timeout_s, began = self._config.reset_timeout_s, time.monotonic()
        try:
            ref = actor.prepare.remote(task, seed, timeout_s)
            await _answer(ref, timeout_s + REPLY_GRACE_S, f"preparing {worker}")
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
        try:
            ref = self._actors[worker].start.remote(timeout_s)
            self._screens[worker] = await _answer(ref, timeout_s + REPLY_GRACE_S, f"start of {worker}")
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
        actor = self._actors.pop(worker, None)
        if actor is not None:
            ray.kill(actor)

    async def _watch(self) -> None:
        """Take back leases of silent holders; replace idle workers that died."""
        while True:
            await asyncio.sleep(self._config.heartbeat_s)
            for lease in self._state.expired():
                logger.warning("lease %s expired: its holder is gone", lease)
                self._end(lease, "abandoned")
            idle = {worker: self._actors[worker] for worker in self._state.idle}
            alive = await asyncio.gather(*(self._is_alive(*entry) for entry in idle.items()))
            for worker, ok in zip(idle, alive, strict=True):
                if not ok and self._state.suspect(worker):
                    self._state.metrics.failed("dead")
                    self._repair(worker, "dead")

    async def _is_alive(self, worker: str, actor: Any) -> bool:
        try:
            await _answer(actor.ping.remote(), PING_TIMEOUT_S, f"ping of {worker}")
        except EnvFailure as failure:
            logger.warning("idle environment %s: %s", worker, failure)
            return False
        return True


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
        return await _answer(self._connect().metrics.remote(), REPLY_GRACE_S, "metrics of the pool")

    async def close(self) -> None:
        """Close all environments and end the pool, for all processes. Safe to call again."""
        self._stop.set()
        with self._lock:
            actor, self._actor = self._actor, None
        if actor is None:
            return
        try:
            await _answer(actor.close.remote(), CLOSE_TIMEOUT_S + 2 * REPLY_GRACE_S, "close of the pool")
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
        self._grant: _Grant | None = None
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

    def _held(self) -> _Grant:
        if self._grant is None:
            raise EnvFailure("dead", "the lease is over (failed, left or never entered)")
        return self._grant

    async def _call(self, operation: str, arguments: tuple[Any, ...], timeout_s: float) -> Any:
        grant, began = self._held(), time.monotonic()
        ref = getattr(grant.actor, operation).remote(*arguments, timeout_s)
        self._running = operation
        try:
            result = await _answer(ref, timeout_s + REPLY_GRACE_S, f"{operation} in {grant.worker}")
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

    async def _acquire(self, timeout_s: float) -> _Grant:
        ref = self._owner.acquire.remote(self._id, timeout_s, self._pool.config, self._instance)
        return await _answer(ref, timeout_s + REPLY_GRACE_S, "lease of an environment")

    async def _swap(self, failure: str) -> None:
        self._grant = None
        ref = self._owner.swap.remote(self._id, failure, self._timeout_s)
        try:
            self._grant = await _answer(ref, self._timeout_s + REPLY_GRACE_S, "swap of an environment")
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


def _check_same(running: EnvPoolConfig, asked: EnvPoolConfig) -> None:
    if asdict(running) != asdict(asked):
        raise ValueError(f"the pool of this name runs with another configuration: {running}, not {asked}")


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
    _check_same(pool.config, config)
    return pool
