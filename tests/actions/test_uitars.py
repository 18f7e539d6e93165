from __future__ import annotations

import pytest

from verl_gui.actions import (
    Action,
    ActionFormatError,
    ActionType,
    UnsupportedActionError,
    format_actions,
    get_grammar,
    parse,
)
from verl_gui.actions.uitars import ACTIONS

FRAME = (1932, 1092)
SCREEN = (1920, 1080)
T = ActionType


def read(call: str) -> list[Action]:
    return parse(f"Thought: t\nAction: {call}", frame=FRAME, screen=SCREEN).actions


def refused(answer: str) -> ActionFormatError:
    with pytest.raises(ActionFormatError) as caught:
        parse(answer, frame=FRAME, screen=SCREEN)
    return caught.value


@pytest.mark.parametrize(
    "box",
    [
        "'(966,546)'",
        '"(966, 546)"',
        "'966 546'",
        "'[966, 546]'",
        "'<point>966 546</point>'",
        "'<point>966, 546</point>'",
        "'<point>(966,546)</point>'",
        "'<|box_start|>(966,546)<|box_end|>'",
        "'<bbox>966 546 966 546</bbox>'",
        "'(966.0,546.0)'",
        "'［966，546］'",
        "‘（966，546）’",
        "“(９６６，５４６)”",
        "' ( 966 , 546 ) '",
    ],
)
def test_spellings_of_a_point(box: str) -> None:
    assert read(f"click(start_box={box})") == [Action(T.CLICK, x=960, y=540)]


@pytest.mark.parametrize(
    "box",
    [
        "''",
        "'()'",
        "'(1)'",
        "'(1,2,3)'",
        "'(1,2,3,4,5)'",
        "'(nan,1)'",
        "'(1e2,1)'",
        "'(0x10,1)'",
        "'(inf,1)'",
        "'(1_0,1)'",
        "'(1²,3)'",
        "'(1,2]'",
        "'(1,2'",
        "'1,2)'",
        "'(1,,2)'",
        "'(1.2.3,4)'",
        "'(1,2) (3,4)'",
        "'__import__(1,2)'",
        "(1,2)",
        "None",
        "'(1933,5)'",
        "'(5,1093)'",
        "'(-1,5)'",
        "'(10,10,2000,20)'",
        "'(99999999999999999999,1)'",
        "'" + ",".join("1" * 10_000) + "'",
    ],
)
def test_not_a_point(box: str) -> None:
    refused(f"Thought: t\nAction: click(start_box={box})")


@pytest.mark.parametrize(
    "tail",
    [
        "click(point='<point>966 546</point>",
        "click(point='<point>966 546</point>'",
        "click(point='<point>966 546</point>)",
        "click(start_box='(966,546)",
        "click(start_box='(966,546)'",
        "click(start_box='<|box_start|>(966,546)<|box_end|>",
        "click(start_box='[966,546]",
    ],
)
def test_whole_numbers_without_their_end_are_read(tail: str) -> None:
    assert read(tail) == [Action(T.CLICK, x=960, y=540)]


@pytest.mark.parametrize(
    "tail",
    [
        "click(start_box='(100,2",
        "click(start_box='(100,200",
        "click(start_box='100,200",
        "click(start_box='<point>100 200",
        "click(start_box='<point>100 200</po",
        "click(start_box='(100,200,300",
        "click(start_box='",
        "click(",
        "drag(start_box='(1,2)', end_box='(3,4",
        "drag(start_box='(1,2)",
        "type(content='abc",
        "type(content='abc'",
        "hotkey(key='ctrl",
        "scroll(start_box='(500,500)', direction='down",
        "wait(",
        "finished(content='ok'",
    ],
)
def test_half_answers_are_refused(tail: str) -> None:
    refused(f"Thought: t\nAction: {tail}")


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (r"'it\'s'", "it's"),
        ("'it's'", "it's"),
        ('"it\'s"', "it's"),
        (r"'say \"hi\"'", 'say "hi"'),
        ("'print('a')'", "print('a')"),
        ("'f(x='y', z=1)'", "f(x='y', z=1)"),
        ("'a, content='b''", "a, content='b'"),
        (r"'a\tb'", "a\tb"),
        (r"'\d+\w'", r"\d+\w"),
        (r"'C:\\new\\table'", r"C:\new\table"),
        (r"'a\\'", "a\\"),
        (r"'\\\n'", "\\\n"),
        ("'a\n\nb'", "a\n\nb"),
        ("'a\r\nb'", "a\nb"),
        (r"'a\r\nb'", "a\nb"),
        ("'（你好，“世界”）'", "（你好，“世界”）"),
        ("'Action: wait()'", "Action: wait()"),
        ("'<|im_end|>'", "<|im_end|>"),
        ("' padded '", " padded "),
    ],
)
def test_typed_text(written: str, text: str) -> None:
    assert read(f"type(content={written})") == [Action(T.TYPE, text=text)]


def test_text_never_swallows_the_next_call() -> None:
    assert [a.type for a in read("type(content='a')\n\ntype(content='b')\nwait()")] == [
        T.TYPE,
        T.TYPE,
        T.WAIT,
    ]
    refused("Thought: t\nAction: type(content='a')\n\nfly(start_box='(1,2)')")


@pytest.mark.parametrize(
    "call",
    [
        "type(content='')",
        r"type(content='a\x00')".replace(r"\x00", "\0"),
        "type(content='\ud800')",
        "type(content='a\x1bb')",
        "type(text='a')",
        "type(content=“a”)",
        "press(key='ctrl c')",
        "press(key='')",
        "hotkey(key='ctrl hyperdrive')",
        "hotkey()",
        "hotkey(key='a b c d e f g h i')",
        "hotkey(key='é')",
        "scroll(start_box='(5,5)', direction='diagonal')",
        "scroll(direction='up')",
        "click()",
        "click(start_box='(1,2)', start_box='(1,2)')",
        "click(start_box='(1,2)', point='(1,2)')",
        "click(start_box='(1,2)', button='left')",
        "click(start_box='(1,2)') # comment",
        "click(start_box='(1,2)'); wait()",
        "click(start_box='(1,2)') wait()",
        "click (start_box='(1,2)'))",
        "long_press(start_box='(1,2)')",
        "os.system('ls')",
        "wait(); import os",
        "wait",
        "()",
        "```",
    ],
)
def test_refused_calls(call: str) -> None:
    refused(f"Thought: t\nAction: {call}")


@pytest.mark.parametrize(
    ("answer", "thought"),
    [
        ("Thought: look\nAction: wait()", "look"),
        ("Thought：看\nAction：wait()", "看"),
        ("Action: wait()", ""),
        ("just words\n  Action: wait()\n\n", "just words"),
        ("```text\nThought: t\nAction: wait()\n```<|im_end|>\n", "t"),
        ("Thought: t\nAction:\n```python\nwait()\n```", "t"),
        ("Thought: the word Action: is inline\nAction: wait()", "the word Action: is inline"),
        ("Thought: a\nAction: click(start_box='(1,2)')\nThought: b\nAction: wait()</s>",
         "a\nAction: click(start_box='(1,2)')\nThought: b"),
    ],
)  # fmt: skip
def test_wrapping_and_thoughts(answer: str, thought: str) -> None:
    response = parse(answer, frame=FRAME, screen=SCREEN)
    assert (response.thought, response.raw) == (thought, answer)
    assert response.actions == [Action(T.WAIT)]


@pytest.mark.parametrize(
    "answer", ["", " ", "Thought: only", "Thought: t\nAction:", "wait()", "Do Action: wait()"]
)
def test_answers_without_an_action(answer: str) -> None:
    refused(answer)


def test_terminal_actions() -> None:
    assert read("finished()") == [Action(T.FINISHED)]
    assert read("finished(content='42')") == [Action(T.FINISHED, text="42")]
    assert read("infeasible()") == [Action(T.FAIL)]
    assert read("call_user()") == [Action(T.CALL_USER)]
    assert all(action.type.is_terminal for action in read("finished()\nfail()\ncall_user()"))


def test_error_says_what_and_where() -> None:
    answer = "Thought: t\nAction: click(start_box='(x1,y1)')"
    error = refused(answer)
    assert error.text == answer
    assert answer[error.position :].startswith(error.piece) and error.piece == "(x1,y1)"
    assert "(x1,y1)" in str(error) and error.reason


def test_error_survives_pickling() -> None:
    import pickle

    error = refused("nothing")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_relative_and_absolute_are_never_mixed() -> None:
    answer = "Thought: t\nAction: click(point='<point>660 1059</point>')"
    assert parse(answer, frame=FRAME, screen=SCREEN).actions[0].x == pytest.approx(655.9, abs=0.01)
    with pytest.raises(ActionFormatError, match="outside"):
        parse(answer, grammar="uitars_rel", screen=SCREEN)


def test_missing_frame_is_the_callers_error() -> None:
    with pytest.raises(ValueError, match="frame"):
        parse("Action: wait()", screen=SCREEN)


def test_what_the_grammar_cannot_say_is_refused() -> None:
    for action in (Action(T.WAIT, seconds=3.0), Action(T.SCROLL, x=1, y=1, direction="up", amount=2),
                   Action(T.DRAG, end_x=1, end_y=1)):  # fmt: skip
        with pytest.raises(UnsupportedActionError):
            format_actions([action], frame=FRAME, screen=SCREEN)
    with pytest.raises(UnsupportedActionError):
        format_actions([], frame=FRAME, screen=SCREEN)


def test_prompt_lists_the_action_table() -> None:
    prompt = get_grammar("uitars").system_prompt("zh")
    for entry in ACTIONS:
        assert (f"\n{entry.names[0]}(" in prompt) == (entry.note is not None)
    assert "Chinese" in prompt
    assert "thousandths" in get_grammar("uitars_rel").system_prompt()


def test_examples_of_the_prompt_are_sentences() -> None:
    lines = [
        line
        for line in get_grammar("uitars").system_prompt().splitlines()
        if line.partition("(")[0].isidentifier()
    ]
    assert len(lines) > 8
    for line in lines:
        call = line.partition("  #")[0].replace("x1,y1", "1,2").replace("x2,y2", "3,4")
        assert read(call)
