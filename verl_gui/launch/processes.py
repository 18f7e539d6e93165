"""The process tree below us: who is in it, and how to end all of it. Linux only; standard library only."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_PR_SET_CHILD_SUBREAPER = 36

_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Process:
    """One running process, as ``/proc`` shows it."""

    pid: int
    parent: int
    state: str
    name: str

    def __str__(self) -> str:
        return f"{self.name}({self.pid})"


def become_subreaper(on: bool = True) -> None:
    """Make orphaned descendants children of this process instead of init's (or stop doing so)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(on))


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send ``signal_number`` to this process when the thread that made it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal_number)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


def descendants(root: int, *, but_not: Collection[int] = ()) -> list[Process]:
    """All live descendants of ``root``, zombies left out.

    Args:
        root: process id; it is not part of the result.
        but_not: process ids that are left out together with everything below them.
    """
    children: dict[int, list[Process]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (process := _read(int(entry.name))) is not None:
            children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    queue = [root]
    while queue:
        for process in children.get(queue.pop(), []):
            if process.pid not in but_not:
                queue.append(process.pid)
                found.append(process)
    return [process for process in found if process.state != "Z"]


def _read(pid: int) -> Process | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:  # it ended meanwhile
        return None
    name, _, rest = stat.partition("(")[2].rpartition(") ")  # a name may itself hold brackets and blanks
    state, parent = rest.split()[:2]
    return Process(pid, int(parent), state, name)


def reap_children() -> dict[int, int]:
    """Collect every child of this process that has ended, without waiting; wait statuses by process id."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def terminate(
    targets: Callable[[], list[Process]], *, grace_seconds: float, reap: Callable[[], object] = lambda: None
) -> list[Process]:
    """End all processes that ``targets`` names, asking first, forcing after ``grace_seconds``.

    ``targets`` is asked again all the time, because a process being ended may still start others.

    Args:
        targets: the processes to end, as of now; an empty list ends the wait.
        grace_seconds: time between SIGTERM and SIGKILL.
        reap: called in between; collects ended children so that they do not stay as zombies.

    Returns:
        Those still there 10 s after SIGKILL (stuck in the kernel); normally none.
    """
    asked: set[int] = set()
    force_at = time.monotonic() + grace_seconds
    give_up_at = force_at + 10
    while True:
        reap()
        alive = targets()
        now = time.monotonic()
        if not alive or now > give_up_at:
            return alive
        for process in alive:
            if now >= force_at:
                send(process.pid, signal.SIGKILL)
            elif process.pid not in asked:
                asked.add(process.pid)
                send(process.pid, signal.SIGTERM)
                send(process.pid, signal.SIGCONT)  # a stopped process would not see the SIGTERM
        time.sleep(_POLL_SECONDS)


def send(pid: int, signal_number: int) -> None:
    """Send a signal; nothing happens when the process is gone already."""
    try:
        os.kill(pid, signal_number)
    except ProcessLookupError:
        return
