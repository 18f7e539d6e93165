"""Mutation fuzzer of all grammars: ``python tests/actions/fuzz_parse.py --inputs 200000 --seed 0``.

Takes real answers apart and puts them together wrongly. Every input must become a response, whose actions
make harmless source, or an ActionFormatError that points into the input. Anything else is reported with the
input, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter

from fake_guest import called_modules
from shared_cases import CASES

from verl_gui.actions import Action, ActionFormatError, ActionType, format_actions, parse, to_pyautogui

FRAME, SCREEN = (1932, 1092), (1920, 1080)
GRAMMARS = ("uitars", "uitars_rel", "qwen_vl", "qwen3_vl")
T = ActionType

EXAMPLES = [
    [Action(T.CLICK, x=500, y=300)],
    [Action(T.DRAG, x=1, y=2, end_x=300, end_y=400)],
    [Action(T.SCROLL, x=500, y=300, direction="down", amount=5)],
    [Action(T.TYPE, text='it\'s "a\\b"\n<北京> é')],
    [Action(T.HOTKEY, keys=("ctrl", "shift", "+")), Action(T.PRESS, keys=("enter",))],
    [Action(T.CLICK, x=5, y=3), Action(T.TYPE, text="x\n"), Action(T.WAIT), Action(T.FINISHED)],
]
FRAGMENTS = [
    "'", '"', "\\", "\n", "\r", "\n\n", "(", ")", "（", "）", "[", "]", "{", "}", ",", "，", "=", ":", "：",
    "<", ">", "‘", "’", "“", "”", "```", "Thought: ", "Action: ", "start_box='", "end_box='", "content='",
    "key='", "direction='", "<point>", "</point>", "<bbox>", "</bbox>", "<|box_start|>", "<|box_end|>",
    "<|im_end|>", "<tool_call>", "</tool_call>", '"arguments": {', '"coordinate": [', '"keys": [',
    "\\u0000", "\\ud800", "null", "true", "NaN", "-1", "1e999", "9" * 30, "0.5", "\0", "\x1b", "\ud800",
    "\u202e", "😀", "click(", "type(", "hotkey(", "wait()", "finished(", "__import__('os')",
    "ctrl+", "page down", " " * 50,
]  # fmt: skip


def seeds(grammar: str) -> list[str]:
    """Real answers of one grammar."""
    raw = [case["raw"] for case in CASES if case["kind"] == "parse" and grammar.startswith("uitars")]
    return raw + [
        format_actions(actions, grammar=grammar, frame=FRAME, screen=SCREEN, thought="I do it")
        for actions in EXAMPLES
    ]


def mutate(rng: random.Random, text: str, corpus: list[str]) -> str:
    """``text`` after one to four random edits."""
    for _ in range(rng.randint(1, 4)):
        start = rng.randint(0, len(text))
        end = min(len(text), start + rng.choice((1, 1, 2, 5, 20)))
        kind = rng.randrange(6)
        if kind == 0:
            text = text[:start] + text[end:]
        elif kind == 1:
            text = text[:start] + rng.choice(FRAGMENTS) + text[start:]
        elif kind == 2:
            text = text[:start] + rng.choice(FRAGMENTS) + text[end:]
        elif kind == 3:
            text = text[:end] + text[start:end] * rng.randint(1, 4) + text[end:]
        elif kind == 4:
            other = rng.choice(corpus)
            text = text[:start] + other[rng.randint(0, len(other)) :]
        else:
            text = text[:start] + chr(rng.choice((rng.randrange(128), rng.randrange(0x110000)))) + text[end:]
    return text


def check(text: str, grammar: str) -> str:
    """What became of ``text``; raises AssertionError or anything the parser shouldn't raise."""
    try:
        response = parse(text, grammar=grammar, frame=FRAME, screen=SCREEN)
    except ActionFormatError as error:
        assert error.text == text and text.startswith(error.piece, error.position) and str(error)
        return "format error"
    assert response.actions and response.raw == text
    called_modules(to_pyautogui(response.actions))
    for action in response.actions:
        for value, size in ((action.x, 0), (action.y, 1), (action.end_x, 0), (action.end_y, 1)):
            assert value is None or 0 <= value <= SCREEN[size] - 1
    return "response"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--inputs", type=int, default=200_000)
    options.add_argument("--seed", type=int, default=0)
    arguments = options.parse_args()
    rng = random.Random(arguments.seed)
    by_grammar = {grammar: seeds(grammar) for grammar in GRAMMARS}
    everything = [text for corpus in by_grammar.values() for text in corpus]
    outcomes: Counter[str] = Counter()
    slowest = 0.0
    began = time.perf_counter()
    for _ in range(arguments.inputs):
        grammar = rng.choice(GRAMMARS)
        text = mutate(rng, rng.choice(by_grammar[grammar]), everything)
        start = time.process_time()
        try:
            outcomes[f"{grammar}: {check(text, grammar)}"] += 1
        except Exception as error:
            print(f"{grammar} broke with {error!r} on {text!r}", file=sys.stderr)
            outcomes["broken"] += 1
        slowest = max(slowest, time.process_time() - start)
    report = {
        "inputs": arguments.inputs,
        "seed": arguments.seed,
        "seconds": round(time.perf_counter() - began, 1),
        "slowest_ms": round(slowest * 1000, 2),
        "outcomes": dict(sorted(outcomes.items())),
    }
    print(json.dumps(report, indent=2))
    return 1 if outcomes["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
