"""Bookkeeping of an environment pool: who holds what, who is next, how much of the fleet works.

Pure: no Ray, no asyncio, an injected clock. :mod:`verl_gui.envs.pool` acts on what is decided here.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Clock = Callable[[], float]

# An environment that failed like this may be stuck for good; only a new process is trusted again.
PROCESS_FAILURES = frozenset({"timeout", "dead", "abandoned"})
MISSED_HEARTBEATS = 3
MAX_SAMPLES = 10_000  # latencies kept per operation between two reports


@dataclass(frozen=True)
class EnvPoolConfig:
    """Settings of one pool, validated when built.

    Raises:
        ValueError: naming the field, the value and what it must be.
    """

    backend: str
    """Backend name for ``verl_gui.envs.registry.make_env``, or ``"package.module:factory"`` of your own."""
    num_envs: int = 8
    """How many environments may be held at the same time, over all nodes."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the backend, e.g. ``{"screen": [1280, 720]}``."""
    spares: int = 0
    """Environments started beyond ``num_envs``: a broken one is replaced without waiting, and while rollouts
    wait for a place, the tasks of the next ones are set up on the spares, so their resets cost nothing."""
    pause: bool = False
    """Whether the programs of an environment are stopped while the policy thinks (backends that can)."""
    start_timeout_s: float = 120.0
    """Longest wait for a new environment, placement and process start included."""
    reset_timeout_s: float = 60.0
    """Longest ``reset`` (task set-up included)."""
    step_timeout_s: float = 30.0
    """Longest ``step``."""
    evaluate_timeout_s: float = 60.0
    """Longest ``evaluate``."""
    lease_timeout_s: float = 1800.0
    """Longest wait in the queue for an environment."""
    max_reset_retries: int = 2
    """How often a failed reset is tried again, each time on a fresh environment."""
    max_episode_retries: int = 1
    """How often an episode that an environment fault ended is played again, on another environment."""
    heartbeat_s: float = 10.0
    """Period in which worker processes are asked for a sign of life and holders confirm their leases. A
    process that is silent for three periods is replaced, a lease taken back."""
    resource: str | None = None
    """Ray custom resource that an environment takes one unit of; ``None`` spreads them over all nodes."""

    def __post_init__(self) -> None:
        if not isinstance(self.backend, str) or not self.backend:
            raise ValueError(f"backend must be a non-empty string, got {self.backend!r}")
        if not isinstance(self.options, Mapping):
            raise ValueError(f"options must be a mapping of keyword arguments, got {self.options!r}")
        for name, least in (
            ("num_envs", 1),
            ("spares", 0),
            ("max_reset_retries", 0),
            ("max_episode_retries", 0),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
        for name in ("start", "reset", "step", "evaluate", "lease"):
            self._check_seconds(f"{name}_timeout_s")
        self._check_seconds("heartbeat_s")
        if not isinstance(self.pause, bool):
            raise ValueError(f"pause must be true or false, got {self.pause!r}")
        if self.resource is not None and (not isinstance(self.resource, str) or not self.resource):
            raise ValueError(f"resource must name a Ray custom resource or be None, got {self.resource!r}")

    def _check_seconds(self, name: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise ValueError(f"{name} must be a positive, finite number of seconds, got {value!r}")

    @property
    def lease_ttl_s(self) -> float:
        """How long a lease lives without a word from its holder."""
        return MISSED_HEARTBEATS * self.heartbeat_s


class PoolMetrics:
    """What happened since the last report.

    Operations are told when a lease ends, so the episode that is still running counts in a later report.
    """

    def __init__(self, size: int, clock: Clock = time.monotonic) -> None:
        self._size, self._clock = size, clock
        self._held = 0
        self._clear()

    def _clear(self) -> None:
        self._since = self._changed = self._clock()
        self._held_s = 0.0
        self._working_s = 0.0
        self._samples: dict[str, deque[float]] = {}
        self._counts: Counter[str] = Counter()

    def held(self, count: int) -> None:
        """From now on ``count`` environments are held."""
        now = self._clock()
        self._held_s += self._held * (now - self._changed)
        self._held, self._changed = count, now

    def took(self, operation: str, seconds: float) -> None:
        """``operation`` of an environment took ``seconds``."""
        self._working_s += seconds
        self.waited(operation, seconds)

    def waited(self, what: str, seconds: float) -> None:
        """Somebody waited ``seconds`` for ``what``; no environment worked meanwhile."""
        self._samples.setdefault(what, deque(maxlen=MAX_SAMPLES)).append(seconds)
        self._counts[f"count/{what}"] += 1

    def failed(self, kind: str) -> None:
        """An environment was lost to a failure of this kind."""
        self._counts[f"failures/{kind}"] += 1

    def report(self) -> dict[str, float]:
        """Numbers since the last report, which starts anew: ``env/…`` to float."""
        self.held(self._held)
        total_s = self._size * (self._clock() - self._since)
        numbers = {
            "env/utilisation": self._held_s / total_s if total_s > 0 else 0.0,
            "env/working": self._working_s / total_s if total_s > 0 else 0.0,
        }
        numbers.update({f"env/{name}": float(count) for name, count in self._counts.items()})
        for name, samples in self._samples.items():
            ordered = sorted(samples)
            for percent in (50, 95, 99):
                numbers[f"env/{name}_s/p{percent}"] = percentile(ordered, percent)
        self._clear()
        return numbers


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Nearest-rank percentile of an ascending, non-empty sequence: always a value that occurred."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


@dataclass
class _Lease:
    worker: str | None
    expires: float
    asked: float
    task_known: bool = False


class PoolState:
    """Workers, leases and the queue between them.

    A worker is *preparing* (being started or repaired), *idle* or held by a lease. A lease is *waiting*,
    *holding* a worker, or *swapping* a broken worker for a fresh one. At most ``size`` leases hold or
    swap; the rest wait in the order in which they came. Those that swap go first: they are already in.

    Args:
        size: most environments held at once.
        spares: environments kept beyond ``size``.
        lease_ttl_s: seconds a lease lives without :meth:`renew`.
        clock: monotonic seconds.
    """

    def __init__(
        self, size: int, *, spares: int = 0, lease_ttl_s: float = 30.0, clock: Clock = time.monotonic
    ) -> None:
        self.size = size
        self.metrics = PoolMetrics(size, clock)
        self._target = size + spares
        self._ttl_s, self._clock = lease_ttl_s, clock
        self._preparing: set[str] = set()
        self._idle: deque[str] = deque()
        self._waiting: dict[str, _Lease] = {}  # insertion order is the queue
        self._swapping: dict[str, _Lease] = {}
        self._holding: dict[str, _Lease] = {}
        self._reserved: dict[str, str] = {}  # waiting lease -> idle worker that its task is set up on

    # -- workers ---------------------------------------------------------------------------------

    @property
    def missing(self) -> int:
        """How many workers have to be added to be complete again."""
        return self._target - len(self._preparing) - len(self._idle) - len(self._holding)

    @property
    def usable(self) -> int:
        """Workers that are idle or held."""
        return len(self._idle) + len(self._holding)

    @property
    def idle(self) -> tuple[str, ...]:
        """Idle workers, the longest idle first."""
        return tuple(self._idle)

    @property
    def held(self) -> tuple[str, ...]:
        """Workers that leases hold."""
        return tuple(lease.worker for lease in self._holding.values() if lease.worker is not None)

    def add(self, worker: str) -> None:
        """A new worker is being started."""
        self._preparing.add(worker)

    def ready(self, worker: str) -> None:
        """A preparing worker is clean and may be handed out."""
        self._preparing.remove(worker)
        self._idle.append(worker)

    def suspect(self, worker: str) -> bool:
        """Take an idle worker out of use for repair; False when it is no longer idle."""
        if worker not in self._idle:
            return False
        self._idle.remove(worker)
        self._preparing.add(worker)
        self._reserved = {lease: other for lease, other in self._reserved.items() if other != worker}
        return True

    def remove(self, worker: str) -> None:
        """A preparing worker is gone."""
        self._preparing.remove(worker)

    # -- leases ----------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """Leases that wait for their first environment."""
        return len(self._waiting)

    def request(self, lease: str, *, task_known: bool = False) -> None:
        """Queue a new lease at the end; ``task_known`` when its task can be set up while it waits."""
        if self.knows(lease):
            raise ValueError(f"lease {lease!r} was already requested")
        now = self._clock()
        self._waiting[lease] = _Lease(None, now + self._ttl_s, now, task_known)

    def knows(self, lease: str) -> bool:
        """Whether the lease is waiting, holding or swapping."""
        return lease in self._waiting or lease in self._swapping or lease in self._holding

    def grants(self) -> list[tuple[str, str]]:
        """Hand out what can be handed out now: ``(lease, worker)`` pairs, already booked."""
        granted = []
        while self._idle:
            if self._swapping:
                queue = self._swapping
            elif self._waiting and len(self._holding) < self.size:
                queue = self._waiting
            else:
                break
            lease = next(iter(queue))
            entry = queue.pop(lease)
            entry.worker = self._take_idle(lease)
            now = self._clock()
            entry.expires = now + self._ttl_s
            self._holding[lease] = entry
            self.metrics.waited("lease", now - entry.asked)
            granted.append((lease, entry.worker))
        self.metrics.held(len(self._holding))
        return granted

    def reservations(self) -> list[tuple[str, str]]:
        """Pair leases that wait for a place with idle environments to be set up for them.

        To be called after :meth:`grants`: what is idle then is spare.

        Returns:
            New pairs ``(lease, worker)``. :meth:`grants` keeps to a pair as long as the worker stays idle.
        """
        free = [worker for worker in self._idle if worker not in self._reserved.values()]
        unprepared = [
            lease
            for lease, entry in self._waiting.items()
            if entry.task_known and lease not in self._reserved
        ]
        pairs = list(zip(unprepared, free, strict=False))
        self._reserved.update(pairs)
        return pairs

    def stop_preparing(self, lease: str) -> None:
        """Never again set up the task of this lease while it waits."""
        self._reserved.pop(lease, None)
        if lease in self._waiting:
            self._waiting[lease].task_known = False

    def _take_idle(self, lease: str) -> str:
        """Remove an idle worker: the lease's own, else one of nobody, else the one reserved last."""
        worker = self._reserved.pop(lease, None)
        if worker is None:
            taken = set(self._reserved.values())
            worker = next((idle for idle in self._idle if idle not in taken), None)
        if worker is None:  # all are set up for others; of those, the last waits longest for its place
            _, worker = self._reserved.popitem()
        self._idle.remove(worker)
        return worker

    def renew(self, leases: Iterable[str]) -> None:
        """Their holder is alive. Unknown leases (ended meanwhile) are passed over."""
        expires = self._clock() + self._ttl_s
        for lease in leases:
            for queue in (self._holding, self._waiting, self._swapping):
                if lease in queue:
                    queue[lease].expires = expires

    def expired(self) -> list[str]:
        """Leases whose holder has been silent for too long."""
        now = self._clock()
        return [
            lease
            for queue in (self._holding, self._swapping, self._waiting)
            for lease, entry in queue.items()
            if entry.expires <= now
        ]

    def release(self, lease: str, failure: str | None = None) -> str | None:
        """End a lease, whatever it is doing; unknown ones are passed over.

        Args:
            failure: what broke the environment; ``None`` when it is fit for the next holder.

        Returns:
            The worker that has to be repaired or removed (it is *preparing* now), if any.
        """
        self._waiting.pop(lease, None)
        self._reserved.pop(lease, None)
        self._swapping.pop(lease, None)
        entry = self._holding.pop(lease, None)
        self.metrics.held(len(self._holding))
        if entry is None or entry.worker is None:
            return None
        if failure is None:
            self._idle.append(entry.worker)
            return None
        self.metrics.failed(failure)
        self._preparing.add(entry.worker)
        return entry.worker

    def swap(self, lease: str, failure: str) -> str:
        """The holder's environment broke; it keeps its place and gets the next fresh one.

        Returns:
            The broken worker, *preparing* now.

        Raises:
            KeyError: the lease holds nothing (it has ended, or expired).
        """
        entry = self._holding.pop(lease)
        assert entry.worker is not None
        worker, now = entry.worker, self._clock()
        self._preparing.add(worker)
        self._swapping[lease] = _Lease(None, now + self._ttl_s, now)
        self.metrics.failed(failure)
        self.metrics.held(len(self._holding))
        return worker
