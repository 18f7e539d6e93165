"""Settings of an environment server."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LEAST_TOKEN_LENGTH = 16


@dataclass(frozen=True)
class ServerSettings:
    """What one server offers, to whom, and within which limits.

    Attributes:
        backend: the backend it serves.
        options: that backend's options.
        capacity: environments at the same time.
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
        token: what clients must show; None lets every process of this machine in.
        lease_ttl_s: a client that is silent for so long loses its environment.
        start_timeout_s, reset_timeout_s, step_timeout_s, evaluate_timeout_s: longest such call; an
            environment that takes longer is killed.
        max_request_bytes: largest request.
        request_timeout_s: longest time that a client may take to send a request.

    Raises:
        ValueError: a value cannot be used, or the server would be open to the network without a token.
    """

    backend: str
    options: Mapping[str, Any] = field(default_factory=dict)
    capacity: int = 4
    host: str = "127.0.0.1"
    port: int = 8600
    token: str | None = field(default=None, repr=False)
    lease_ttl_s: float = 60.0
    start_timeout_s: float = 90.0
    reset_timeout_s: float = 60.0
    step_timeout_s: float = 30.0
    evaluate_timeout_s: float = 60.0
    max_request_bytes: int = 4 << 20
    request_timeout_s: float = 15.0

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {self.capacity}")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be between 0 and 65535, got {self.port}")
        for name in (
            "lease_ttl_s",
            "start_timeout_s",
            "reset_timeout_s",
            "step_timeout_s",
            "evaluate_timeout_s",
            "request_timeout_s",
            "max_request_bytes",
        ):
            value = getattr(self, name)
            if not math.isfinite(value) or value <= 0:
                raise ValueError(f"{name} must be positive and finite, got {value!r}")
        if self.token is not None and len(self.token) < LEAST_TOKEN_LENGTH:
            raise ValueError(f"the token has fewer than {LEAST_TOKEN_LENGTH} characters; it can be guessed")
        if self.token is None and not is_loopback(self.host):
            raise ValueError(
                f"refusing to listen on {self.host} without a token: whoever reaches this port could run "
                "programs here. Give a token, or listen on 127.0.0.1"
            )

    def call_timeouts(self) -> dict[str, float]:
        """Limit of each call by its tag. A reset may have to start the environment first."""
        return {
            "reset": self.start_timeout_s + self.reset_timeout_s,
            "step": self.step_timeout_s,
            "evaluate": self.evaluate_timeout_s,
            "pause": self.step_timeout_s,
        }


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address. A name counts only if it is ``localhost``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
