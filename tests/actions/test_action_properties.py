"""What holds for every action and every answer, however strange."""

from __future__ import annotations

import pytest
from fake_guest import FakeGuest, called_modules
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_cases import CASES
from strategies import HOSTILE, SIZES, actions, texts

from verl_gui.actions import ActionFormatError, ActionType, format_actions, get_grammar, parse, to_pyautogui

GRAMMARS = ("uitars", "uitars_rel", "qwen_vl", "qwen3_vl")
SEEDS = [case["raw"] for case in CASES if case["kind"] == "parse"]


@pytest.mark.parametrize("grammar", GRAMMARS)
@given(frame=SIZES, screen=SIZES, data=st.data())
@settings(max_examples=60, deadline=None)
def test_reading_what_was_written_gives_the_same_actions(grammar, frame, screen, data) -> None:
    frame = get_grammar(grammar).frame or frame
    made = data.draw(st.lists(actions(frame, screen), min_size=1, max_size=4))
    thought = data.draw(st.sampled_from(["", "look", "a\nAction: wait()\nb", "点击 'x'"]))
    written = format_actions(made, grammar=grammar, frame=frame, screen=screen, thought=thought)
    response = parse(written, grammar=grammar, frame=frame, screen=screen)
    assert response.actions == made
    assert response.thought == thought


@given(frame=SIZES, screen=SIZES, data=st.data())
@settings(max_examples=60, deadline=None)
def test_source_calls_three_modules_with_literals_only(frame, screen, data) -> None:
    made = data.draw(st.lists(actions(frame, screen), min_size=1, max_size=4))
    source = to_pyautogui(made)
    called_modules(source)
    for action in made:
        if action.type is ActionType.TYPE:
            assert FakeGuest().run(to_pyautogui([action])).text == action.text


@given(text=st.one_of(st.text(), texts(), st.lists(HOSTILE | st.sampled_from(SEEDS)).map("".join)))
@settings(max_examples=200, deadline=None)
@pytest.mark.parametrize("grammar", GRAMMARS)
def test_any_text_is_a_response_or_a_format_error(grammar, text) -> None:
    try:
        response = parse(text, grammar=grammar, frame=(1932, 1092), screen=(1920, 1080))
    except ActionFormatError as error:
        assert error.text == text
        assert text[error.position : error.position + len(error.piece)] == error.piece
        return
    assert response.actions and response.raw == text
    called_modules(to_pyautogui(response.actions))
    for action in response.actions:
        for value, limit in ((action.x, 1920), (action.y, 1080), (action.end_x, 1920), (action.end_y, 1080)):
            assert value is None or 0 <= value <= limit - 1


@given(thought=st.text())
@settings(deadline=None)
def test_the_thought_never_reaches_the_source(thought) -> None:
    written = format_actions(
        parse("Action: wait()", frame=(28, 28), screen=(28, 28)).actions,
        frame=(28, 28),
        screen=(28, 28),
        thought=thought,
    )
    source = to_pyautogui(parse(written, frame=(28, 28), screen=(28, 28)).actions)
    assert source == to_pyautogui(parse("Action: wait()", frame=(28, 28), screen=(28, 28)).actions)
