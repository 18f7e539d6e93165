"""The action space: typed actions, the grammars models write them in, and what executes them.

    response = parse(answer, grammar="uitars", frame=(1932, 1092), screen=(1920, 1080))
    source = to_pyautogui(response.actions)

See docs/actions.md for how it works and how to add a grammar.
"""

from verl_gui.actions import qwen_vl as qwen_vl  # importing a grammar registers it
from verl_gui.actions import uitars as uitars
from verl_gui.actions.errors import (
    ActionFormatError,
    DisplayGoneError,
    ExecutorError,
    UnsupportedActionError,
)
from verl_gui.actions.format_reward import format_reward, step_format_rewards
from verl_gui.actions.grammar import (
    Grammar,
    format_actions,
    get_grammar,
    grammar_names,
    parse,
    register_grammar,
)
from verl_gui.actions.pyautogui_source import to_pyautogui
from verl_gui.actions.types import Action, ActionType, Response

__all__ = [
    "Action",
    "ActionFormatError",
    "ActionType",
    "DisplayGoneError",
    "ExecutorError",
    "Grammar",
    "Response",
    "UnsupportedActionError",
    "format_actions",
    "format_reward",
    "get_grammar",
    "grammar_names",
    "parse",
    "register_grammar",
    "step_format_rewards",
    "to_pyautogui",
]
