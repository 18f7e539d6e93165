"""A grammar of your own: answers like ``tap 120 45``, ``write hello`` and ``done``.

Import this module in every process that needs it (``VERL_USE_EXTERNAL_MODULES=examples.custom_grammar``), and
choose it with ``gui.rollout.grammar=plain``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from verl_gui.actions import (
    Action,
    ActionFormatError,
    ActionType,
    Grammar,
    Response,
    UnsupportedActionError,
    register_grammar,
)

_TAP = re.compile(r"tap (\d{1,5}) (\d{1,5})")


class PlainGrammar(Grammar):
    """One action an answer, in the last line; what stands before it is the thought."""

    name = "plain"

    def parse(self, text: str, *, frame: tuple[int, int], screen: tuple[int, int]) -> Response:
        thought, _, line = text.strip().rpartition("\n")
        if tap := _TAP.fullmatch(line):
            # From the picture the model saw to the real screen, and never outside of it
            x, y = (
                min(int(at) * real / seen, real - 1)
                for at, real, seen in zip(tap.groups(), screen, frame, strict=True)
            )
            return Response(thought, [Action(ActionType.CLICK, x=x, y=y)], text)
        if line.startswith("write "):
            return Response(thought, [Action(ActionType.TYPE, text=line.removeprefix("write "))], text)
        if line == "done":
            return Response(thought, [Action(ActionType.FINISHED)], text)
        raise ActionFormatError("the last line is neither `tap X Y`, `write TEXT` nor `done`", text)

    def format(
        self,
        actions: Sequence[Action],
        *,
        thought: str = "",
        frame: tuple[int, int],
        screen: tuple[int, int],
    ) -> str:
        if len(actions) != 1:
            raise UnsupportedActionError("an answer has exactly one action")
        action, before = actions[0], f"{thought}\n" if thought else ""
        if action.type is ActionType.CLICK and action.x is not None and action.y is not None:
            x, y = (
                round(at * seen / real)
                for at, real, seen in zip((action.x, action.y), screen, frame, strict=True)
            )
            return f"{before}tap {x} {y}"
        if action.type is ActionType.TYPE and action.text and "\n" not in action.text:
            return f"{before}write {action.text}"
        if action.type is ActionType.FINISHED:
            return f"{before}done"
        raise UnsupportedActionError(f"no words for {action.type.value}")

    def system_prompt(self, language: str = "en", *, frame: tuple[int, int] | None = None) -> str:
        return "Look at the screen and end your answer with one line: `tap X Y`, `write TEXT` or `done`."


register_grammar(PlainGrammar())
