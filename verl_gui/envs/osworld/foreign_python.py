"""A process of another Python interpreter, and our end of a socket to it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

from verl_gui.envs import processes
from verl_gui.envs.base import EnvFailure

_OURS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


class ForeignPython:
    """Starts the process; its command line ends with the number of its end of the socket.

    What it prints goes to our standard error.

    Args:
        python: the interpreter.
        arguments: of its command line, before the number.
        cwd: working directory.
        variables: set in its environment, which otherwise is ours without what is meant for our Python.

    Raises:
        EnvFailure: ``reset``; it cannot be started.
    """

    def __init__(
        self, python: str, arguments: Sequence[str], *, cwd: str, variables: Mapping[str, str] | None = None
    ) -> None:
        self.socket, theirs = socket.socketpair()
        inherited = {name: value for name, value in os.environ.items() if name not in _OURS}
        try:
            self.process: subprocess.Popen[bytes] = processes.start(
                [python, *arguments, str(theirs.fileno())],
                env={**inherited, **(variables or {})},
                pass_fds=[theirs.fileno()],
                stdout=sys.__stderr__.fileno() if sys.__stderr__ else subprocess.DEVNULL,
                cwd=cwd,
            )
        except OSError as error:
            self.socket.close()
            raise EnvFailure("reset", f"cannot start {python}: {error}") from error
        finally:
            theirs.close()

    def running(self) -> bool:
        """Whether the process has not ended."""
        return self.process.poll() is None

    def kill(self) -> None:
        """End the process at once. Safe to call again."""
        self.socket.close()
        processes.stop(self.process, term_s=0)
