"""The grammar in the documentation works, and is as short as promised."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from verl_gui.actions import Action, ActionFormatError, ActionType, format_actions, parse

DOCS = Path(__file__).parents[2] / "docs" / "actions.md"


def test_the_example_grammar() -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    (example,) = [block for block in blocks if "register_grammar(" in block]
    assert len(example.splitlines()) < 60
    exec(compile(example, str(DOCS), "exec"), {"__name__": "example"})
    size = {"frame": (100, 100), "screen": (200, 100)}
    for action in (Action(ActionType.CLICK, x=20, y=30), Action(ActionType.FINISHED)):
        assert parse(format_actions([action], grammar="tap", **size), grammar="tap", **size).actions == [
            action
        ]
    with pytest.raises(ActionFormatError):
        parse("tap 500 5", grammar="tap", **size)
