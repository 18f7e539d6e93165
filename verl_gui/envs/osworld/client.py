"""OSWorld's guest interface, with a deadline on every call and a typed failure for everything else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from verl_gui.envs.base import EnvFailure, FailureKind
from verl_gui.envs.remote.http import HttpAnswer, HttpCallError, call
from verl_gui.envs.worker import check_screenshot

SCREENSHOT_TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 125.0  # the guest itself stops commands after 120
_JSON = {"Content-Type": "application/json"}

Command = str | Sequence[str]


@dataclass(frozen=True)
class CommandResult:
    """How a command in the guest ended."""

    code: int
    output: str
    error: str


class GuestClient:
    """Calls a guest at ``url``.

    Every method raises :class:`EnvFailure`: ``timeout``, ``dead`` when nobody is there, ``screenshot`` for
    what is no picture, and the given kind for every other answer than the expected one.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def screenshot(self, screen: tuple[int, int]) -> bytes:
        """The whole screen as PNG bytes, complete and of the announced size."""
        answer = self._call("GET", "/screenshot", "screenshot", SCREENSHOT_TIMEOUT_S)
        if answer.status != 200:
            raise EnvFailure("screenshot", f"{self.url}/screenshot: {answer.excerpt()}")
        check_screenshot(answer.body, screen)
        return answer.body

    def execute(
        self,
        command: Command,
        *,
        kind: FailureKind,
        shell: bool = False,
        timeout_s: float = COMMAND_TIMEOUT_S,
        path: str = "/execute",
    ) -> CommandResult:
        """Run a command to its end."""
        words = command if isinstance(command, str) else list(command)
        found = self._json(path, {"command": words, "shell": shell}, kind, timeout_s)
        code, output, error = (found.get(name) for name in ("returncode", "output", "error"))
        if not isinstance(code, int) or not isinstance(output, str):
            raise EnvFailure(kind, f"{self.url}{path}: expected the result of a command, got {found!r:.300}")
        return CommandResult(code, output, error if isinstance(error, str) else "")

    def post(
        self, path: str, body: Mapping[str, Any], *, kind: FailureKind, timeout_s: float = COMMAND_TIMEOUT_S
    ) -> bytes:
        """Any other request with a JSON body; the answer's body if the guest did it."""
        data = json.dumps(body).encode()
        return self._done(self._call("POST", path, kind, timeout_s, data=data, headers=_JSON), path, kind)

    def upload(self, path: str, content: bytes, *, kind: FailureKind) -> None:
        """Write a file in the guest."""
        form = aiohttp.FormData()
        form.add_field("file_path", path)
        form.add_field("file_data", content, filename=path.rpartition("/")[2])
        answer = self._call("POST", "/setup/upload", kind, COMMAND_TIMEOUT_S, data=form)
        self._done(answer, "/setup/upload", kind)

    # -- inside ---------------------------------------------------------------------------------------

    def _json(
        self, path: str, body: Mapping[str, Any], kind: FailureKind, timeout_s: float
    ) -> dict[str, Any]:
        answer = self.post(path, body, kind=kind, timeout_s=timeout_s)
        try:
            found = json.loads(answer)
        except ValueError as error:
            raise EnvFailure(kind, f"{self.url}{path}: no JSON: {answer[:100]!r}") from error
        if not isinstance(found, dict):
            raise EnvFailure(kind, f"{self.url}{path}: expected an object, got {found!r:.200}")
        return found

    def _call(
        self, method: str, path: str, kind: FailureKind, timeout_s: float, **options: Any
    ) -> HttpAnswer:
        try:
            return call(method, self.url + path, timeout_s=timeout_s, **options)
        except HttpCallError as error:
            kinds: dict[str, FailureKind] = {"timeout": "timeout", "unreachable": "dead", "broken": kind}
            raise EnvFailure(kinds[error.fault], str(error)) from error

    def _done(self, answer: HttpAnswer, path: str, kind: FailureKind) -> bytes:
        if answer.status != 200:
            raise EnvFailure(kind, f"{self.url}{path}: {answer.excerpt()}")
        return answer.body
