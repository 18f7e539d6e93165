"""Hypothesis strategies for actions whose points are whole numbers of a frame."""

from __future__ import annotations

from hypothesis import strategies as st

from verl_gui.actions import Action, ActionType
from verl_gui.actions.coordinates import Size, to_screen
from verl_gui.actions.keys import KEYS, MAX_KEYS
from verl_gui.actions.types import DIRECTIONS, POINTER_TYPES, SINGLE_KEY_TYPES, check_text
from verl_gui.actions.uitars import SCROLL_NOTCHES

T = ActionType
SIZES = st.tuples(st.integers(28, 4096), st.integers(28, 4096))
HOSTILE = st.sampled_from([
    "'", '"', "\\", "\n", "')", "\\n", "Action: ", "<tool_call>", "</tool_call>", "<|im_end|>", "```",
    "content='", "(1,2)", "北", "😀", "<", ", ", "{", "}", "\t",
])  # fmt: skip


def _typable(text: str) -> bool:
    try:
        check_text(text)
    except ValueError:
        return False
    return True


def texts() -> st.SearchStrategy[str]:
    pieces = st.lists(st.one_of(HOSTILE, st.text(max_size=5)), min_size=1, max_size=8)
    return pieces.map("".join).filter(lambda text: bool(text) and _typable(text))


@st.composite
def actions(draw: st.DrawFn, frame: Size, screen: Size) -> Action:
    """An action that both families of grammars have words for."""

    def point() -> tuple[float, float]:
        place = draw(st.tuples(st.integers(0, frame[0]), st.integers(0, frame[1])))
        return to_screen(place, frame, screen)

    kind = draw(st.sampled_from([kind for kind in T if kind is not T.CALL_USER]))
    if kind in POINTER_TYPES:
        x, y = point()
        return Action(kind, x=x, y=y)
    if kind is T.DRAG:
        (x, y), (end_x, end_y) = point(), point()
        return Action(kind, x=x, y=y, end_x=end_x, end_y=end_y)
    if kind is T.SCROLL:
        x, y = point()
        return Action(kind, x=x, y=y, direction=draw(st.sampled_from(DIRECTIONS)), amount=SCROLL_NOTCHES)
    if kind is T.TYPE:
        return Action(kind, text=draw(texts()))
    if kind in SINGLE_KEY_TYPES:
        return Action(kind, keys=(draw(st.sampled_from(sorted(KEYS))),))
    if kind is T.HOTKEY:
        keys = draw(st.lists(st.sampled_from(sorted(KEYS)), min_size=2, max_size=MAX_KEYS))
        return Action(kind, keys=tuple(keys))
    if kind is T.FINISHED:
        return Action(kind, text=draw(st.none() | texts()))
    return Action(kind)
