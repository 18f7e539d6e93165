"""Files outside the run's directory that dead processes leave: scratch, shared memory, X server locks.

Only what is certainly the run's own is removed: the scratch directory was made for it; a shared-memory file
must have appeared during the run, in the memory of one of its processes, and be in nobody's any more; an X
lock must name one of its processes. A scratch directory whose run was killed together with its guard is
removed when the next run starts.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

logger = logging.getLogger(__name__)

_SHARED_MEMORY = Path("/dev/shm")
_OWNERS = ".owners"  # in a scratch directory: one line for each process that answers for it
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
    _remove_forsaken(Path(base))
    scratch = Path(tempfile.mkdtemp(prefix="vg-", dir=base))
    own_scratch(scratch)
    scratch.chmod(0o711)  # sandboxed programs of another user reach what they are given inside, and no more
    return scratch


def own_scratch(scratch: Path) -> None:
    """Note that this process answers for ``scratch``: while it lives, no other run removes it."""
    with open(scratch / _OWNERS, "a") as owners:
        owners.write(f"{_pid_namespace()} {os.getpid()} {_start_time(os.getpid())}\n")


def _remove_forsaken(base: Path) -> None:
    """Remove scratch directories whose owners are all dead; another user's or container's stay."""
    for scratch in base.glob("vg-*"):
        try:
            status = scratch.lstat()
            if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
                continue
            owners = [line.split() for line in (scratch / _OWNERS).read_text().splitlines()]
        except OSError:  # not one of ours, or just removed by its own run
            continue
        if owners and all(
            len(owner) == 3 and owner[0] == _pid_namespace() and _start_time(owner[1]) != owner[2]
            for owner in owners
        ):
            logger.info("removing what a killed run left: %s", scratch)
            remove_scratch(scratch)


def _pid_namespace() -> str:
    return str(os.stat("/proc/self/ns/pid").st_ino)


def _start_time(pid: int | str) -> str:
    """When a process began, in the kernel's ticks; ``""`` when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except OSError:
        return ""


def keep_ray_logs(scratch: Path, destination: Path) -> None:
    """Move the logs of a local Ray session out of ``scratch``, replacing those of an earlier run."""
    for logs in sorted(scratch.glob("ray/session_2*/logs")):
        if destination.exists():
            shutil.rmtree(destination)
        shutil.move(logs, destination)


def remove_scratch(scratch: Path) -> None:
    """Remove the scratch directory; what cannot be removed is named in a warning."""
    shutil.rmtree(scratch, onerror=lambda _, path, why: logger.warning("cannot remove %s: %s", path, why[1]))


class SharedMemoryWatch:
    """Notes the files in ``/dev/shm`` that the run's processes make.

    Python's shared memory and semaphores stay there when their process is killed, hundreds of MiB at a
    time, and nothing tells afterwards whose they were; so ownership is noted while the processes live.

    Attributes:
        ours: paths that appeared in the memory of the run's processes.
    """

    def __init__(self) -> None:
        self.ours: set[str] = set()
        self._judged = set(_names())  # what was there before is not ours
        self._seen: Counter[str] = Counter()  # how often a new name had nobody of ours behind it

    def look(self, pids: Callable[[], Iterable[int]]) -> None:
        """Judge what is new; cheap when nothing is.

        Args:
            pids: asked for the run's processes when needed.
        """
        new = _names() - self._judged
        if not new:
            return
        mapped = shared_memory_of(pids())
        for path in new:
            self._seen[path] += 1
            if path in mapped:
                self.ours.add(path)
            if path in mapped or self._seen[path] >= 5:
                self._judged.add(path)

    def remove(self) -> list[str]:
        """Unlink those of ours that nobody maps any more; returns what was removed."""
        left = self.ours & _names()
        if not left:
            return []
        left -= shared_memory_of(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        for path in left:
            Path(path).unlink(missing_ok=True)
        return sorted(left)


def _names() -> set[str]:
    try:
        return {entry.path for entry in os.scandir(_SHARED_MEMORY)}
    except FileNotFoundError:
        return set()


def shared_memory_of(pids: Iterable[int]) -> set[str]:
    """Paths below ``/dev/shm`` that the processes have mapped."""
    paths: set[str] = set()
    for pid in pids:
        try:
            with open(f"/proc/{pid}/maps", errors="replace") as maps:
                for line in maps:
                    path = "/" + line.rstrip("\n").partition("/")[2]
                    if path.startswith(f"{_SHARED_MEMORY}/"):
                        paths.add(path)
        except OSError:  # it ended meanwhile, or belongs to somebody else
            continue
    return paths


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
