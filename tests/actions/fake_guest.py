"""Runs generated pyautogui source without a desktop: checks what it may call and records what it did."""

from __future__ import annotations

import ast
from typing import Any

ALLOWED_MODULES = {"pyautogui", "pyperclip", "time"}


def called_modules(source: str) -> set[str]:
    """Modules whose functions ``source`` calls. Asserts that it does nothing but call them with literals."""
    called = set()
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Import):
            assert {alias.name for alias in statement.names} <= ALLOWED_MODULES
        elif isinstance(statement, ast.Assign):
            assert ast.unparse(statement) == "pyautogui.FAILSAFE = False"
        else:
            assert isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
            function = statement.value.func
            assert isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)
            called.add(function.value.id)
            arguments = [*statement.value.args, *(keyword.value for keyword in statement.value.keywords)]
            for argument in arguments:
                ast.literal_eval(argument)
    assert called <= ALLOWED_MODULES
    return called


class FakeGuest:
    """Records calls as (name, args, kwargs) and the text that reaches the focused field."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.text = ""
        self._clipboard = ""

    def run(self, source: str) -> FakeGuest:
        called_modules(source)
        for statement in ast.parse(source).body:
            if isinstance(statement, ast.Expr):
                self._call(statement.value)
        return self

    def _call(self, call: Any) -> None:
        name = ast.unparse(call.func)
        args = tuple(ast.literal_eval(argument) for argument in call.args)
        kwargs = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
        self.calls.append((name, args, kwargs))
        if name == "pyautogui.write":
            assert args[0].isascii() and "<" not in args[0], "pyautogui can't type this"
            self.text += args[0]
        elif name == "pyautogui.press":
            self.text += {"enter": "\n", "tab": "\t"}.get(args[0], "")
        elif name == "pyperclip.copy":
            self._clipboard = args[0]
        elif name == "pyautogui.hotkey" and args == ("ctrl", "v"):
            self.text += self._clipboard
        elif name == "pyautogui.hotkey" and args == ("shift", ","):
            self.text += "<"
