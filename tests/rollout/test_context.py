import pytest

from verl_gui.rollout.context import Segment, window_messages
from verl_gui.rollout.conversation import LEFT_OUT


def test_sampled_tokens_alone_are_trained_on():
    segment = Segment([1, 2, 3], images=["a"])
    segment.append([10, 11, 12], sampled_log_probs=[-0.1, -0.2, -0.3])  # answer with its stop token
    segment.append([13])  # the template's newline
    segment.append([20, 21])  # next screenshot
    segment.append([30], sampled_log_probs=[-0.4])
    assert segment.ids == [1, 2, 3, 10, 11, 12, 13, 20, 21, 30]
    assert segment.response_mask == [1, 1, 1, 0, 0, 0, 1]
    assert segment.log_probs == [-0.1, -0.2, -0.3, 0.0, 0.0, 0.0, -0.4]


def test_missing_log_probs_are_refused():
    with pytest.raises(ValueError, match="3 sampled tokens but 2"):
        Segment([], images=[]).append([1, 2, 3], sampled_log_probs=[0.0, 0.0])


def images_of(messages):
    return [
        p["image"]
        for m in messages
        if isinstance(m["content"], list)
        for p in m["content"]
        if p["type"] == "image"
    ]


@pytest.mark.parametrize(("turns", "kept"), [(1, ["s0"]), (3, ["s0", "s1", "s2"]), (5, ["s2", "s3", "s4"])])
def test_window_keeps_the_last_screenshots_and_all_answers(turns, kept):
    screenshots = [f"s{i}" for i in range(turns)]
    answers = [f"a{i}" for i in range(turns - 1)]
    messages, images = window_messages("sys", "do it", screenshots, answers, history_images=3)
    assert images == kept == images_of(messages)
    assert [m["content"] for m in messages if m["role"] == "assistant"] == answers
    assert [m["role"] for m in messages] == ["system", "user"] + ["assistant", "user"] * (turns - 1)
    assert messages[1]["content"][0] == {"type": "text", "text": "do it"}
    left_out = sum(
        part.get("text") == LEFT_OUT for m in messages[1:] if m["role"] == "user" for part in m["content"]
    )
    assert left_out == turns - len(kept)


def test_every_screenshot_but_the_last_has_an_answer():
    with pytest.raises(ValueError, match="2 screenshots need 1 answers"):
        window_messages("", "x", ["s0", "s1"], [], history_images=2)
