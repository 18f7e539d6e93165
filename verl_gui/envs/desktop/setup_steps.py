"""Set-up steps of desktop tasks: ``{"type": ..., "parameters": {...}}`` in OSWorld's form.

==================  =========================================================================================
``launch``          ``command`` (list or string), ``window`` (default true: wait until it has opened one)
``execute``         ``command`` (list or string), ``timeout`` seconds; must end with exit code 0
``write_file``      ``path``, ``text``; creates directories
``make_directory``  ``path``
``open``            ``path``: a directory in the file manager, ``.html`` in Chromium, others in the editor
``activate_window`` ``window_name``: part of the title
``sleep``           ``seconds``, at most 10
==================  =========================================================================================
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from verl_gui.envs.base import EnvFailure
from verl_gui.envs.browser import find_chromium
from verl_gui.envs.desktop.guest import Guest
from verl_gui.envs.desktop.windows import Window, WindowManager
from verl_gui.tasks.task import Task, TaskFormatError

_CHROMIUM_OPTIONS = [
    "--no-sandbox",  # a second sandbox cannot be built inside ours
    "--test-type",  # without it, a bar says that there is none
    "--no-first-run",
    "--no-default-browser-check",
    "--password-store=basic",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

WINDOW_TIMEOUT_S = 20.0
_MAX_SLEEP_S = 10.0
_COMMAND_TIMEOUT_S = 60.0


def words_of(command: Any, field: str) -> list[str]:
    """A command as a list of words; a string is split as a shell would.

    Raises:
        TaskFormatError: it is neither.
    """
    if isinstance(command, str):
        command = shlex.split(command)
    if not isinstance(command, list) or not command or not all(isinstance(word, str) for word in command):
        raise TaskFormatError("<task>", field, f"expected a command line, got {command!r}")
    return command


def text_of(parameters: Mapping[str, Any], name: str, field: str) -> str:
    """The string parameter ``name``.

    Raises:
        TaskFormatError: it is missing or no string.
    """
    value = parameters.get(name)
    if not isinstance(value, str):
        raise TaskFormatError("<task>", f"{field}.{name}", f"expected a string, got {value!r}")
    return value


def wait_for_window(windows: WindowManager, wanted: Callable[[Window], bool], what: str) -> Window:
    """Wait until a mapped window is ``wanted``.

    Raises:
        EnvFailure: ``reset``; none came in time.
    """
    deadline = time.monotonic() + WINDOW_TIMEOUT_S
    while True:
        for window in windows.windows():
            if window.mapped and wanted(window):
                return window
        if time.monotonic() > deadline:
            raise EnvFailure("reset", f"{what} opened no window within {WINDOW_TIMEOUT_S:g} s")
        time.sleep(0.005)


def _launch(guest: Guest, windows: WindowManager, parameters: Mapping[str, Any], field: str) -> None:
    command = words_of(parameters.get("command"), f"{field}.command")
    before = {window.id for window in windows.windows()}
    guest.start(command)
    if parameters.get("window", True):
        wait_for_window(windows, lambda window: window.id not in before, command[0])


def _execute(guest: Guest, windows: WindowManager, parameters: Mapping[str, Any], field: str) -> None:
    command = words_of(parameters.get("command"), f"{field}.command")
    timeout_s = float(parameters.get("timeout", _COMMAND_TIMEOUT_S))
    result = guest.run(command, timeout_s=min(timeout_s, _COMMAND_TIMEOUT_S))
    if result.code:
        why = f"set-up command {command} gave exit code {result.code}: {result.error[-300:]}"
        raise EnvFailure("reset", why)


def _write_file(guest: Guest, windows: WindowManager, parameters: Mapping[str, Any], field: str) -> None:
    guest.write_file(text_of(parameters, "path", field), text_of(parameters, "text", field).encode())


def _make_directory(guest: Guest, windows: WindowManager, parameters: Mapping[str, Any], field: str) -> None:
    guest.make_directory(text_of(parameters, "path", field))


def _open(guest: Guest, windows: WindowManager, parameters: Mapping[str, Any], field: str) -> None:
    path = text_of(parameters, "path", field)
    kind = guest.kind_of(path)
    if kind not in ("file", "directory"):
        raise EnvFailure("reset", f"{path!r} is not there to be opened")
    program = ["pcmanfm"] if kind == "directory" else _viewer(PurePosixPath(path).suffix)
    _launch(guest, windows, {"command": [*program, guest.seen_inside(path)]}, field)


def _viewer(suffix: str) -> list[str]:
    """The program, with its options, that shows files whose names end like this."""
    if suffix == ".html":
        return [find_chromium(), *_CHROMIUM_OPTIONS]  # not Debian's script, which reads files that we hide
    return ["mousepad"]


def _activate_window(guest: Guest, windows: WindowManager, parameters: Mapping[str, Any], field: str) -> None:
    name = text_of(parameters, "window_name", field)
    windows.activate(wait_for_window(windows, lambda window: name in window.title, f"{name!r}"))


def _sleep(guest: Guest, windows: WindowManager, parameters: Mapping[str, Any], field: str) -> None:
    time.sleep(min(float(parameters.get("seconds", 1.0)), _MAX_SLEEP_S))


Step = Callable[[Guest, WindowManager, Mapping[str, Any], str], None]

STEPS: dict[str, Step] = {
    "launch": _launch,
    "execute": _execute,
    "write_file": _write_file,
    "make_directory": _make_directory,
    "open": _open,
    "activate_window": _activate_window,
    "sleep": _sleep,
}
"""Step type → what it does."""


def check_steps(task: Task) -> None:
    """Refuse a task with steps that the desktop cannot do.

    Raises:
        TaskFormatError: naming the step.
    """
    for number, step in enumerate(task.config):
        if step["type"] not in STEPS:
            why = f"the desktop cannot do {step['type']!r}; it can {', '.join(STEPS)}"
            raise TaskFormatError(task.id, f"config[{number}].type", why)
        if not isinstance(step.get("parameters", {}), Mapping):
            raise TaskFormatError(task.id, f"config[{number}].parameters", "expected an object")


def prepare(task: Task, guest: Guest, windows: WindowManager) -> None:
    """Carry out the set-up steps of ``task`` in order.

    Raises:
        EnvFailure: a step failed; the desktop is half prepared and must not be used.
        TaskFormatError: a step's parameters are wrong.
    """
    for number, step in enumerate(task.config):
        STEPS[step["type"]](guest, windows, step.get("parameters", {}), f"config[{number}].parameters")
