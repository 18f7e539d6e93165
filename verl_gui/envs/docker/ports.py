"""Blocks of ports that no other process of this machine takes: claimed by a lock, not by looking."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from pathlib import Path

from verl_gui.envs.base import EnvFailure

FIRST = 20_000
"""Below the ephemeral range of every usual system, so no outgoing connection takes one."""
LAST = 30_000


class PortBlock:
    """``size`` ports in a row, ours until :meth:`release` or the end of the process, however it ends.

    Args:
        size: how many.
        directory: where the locks are; all processes that shall not collide use the same.

    Attributes:
        ports: their numbers.

    Raises:
        EnvFailure: ``capacity``; none is free.
    """

    def __init__(self, size: int = 4, directory: Path | None = None) -> None:
        place = directory or Path(tempfile.gettempdir()) / f"verl-gui-ports-{os.getuid()}"
        place.mkdir(mode=0o700, exist_ok=True)
        for first in range(FIRST, LAST - size + 1, size):
            fd = os.open(place / str(first), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                continue
            ports = tuple(range(first, first + size))
            if all(map(_bindable, ports)):
                self._fd, self.ports = fd, ports
                return
            os.close(fd)  # a stranger has one of them
        raise EnvFailure("capacity", f"no {size} free ports in a row between {FIRST} and {LAST}")

    def release(self) -> None:
        """Let others have them. Safe to call again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _bindable(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
