"""Child processes that never outlive us.

A child asks the kernel to be signalled when its parent dies (``PR_SET_PDEATHSIG``). "Parent" there means the
*thread* that started it, so every child is started from one thread that lives as long as the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any


class _Starter:
    """Runs functions on one daemon thread, which ends only with the process."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._loop, name="verl-gui-starter", daemon=True).start()

    def _loop(self) -> None:
        while True:
            job, answer = self._jobs.get()
            try:
                answer.put((job(), None))
            except BaseException as error:  # handed to the caller, whatever it is
                answer.put((None, error))

    def run(self, job: Callable[[], Any]) -> Any:
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._jobs.put((job, answer))
        result, error = answer.get()
        if error is not None:
            raise error
        return result


_starter: _Starter | None = None
_starter_lock = threading.Lock()


def _forget_starter() -> None:
    """After a fork the thread does not exist in the child."""
    global _starter, _starter_lock
    _starter, _starter_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_starter)


def start(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    pass_fds: Sequence[int] = (),
    stdout: IO[bytes] | int = subprocess.DEVNULL,
    cwd: str | None = None,
    death_signal: str | None = "KILL",
) -> subprocess.Popen[bytes]:
    """Start ``command`` in a session of its own, without stdin.

    Args:
        command: program and arguments.
        env: the whole environment of the child.
        pass_fds: descriptors the child inherits under the same numbers.
        stdout: where both output streams go.
        cwd: working directory.
        death_signal: signal the child gets when this process dies, however it dies; None if the command
            arranges that itself.

    Raises:
        FileNotFoundError: the program is not installed.
    """
    global _starter
    with _starter_lock:
        if _starter is None:
            _starter = _Starter()
        starter = _starter
    guarded = ["setpriv", "--pdeathsig", death_signal, "--", *command] if death_signal else list(command)

    def job() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            guarded,
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT if stdout != subprocess.DEVNULL else subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=tuple(pass_fds),
        )

    return starter.run(job)


def stop(process: subprocess.Popen[bytes], *, term_s: float = 2.0, kill_s: float = 5.0) -> None:
    """End ``process`` and its group: SIGTERM, then SIGKILL after ``term_s`` seconds (0: at once).

    Returns when the group is gone, at the latest ``term_s + kill_s`` seconds later. Safe to call again: what
    has been reaped is never signalled, because its number may belong to a stranger by then.
    """
    if process.returncode is not None:
        return
    if term_s > 0 and not _has_ended(process.pid):
        _signal_group(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + term_s
        while not _has_ended(process.pid) and time.monotonic() < deadline:
            time.sleep(0.002)
    # Nobody has waited for the leader yet, so the number of its group is still its own, dead or alive.
    _signal_group(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(kill_s)
    deadline = time.monotonic() + kill_s
    while _signal_group(process.pid, 0) and time.monotonic() < deadline:
        time.sleep(0.002)


def _has_ended(pid: int) -> bool:
    """Whether a child of ours has ended; it stays to be waited for, which keeps its number taken."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # somebody else has waited for it
        return True


def _signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group; whether the group exists."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def kill_marked(mark: str, *, timeout_s: float = 5.0) -> None:
    """Kill every process of this user that has ``mark`` ("NAME=value") in its environment.

    Raises:
        ValueError: the mark is not of that form; an empty one would be found in every process.
    """
    name, _, value = mark.partition("=")
    if not name or not value:
        raise ValueError(f"expected a mark NAME=value that tells our processes from others, got {mark!r}")
    deadline = time.monotonic() + timeout_s
    while (found := find_marked(mark)) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def find_marked(mark: str) -> list[int]:
    """Numbers of this user's processes that have ``mark`` ("NAME=value") in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # ended, or another user's
                if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def pipe_to_child(child_writes: bool) -> tuple[int, int]:
    """A pipe of which a child shall have one end: (our end, the child's end).

    The child's end has a number over 9, so that a shell in the child can move it to a small one without
    running into another that is still to be moved.
    """
    reader, writer = os.pipe()
    ours, low = (reader, writer) if child_writes else (writer, reader)
    try:
        return ours, fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 10)
    finally:
        os.close(low)


def read_until(fd: int, end: bytes, timeout_s: float) -> bytes:
    """Read from ``fd`` up to and including ``end``.

    Raises:
        TimeoutError: ``end`` did not come in time.
        EOFError: the writer closed first.
    """
    deadline = time.monotonic() + timeout_s
    data = b""
    while not data.endswith(end):
        if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError(f"no {end!r} within {timeout_s:g} s (got {data!r})")
        chunk = os.read(fd, 1)
        if not chunk:
            raise EOFError(f"closed before {end!r} (got {data!r})")
        data += chunk
    return data
