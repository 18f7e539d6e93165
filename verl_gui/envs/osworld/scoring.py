"""Scores from OSWorld's own evaluators, which run in a process with OSWorld's own packages."""

from __future__ import annotations

import json
import socket
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from verl_gui.envs.base import EnvFailure, FailureKind
from verl_gui.envs.osworld.foreign_python import ForeignPython
from verl_gui.tasks.task import Task, TaskFormatError

_START_TIMEOUT_S = 180.0  # it imports a few hundred packages
_MAX_LINE = 1 << 20


class OsworldScorer:
    """The scoring process, started at its first use and kept.

    Args:
        python: interpreter of an environment with ``desktop_env``.
        cache: directory for the evaluators' files.
        timeout_s: longest evaluation; OSWorld waits 15 s for a file that is not there.
    """

    def __init__(self, python: str, cache: Path, timeout_s: float) -> None:
        self._python, self._cache, self._timeout_s = python, cache, timeout_s
        self._process: ForeignPython | None = None

    def check(self, task: Task, guest: dict[str, Any]) -> None:
        """Refuse a task whose evaluator this version of OSWorld does not have.

        Raises:
            TaskFormatError: it says why.
            EnvFailure: the process does not start.
        """
        answer = self._ask(task, guest, "", only_check=True)
        if "error" in answer:
            raise TaskFormatError(task.id, "evaluator", f"OSWorld cannot score it: {answer['error']}")

    def score(self, task: Task, guest: dict[str, Any], last_action: str) -> float:
        """OSWorld's score of the guest as it is.

        Raises:
            EnvFailure: ``evaluate``, ``timeout`` or ``dead``.
        """
        answer = self._ask(task, guest, last_action, only_check=False)
        score = answer.get("score")
        if not isinstance(score, int | float) or not 0.0 <= score <= 1.0:
            raise EnvFailure("evaluate", f"OSWorld's evaluator gave {answer.get('error', score)!r}")
        return float(score)

    def close(self) -> None:
        """End the process. Safe to call again."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    # -- inside ---------------------------------------------------------------------------------------

    def _ask(
        self, task: Task, guest: dict[str, Any], last_action: str, *, only_check: bool
    ) -> dict[str, Any]:
        process = self._start()
        self._cache.mkdir(parents=True, exist_ok=True)
        request = {
            **guest,
            "task": task.to_dict(),
            "last_action": last_action,
            "only_check": only_check,
            "cache": str(self._cache),
        }
        try:
            process.socket.sendall(json.dumps(request).encode() + b"\n")
            return _line(process.socket, self._timeout_s)
        except (OSError, EOFError, ValueError) as error:
            self.close()
            kind: FailureKind = "timeout" if isinstance(error, TimeoutError) else "dead"
            raise EnvFailure(kind, f"OSWorld's scoring process: {error}") from error

    def _start(self) -> ForeignPython:
        if self._process is not None and self._process.running():
            return self._process
        self.close()
        script = str(Path(__file__).with_name("scorer.py"))
        self._process = ForeignPython(self._python, [script], cwd=tempfile.gettempdir())
        try:
            _line(self._process.socket, _START_TIMEOUT_S)
        except (OSError, EOFError, ValueError) as error:
            self.close()
            why = f"OSWorld's evaluators do not start in {self._python}: {error}; see docs/osworld.md"
            raise EnvFailure("reset", why) from error
        return self._process


def _line(connection: socket.socket, timeout_s: float) -> dict[str, Any]:
    """The next line, before the deadline."""
    deadline, data = time.monotonic() + timeout_s, b""
    while not data.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or len(data) > _MAX_LINE:
            raise TimeoutError(f"no answer in {timeout_s:g} s")
        connection.settimeout(left)
        chunk = connection.recv(1 << 16)
        if not chunk:
            raise EOFError("it has ended")
        data += chunk
    return dict(json.loads(data))


def guest_facts(
    url: str, screen: tuple[int, int], password: str, *, chromium_port: int, vlc_port: int
) -> dict[str, Any]:
    """What the scoring process must know of a guest."""
    parts = urlsplit(url)
    return {
        "host": parts.hostname,
        "port": parts.port or 80,
        "chromium_port": chromium_port,
        "vlc_port": vlc_port,
        "screen": list(screen),
        "password": password,
    }
