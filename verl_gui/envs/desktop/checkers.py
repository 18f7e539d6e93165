"""Checkers of desktop tasks: scores from files, windows and command output, never from pixels.

An evaluator has OSWorld's form: ``func`` (a name, or a list with ``conj`` "and" / "or"), and for each
function a ``result`` (what to look at) and an ``expected`` (``{"type": "rule", "rules": {...}}``):

==================  ============================  ====================================================
``func``            ``result``                    rules
==================  ============================  ====================================================
``file_equals``     ``{"path": ...}``             ``text`` (a final line break more or less does not matter)
``file_contains``   ``{"path": ...}``             ``include``, ``exclude``: lists of strings
``file_exists``     ``{"path": ...}``             ``kind``: ``file`` (default), ``directory`` or ``nothing``
``command_output``  ``{"command": ...}``          ``include``, ``exclude``, or ``equals``
``window_open``     ``{"window_name": ...}``      ``open``: true (default) or false
``infeasible``      –                             – (solved by the action ``FAIL`` alone)
==================  ============================  ====================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from verl_gui.envs.desktop.guest import Guest, GuestFileError
from verl_gui.envs.desktop.setup_steps import text_of, words_of
from verl_gui.envs.desktop.windows import WindowManager
from verl_gui.tasks.task import Task, TaskFormatError

_COMMAND_TIMEOUT_S = 15.0

Facts = Mapping[str, Any]
Checker = Callable[[Guest, WindowManager, Facts, Facts], bool]


def _text(guest: Guest, path: str) -> str | None:
    try:
        return guest.read_file(path).decode(errors="replace")
    except GuestFileError:  # what the agent left there is not what was asked for
        return None


def _matches(text: str, rules: Mapping[str, Any]) -> bool:
    included = all(part in text for part in rules.get("include", ()))
    return included and not any(part in text for part in rules.get("exclude", ()))


def _file_equals(guest: Guest, windows: WindowManager, result: Facts, rules: Facts) -> bool:
    text = _text(guest, text_of(result, "path", "evaluator.result"))
    wanted = text_of(rules, "text", "evaluator.expected.rules")
    return text is not None and text.removesuffix("\n") == wanted.removesuffix("\n")


def _file_contains(guest: Guest, windows: WindowManager, result: Facts, rules: Facts) -> bool:
    text = _text(guest, text_of(result, "path", "evaluator.result"))
    return text is not None and _matches(text, rules)


def _file_exists(guest: Guest, windows: WindowManager, result: Facts, rules: Facts) -> bool:
    kind = guest.kind_of(text_of(result, "path", "evaluator.result"))
    return (kind or "nothing") == rules.get("kind", "file")


def _command_output(guest: Guest, windows: WindowManager, result: Facts, rules: Facts) -> bool:
    command = words_of(result.get("command"), "evaluator.result.command")
    answer = guest.run(command, timeout_s=_COMMAND_TIMEOUT_S)
    if "equals" in rules:
        return answer.output.strip() == text_of(rules, "equals", "evaluator.expected.rules").strip()
    return _matches(answer.output, rules)


def _window_open(guest: Guest, windows: WindowManager, result: Facts, rules: Facts) -> bool:
    name = text_of(result, "window_name", "evaluator.result")
    return any(name in window.title for window in windows.windows()) is rules.get("open", True)


CHECKERS: dict[str, Checker] = {
    "file_equals": _file_equals,
    "file_contains": _file_contains,
    "file_exists": _file_exists,
    "command_output": _command_output,
    "window_open": _window_open,
}
"""Function name → checker."""


def check_evaluator(task: Task) -> None:
    """Refuse a task that the desktop cannot score.

    Raises:
        TaskFormatError: naming the function.
    """
    if task.infeasible:
        return
    conj = task.evaluator.get("conj", "and")
    if conj not in ("and", "or"):
        raise TaskFormatError(task.id, "evaluator.conj", f"expected 'and' or 'or', got {conj!r}")
    for name, _, _ in _parts(task):
        if name not in CHECKERS:
            why = f"the desktop cannot check {name!r}; it can {', '.join(CHECKERS)}"
            raise TaskFormatError(task.id, "evaluator.func", why)


def _parts(task: Task) -> list[tuple[str, Facts, Facts]]:
    """(function, result, rules) of each part of the evaluator."""
    evaluator = task.evaluator
    functions, results, expected = (evaluator.get(key) for key in ("func", "result", "expected"))
    if not isinstance(functions, list):
        functions, results, expected = [functions], [results], [expected]
    lists = [[None] * len(functions) if values is None else values for values in (results, expected)]
    if not all(isinstance(values, list) and len(values) == len(functions) for values in lists):
        raise TaskFormatError(task.id, "evaluator", f"{len(functions)} functions need as many results, rules")
    return [
        (name, result or {}, (rule or {}).get("rules", {}))
        for name, result, rule in zip(functions, *lists, strict=True)
    ]


def score(task: Task, guest: Guest, windows: WindowManager, *, gave_up: bool) -> float:
    """Score of the end state: 1.0 or 0.0.

    Args:
        task: the task.
        guest: the sandbox with its files.
        windows: the windows.
        gave_up: whether the last action said that the task cannot be done. That is right for infeasible
            tasks and wrong for all others, whatever the desktop looks like.

    Raises:
        EnvFailure: the desktop broke.
        TaskFormatError: the evaluator is malformed.
    """
    if task.infeasible or gave_up:
        return float(task.infeasible and gave_up)
    verdicts = (CHECKERS[name](guest, windows, result, rules) for name, result, rules in _parts(task))
    return float(any(verdicts) if task.evaluator.get("conj", "and") == "or" else all(verdicts))
