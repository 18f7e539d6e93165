"""Limits on memory and processes for a whole sandbox, through Linux control groups (version 1 or 2)."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from pathlib import Path

from verl_gui.envs.leftovers import owned_name, owner_is_dead

logger = logging.getLogger(__name__)

_ROOT = Path("/sys/fs/cgroup")


class ControlGroup:
    """A control group of our own; removed by :meth:`close`.

    Use :meth:`create`, which says whether this machine allows it.
    """

    def __init__(self, directories: list[Path]) -> None:
        self.directories = directories

    @classmethod
    def create(cls, *, memory_bytes: int, processes: int) -> ControlGroup | None:
        """A group with these limits, or None where groups cannot be made (not root, or a read-only mount)."""
        parents = _parents()
        if parents is None:
            return None
        remove_dead_groups()
        name = owned_name("group")
        group = cls([parent / name for parent in parents])
        memory, tasks = group.directories[0], group.directories[-1]
        try:
            for directory in group.directories:
                directory.mkdir(exist_ok=True)
            version_2 = (memory / "memory.max").exists()
            (memory / ("memory.max" if version_2 else "memory.limit_in_bytes")).write_text(str(memory_bytes))
            (tasks / "pids.max").write_text(str(processes))
        except OSError as error:
            logger.info("no control groups here: %s", error)
            group.close()
            return None
        return group

    def enter_command(self) -> list[str]:
        """A command prefix that joins the group and then becomes the command behind it."""
        files = [str(directory / "cgroup.procs") for directory in self.directories]
        script = f'for file in "${{@:1:{len(files)}}}"; do echo $$ > "$file" || exit 70; done; '
        return ["/bin/bash", "-c", f'{script}shift {len(files)}; exec "$@"', "cgroup", *files]

    def members(self) -> list[int]:
        """Numbers of the processes in the group, in increasing order."""
        try:
            return sorted(map(int, (self.directories[-1] / "cgroup.procs").read_text().split()))
        except FileNotFoundError:  # closed
            return []

    def close(self) -> None:
        """Remove the group; its processes must be dead. Safe to call again."""
        for directory in self.directories:
            for _ in range(100):
                with contextlib.suppress(FileNotFoundError):
                    try:
                        directory.rmdir()
                    except OSError:  # the last process is still being reaped
                        time.sleep(0.01)
                        continue
                break


def _parents() -> list[Path] | None:
    """Where a group has to be made: for memory and for processes (one directory in version 2)."""
    if (_ROOT / "cgroup.controllers").exists():
        own = Path("/proc/self/cgroup").read_text().strip().rpartition(":")[2]
        parent = _ROOT / own.lstrip("/")
        enabled = (parent / "cgroup.subtree_control").read_text().split() if parent.is_dir() else []
        parents = [parent]
        if not {"memory", "pids"} <= set(enabled):
            return None
    else:
        parents = [_ROOT / "memory", _ROOT / "pids"]
    return parents if all(os.access(parent, os.W_OK) for parent in parents) else None


def remove_dead_groups() -> None:
    """Remove groups whose makers are dead."""
    for parent in _parents() or ():
        for directory in parent.glob("verl-gui-*"):
            if owner_is_dead(directory.name):
                with contextlib.suppress(OSError):
                    directory.rmdir()
