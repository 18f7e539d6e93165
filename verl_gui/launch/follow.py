"""Reading a file while somebody else writes it."""

from __future__ import annotations

import os
import re
from pathlib import Path

_LINE_END = re.compile(rb"[\r\n]+")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def without_colours(text: str) -> str:
    """``text`` without the terminal's escape sequences."""
    return _COLOUR.sub("", text)


class Follower:
    """Yields the complete lines that were added to a file since the last look.

    A carriage return ends a line too, so that progress bars in a log come as lines of their own. The file may
    not exist yet, and may be replaced or emptied meanwhile; reading then starts over.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._inode = 0
        self._offset = 0
        self._rest = b""  # of a line not yet complete

    def lines(self, *, to_the_end: bool = False) -> list[str]:
        """The new lines, without their ends.

        Args:
            to_the_end: also take a last line that was not ended, because nobody will end it any more.
        """
        try:
            with open(self.path, "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._offset:
                    self._inode, self._offset, self._rest = status.st_ino, 0, b""
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            self._inode, self._offset, self._rest, data = 0, 0, b"", b""
        self._offset += len(data)
        *complete, self._rest = _LINE_END.split(self._rest + data)
        if to_the_end and self._rest:
            complete.append(self._rest)
            self._rest = b""
        return [line.decode("utf-8", errors="replace") for line in complete if line]
