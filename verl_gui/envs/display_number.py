"""Numbers for private X displays, each used by one server of this machine at a time.

Xvfb can pick a number itself (``-displayfd`` alone), but it then takes no lock file and recognises a number
in use only by the abstract socket, which ours do not open: a second server would take over the socket file
of the first.
"""

from __future__ import annotations

import fcntl
import os
import random
from pathlib import Path

FIRST, LAST = 100, 9999
_ATTEMPTS = 1000


class DisplayNumber:
    """A claimed display number; it is free again after :meth:`release` or when this process ends.

    Attributes:
        number: the display's number.

    Raises:
        OSError: no number could be claimed.
    """

    def __init__(self) -> None:
        for number in random.sample(range(FIRST, LAST + 1), _ATTEMPTS):
            if Path(f"/tmp/.X11-unix/X{number}").exists() or Path(f"/tmp/.X{number}-lock").exists():
                continue
            path = Path(f"/tmp/.verl_gui-display-{number}.lock")
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.stat(path).st_ino != os.fstat(file).st_ino:
                    raise BlockingIOError(f"{path} was released and removed while it was being claimed")
            except (BlockingIOError, FileNotFoundError):
                os.close(file)
                continue
            self.number, self._path, self._file = number, path, file
            return
        raise OSError(f"none of {_ATTEMPTS} display numbers between {FIRST} and {LAST} is free")

    def release(self) -> None:
        """Give the number back. Safe to call again."""
        if self._file >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = -1
