"""Names that tell who made a directory, so that what killed processes left behind can be removed."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from pathlib import Path

_PREFIX = "verl-gui"


def owned_name(kind: str) -> str:
    """A new name that holds the number of this process and of its process namespace."""
    return f"{_PREFIX}-{kind}-{_namespace()}-{os.getpid()}-{secrets.token_hex(4)}"


def owner_is_dead(name: str) -> bool:
    """Whether ``name`` is one of :func:`owned_name` whose maker is dead.

    Only makers in our own process namespace can be judged: one in another container looks dead and is not.
    """
    prefix, _, rest = name.rpartition(f"-{_namespace()}-")
    owner = rest.partition("-")[0]
    return prefix.startswith(_PREFIX) and owner.isdigit() and not Path("/proc", owner).exists()


def remove_dead_directories() -> None:
    """Remove the private directories of dead processes."""
    for directory in Path(tempfile.gettempdir()).glob(f"{_PREFIX}-*"):
        if owner_is_dead(directory.name):
            shutil.rmtree(directory, ignore_errors=True)


def private_directory(kind: str) -> Path:
    """A new directory for this user alone; those of dead processes are removed on the way."""
    remove_dead_directories()
    directory = Path(tempfile.gettempdir()) / owned_name(kind)
    directory.mkdir(mode=0o700)
    return directory


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino
