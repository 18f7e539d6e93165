"""Bookkeeping of a server's places: who holds one, and who has fallen silent."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

Clock = Callable[[], float]


@dataclass
class _Entry:
    expires: float
    calls: int = 0


class LeaseTable:
    """At most ``capacity`` leases. Each ends when it is released, or unused for ``ttl_s`` seconds.

    A lease with a running call does not expire: the client waits for it, and the call has its own limit.
    """

    def __init__(self, capacity: int, ttl_s: float, clock: Clock = time.monotonic) -> None:
        self.capacity = capacity
        self._ttl_s, self._clock = ttl_s, clock
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, lease: str) -> bool:
        return lease in self._entries

    def admit(self) -> str | None:
        """A new lease with a name that cannot be guessed; None if all places are taken."""
        if len(self._entries) >= self.capacity:
            return None
        lease = secrets.token_urlsafe(16)
        self._entries[lease] = _Entry(self._clock() + self._ttl_s)
        return lease

    def renew(self, lease: str) -> bool:
        """The holder is alive; whether there is such a lease."""
        entry = self._entries.get(lease)
        if entry is not None:
            entry.expires = self._clock() + self._ttl_s
        return entry is not None

    def begin(self, lease: str) -> None:
        """A call of this lease begins."""
        self._entries[lease].calls += 1

    def end(self, lease: str) -> None:
        """A call of this lease has ended; the lease may be gone meanwhile."""
        if lease in self._entries:
            self._entries[lease].calls -= 1
            self.renew(lease)

    def busy(self, lease: str) -> bool:
        """Whether a call of this lease is running."""
        return self._entries[lease].calls > 0

    def release(self, lease: str) -> bool:
        """The place is free; whether there was such a lease."""
        return self._entries.pop(lease, None) is not None

    def expired(self) -> list[str]:
        """Leases whose holders have fallen silent; to be released by the caller."""
        now = self._clock()
        return [name for name, entry in self._entries.items() if not entry.calls and entry.expires <= now]
