"""How many answers a second one core parses: ``python benchmarks/parse_throughput.py``.

The answers are as long as a real agent's: a thought of a few sentences, then one action.
"""

from __future__ import annotations

import argparse
import json
import time

from verl_gui.actions import Action, ActionType, format_actions, parse, to_pyautogui

FRAME, SCREEN = (1932, 1092), (1920, 1080)
THOUGHT = (
    "The settings window is open and shows the list of fonts. I want a larger size for headings, so the next "
    "thing to change is the field on the right that says 12. "
) * 3
T = ActionType
ACTIONS = [
    Action(T.CLICK, x=960, y=540),
    Action(T.DRAG, x=100, y=200, end_x=300, end_y=400),
    Action(T.SCROLL, x=960, y=540, direction="down", amount=5),
    Action(T.TYPE, text="It's <b>bold</b>, 北京天气\n"),
    Action(T.HOTKEY, keys=("ctrl", "shift", "t")),
    Action(T.FINISHED, text="The heading is 18 points now."),
]


def rate(seconds: float, grammar: str) -> float:
    """Answers a second, over all kinds of action, measured for about ``seconds``."""
    answers = [
        format_actions([action], grammar=grammar, frame=FRAME, screen=SCREEN, thought=THOUGHT)
        for action in ACTIONS
    ]
    count = 0
    start = time.process_time()
    while time.process_time() - start < seconds:
        for answer in answers:
            parse(answer, grammar=grammar, frame=FRAME, screen=SCREEN)
        count += len(answers)
    return count / (time.process_time() - start)


def source_rate(seconds: float) -> float:
    """Lists of one action a second written as pyautogui source."""
    count = 0
    start = time.process_time()
    while time.process_time() - start < seconds:
        for action in ACTIONS:
            to_pyautogui([action])
        count += len(ACTIONS)
    return count / (time.process_time() - start)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=2.0, help="CPU time for each figure")
    seconds = options.parse_args().seconds
    figures = {grammar: round(rate(seconds, grammar)) for grammar in ("uitars", "qwen_vl")}
    print(json.dumps({"answers_per_second": figures, "sources_per_second": round(source_rate(seconds))}))


if __name__ == "__main__":
    main()
