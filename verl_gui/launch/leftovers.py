"""Files outside the run's directory that dead processes leave: scratch, shared memory, X server locks.

Only what is certainly the run's own is removed: the scratch directory was made for it; a shared-memory file
must have been open in one of its processes, be younger than the run and be open in no process any more; an X
lock must name one of its processes.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path

logger = logging.getLogger(__name__)

_SHARED_MEMORY = "/dev/shm/"
# What Ray appends to TMPDIR for its longest socket:
# "/ray/session_<date>_<time>_<microseconds>_<pid>/sockets/" and "plasma_store". The kernel allows 107 bytes
# for the whole.
_RAY_SOCKET_TAIL = len("/ray/session_2000-01-01_00-00-00_000000_4194304/sockets/plasma_store.0")
_SOCKET_PATH_LIMIT = 107


def make_scratch() -> Path:
    """A new private directory for the run's ``TMPDIR``, short enough for Ray's sockets.

    Everything that asks for a temporary file (Ray, vLLM, browsers) then puts it where it can be removed as a
    whole. The user's own ``TMPDIR`` is used unless its path is too long, then ``/tmp``.
    """
    base = tempfile.gettempdir()
    if len(os.fsencode(base)) + len("/vg-12345678") + _RAY_SOCKET_TAIL > _SOCKET_PATH_LIMIT:
        logger.info("TMPDIR %s is too long for Ray's sockets; using /tmp", base)
        base = "/tmp"
    scratch = Path(tempfile.mkdtemp(prefix="vg-", dir=base))
    scratch.chmod(0o711)  # sandboxed programs of another user reach what they are given inside, and no more
    return scratch


def keep_ray_logs(scratch: Path, destination: Path) -> None:
    """Move the logs of a local Ray session out of ``scratch``, replacing those of an earlier run."""
    for logs in sorted(scratch.glob("ray/session_2*/logs")):
        if destination.exists():
            shutil.rmtree(destination)
        shutil.move(logs, destination)


def remove_scratch(scratch: Path) -> None:
    """Remove the scratch directory; what cannot be removed is named in a warning."""
    shutil.rmtree(scratch, onerror=lambda _, path, why: logger.warning("cannot remove %s: %s", path, why[1]))


def shared_memory_of(pids: Iterable[int]) -> set[str]:
    """Paths below ``/dev/shm`` that the processes have mapped."""
    paths: set[str] = set()
    for pid in pids:
        try:
            with open(f"/proc/{pid}/maps", errors="replace") as maps:
                for line in maps:
                    path = line.rstrip("\n").partition("/")
                    if f"/{path[2]}".startswith(_SHARED_MEMORY) and not line.endswith("(deleted)\n"):
                        paths.add(f"/{path[2]}")
        except OSError:  # it ended meanwhile, or belongs to somebody else
            continue
    return paths


def remove_shared_memory(paths: Collection[str], *, younger_than: float) -> list[str]:
    """Unlink those of ``paths`` that were made after ``younger_than`` (Unix time) and nobody maps now."""
    if not paths:
        return []
    in_use = shared_memory_of(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    removed = []
    for path in sorted(set(paths) - in_use):
        try:
            status = os.stat(path)
            if status.st_uid == os.getuid() and status.st_ctime >= younger_than:
                os.unlink(path)
                removed.append(path)
        except FileNotFoundError:
            continue
    return removed


def remove_x_locks(pids: Collection[int], directory: Path = Path("/tmp")) -> list[str]:
    """Remove lock and socket of X servers among ``pids`` that were killed before they could do it."""
    removed = []
    for lock in directory.glob(".X*-lock"):
        try:
            owner = int(lock.read_text().strip())
            if owner not in pids or Path(f"/proc/{owner}").exists():
                continue
            number = lock.name.removeprefix(".X").removesuffix("-lock")
            lock.unlink(missing_ok=True)
            (directory / ".X11-unix" / f"X{number}").unlink(missing_ok=True)
            removed.append(str(lock))
        except (OSError, ValueError):  # somebody else's, or not a lock at all
            continue
    return removed
