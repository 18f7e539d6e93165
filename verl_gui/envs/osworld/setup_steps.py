"""Set-up steps of OSWorld's task files, carried out through the guest interface."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from verl_gui.envs.base import EnvFailure
from verl_gui.envs.osworld.client import GuestClient
from verl_gui.envs.remote.http import HttpCallError, call
from verl_gui.tasks.task import Task, TaskFormatError

_DOWNLOAD_TIMEOUT_S = 300.0
_MAX_DOWNLOAD_BYTES = 512 << 20
_MAX_SLEEP_S = 60.0
_UNTIL_TRIES = 100
_OPEN_TIMEOUT_S = 120.0

# What a guest must have installed for a task to make sense.
_PROGRAMS = {
    "chrome": "google-chrome",
    "browser": "google-chrome",
    "gimp": "gimp",
    "thunderbird": "thunderbird",
    "vlc": "vlc",
    "vscode": "code",
    "vs_code": "code",
    "libreoffice": "libreoffice",
    "libreoffice_calc": "libreoffice",
    "libreoffice calc": "libreoffice",
    "libreoffice_impress": "libreoffice",
    "libreoffice_writer": "libreoffice",
}

Parameters = Mapping[str, Any]


class Preparation:
    """Carries out the set-up steps of tasks on one guest.

    Args:
        client: the guest.
        screen: its width and height in pixels.
        password: what its user's password is.
        cache: directory in which downloaded files are kept.
    """

    def __init__(self, client: GuestClient, screen: tuple[int, int], password: str, cache: Path) -> None:
        self._client, self._cache = client, cache
        width, height = screen
        self._places = {
            "{CLIENT_PASSWORD}": password,
            "{SCREEN_WIDTH_HALF}": str(width // 2),
            "{SCREEN_HEIGHT_HALF}": str(height // 2),
            "{SCREEN_WIDTH}": str(width),
            "{SCREEN_HEIGHT}": str(height),
        }

    def prepare(self, task: Task) -> None:
        """Carry out all steps in order.

        Raises:
            TaskFormatError: this guest lacks a program, or a step's parameters are wrong.
            EnvFailure: a step failed; the guest is half prepared and must not be used.
        """
        self.check_programs(task)
        for number, step in enumerate(task.config):
            field = f"config[{number}]"
            try:
                STEPS[step["type"]](self, step.get("parameters", {}))
            except KeyError as missing:
                why = f"the parameter {missing} is missing"
                raise TaskFormatError(task.id, f"{field}.parameters", why) from missing
            except EnvFailure as failure:
                why = f"set-up step {field} ({step['type']}): {failure.message}"
                raise EnvFailure(failure.kind, why) from failure

    def check_programs(self, task: Task) -> None:
        """Refuse a task about a program that this guest lacks.

        Raises:
            TaskFormatError: naming the program.
        """
        wanted = sorted(needed_programs(task))
        if not wanted:
            return
        words = " ".join("'" + word.replace("'", "'\\''") + "'" for word in wanted)
        script = f'for p in {words}; do command -v "$p" >/dev/null || echo "$p"; done'
        missing = self._client.execute(script, shell=True, kind="reset").output.split()
        if missing:
            why = f"this guest has no {', '.join(missing)}; use one that has, or filter the task out"
            raise TaskFormatError(task.id, "related_apps", why)

    # -- steps ----------------------------------------------------------------------------------------

    def _download(self, parameters: Parameters) -> None:
        for file in parameters["files"]:
            self._client.upload(file["path"], self._downloaded(file["url"]), kind="reset")

    def _downloaded(self, url: str) -> bytes:
        kept = self._cache / sha256(url.encode()).hexdigest()
        if kept.exists():
            return kept.read_bytes()
        try:
            answer = call("GET", url, timeout_s=_DOWNLOAD_TIMEOUT_S, max_bytes=_MAX_DOWNLOAD_BYTES)
        except HttpCallError as error:
            raise EnvFailure("reset", f"cannot download: {error}; {kept} may hold it instead") from error
        if answer.status != 200:
            raise EnvFailure("reset", f"cannot download {url}: {answer.excerpt()}")
        self._cache.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(".part")
        part.write_bytes(answer.body)
        part.rename(kept)
        return answer.body

    def _upload_file(self, parameters: Parameters) -> None:
        for file in parameters["files"]:
            try:
                content = Path(file["local_path"]).read_bytes()
            except OSError as error:
                raise EnvFailure("reset", f"cannot read the file to upload: {error}") from error
            self._client.upload(file["path"], content, kind="reset")

    def _launch(self, parameters: Parameters) -> None:
        body = {"command": parameters["command"], "shell": parameters.get("shell", False)}
        self._client.post("/setup/launch", body, kind="reset")

    def _execute(self, parameters: Parameters) -> None:
        command, shell = self._filled(parameters["command"]), bool(parameters.get("shell", False))
        until = parameters.get("until") or {}
        for _ in range(_UNTIL_TRIES):
            result = self._client.execute(command, shell=shell, kind="reset", path="/setup/execute")
            if (
                not until
                or until.get("returncode", object()) == result.code
                or ("stdout" in until and until["stdout"] in result.output)
                or ("stderr" in until and until["stderr"] in result.error)
            ):
                return
            time.sleep(0.3)
        raise EnvFailure("reset", f"{command!r} did not lead to {until!r} in {_UNTIL_TRIES} tries")

    def _execute_with_verification(self, parameters: Parameters) -> None:
        body = {**parameters, "command": self._filled(parameters["command"])}
        self._client.post("/setup/execute_with_verification", body, kind="reset")

    def _open(self, parameters: Parameters) -> None:
        body = {"path": parameters["path"]}
        self._client.post("/setup/open_file", body, kind="reset", timeout_s=_OPEN_TIMEOUT_S)

    def _activate_window(self, parameters: Parameters) -> None:
        self._client.post("/setup/activate_window", _window(parameters), kind="reset")

    def _close_window(self, parameters: Parameters) -> None:
        self._client.post("/setup/close_window", _window(parameters), kind="reset")

    def _change_wallpaper(self, parameters: Parameters) -> None:
        self._client.post("/setup/change_wallpaper", {"path": parameters["path"]}, kind="reset")

    def _sleep(self, parameters: Parameters) -> None:
        time.sleep(min(float(parameters["seconds"]), _MAX_SLEEP_S))

    def _filled(self, command: Any) -> Any:
        """The command with the guest's password and sizes in the places kept for them."""
        if not isinstance(command, str):
            return [self._filled(word) for word in command]
        for place, value in self._places.items():
            command = command.replace(place, value)
        return command


STEPS: dict[str, Callable[[Preparation, Parameters], None]] = {
    "download": Preparation._download,
    "upload_file": Preparation._upload_file,
    "launch": Preparation._launch,
    "execute": Preparation._execute,
    "command": Preparation._execute,
    "execute_with_verification": Preparation._execute_with_verification,
    "open": Preparation._open,
    "activate_window": Preparation._activate_window,
    "close_window": Preparation._close_window,
    "change_wallpaper": Preparation._change_wallpaper,
    "sleep": Preparation._sleep,
}
"""Step type → what it does. Steps that steer a browser or an account (``chrome_open_tabs``, ``googledrive``,
``login`` …) are OSWorld's own: the backend ``osworld-desktop-env`` has them."""


def check_steps(task: Task) -> None:
    """Refuse a task with steps that are not known here, before anything is started.

    Raises:
        TaskFormatError: naming the step.
    """
    for number, step in enumerate(task.config):
        if step["type"] not in STEPS:
            why = (
                f"{step['type']!r} is not among {', '.join(STEPS)}; "
                "the backend osworld-desktop-env leaves it to OSWorld itself"
            )
            raise TaskFormatError(task.id, f"config[{number}].type", why)


def needed_programs(task: Task) -> set[str]:
    """Programs that a guest must have for this task."""
    names = {_PROGRAMS[app] for app in task.related_apps if app in _PROGRAMS}
    for step in task.config:
        command = step.get("parameters", {}).get("command")
        if step["type"] == "launch" and isinstance(command, list) and command:
            names.add(str(command[0]))
    return names


def _window(parameters: Parameters) -> dict[str, Any]:
    options = {name: bool(parameters.get(name, False)) for name in ("strict", "by_class")}
    return {"window_name": parameters["window_name"], **options}
