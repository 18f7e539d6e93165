"""Episodes that outgrow a limit end or go on in a new sequence: nothing raises, pads keep their pictures."""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_agent_loop import CLICK, ScriptedEnv, play, processor, sampled  # noqa: F401 (processor: a fixture)

from verl_gui.rollout.sequence import LengthLimits

LARGE = {"min_pixels": 224 * 336, "max_pixels": 224 * 336}  # 96 tokens a screenshot instead of 6


@pytest.fixture
def limited(processor, monkeypatch):  # noqa: F811
    """Plays an episode under limits; returns its outputs and what the model was asked."""

    def run(answers, *, prompt=400, response=400, model=None, turns=4, **rollout):
        limits = LengthLimits(prompt, response, min(model or prompt + response, prompt + response))
        monkeypatch.setattr(LengthLimits, "of_rollout", classmethod(lambda cls, _: limits))
        env = ScriptedEnv(turns=turns, score=0.0)
        outputs, model_ = play(
            processor, env, answers, monkeypatch=monkeypatch, **{"history_images": 4, **rollout}
        )
        for output in outputs:
            holds(output, processor, limits, picture=96 if "min_pixels" in rollout else 6)
        return outputs, model_.asked

    return run


def holds(output, processor, limits, picture):  # noqa: F811
    """What training relies on."""
    pad = processor.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    ids = output.prompt_ids + output.response_ids
    runs = [len(list(run)) for is_pad, run in itertools.groupby(ids, lambda token: token == pad) if is_pad]
    assert runs == [picture] * len(output.multi_modal_data["images"])
    assert len(output.response_ids) == len(output.response_mask) == len(output.response_logprobs)
    assert pad not in sampled(output)
    assert len(output.prompt_ids) <= limits.prompt and len(output.response_ids) <= limits.response
    assert len(ids) <= limits.model
    assert processor.tokenizer.decode(ids).count("<|im_start|>system") == 1


def answer_tokens(processor):  # noqa: F811
    return len(processor.tokenizer(CLICK, add_special_tokens=False).input_ids) + 1


def test_a_full_response_ends_the_episode(limited, processor):  # noqa: F811
    (output,), asked = limited([CLICK] * 4, response=answer_tokens(processor) + 10)
    assert len(asked) == 1 and sum(output.response_mask) == answer_tokens(processor)


def test_a_full_response_goes_on_in_a_new_sequence(limited, processor):  # noqa: F811
    _, asked = limited([CLICK] * 2, turns=2)
    two_answers = len(asked[1][0]) - len(asked[0][0]) + answer_tokens(processor)
    outputs, asked = limited([CLICK] * 4, response=two_answers + 1, when_full="window")
    assert len(asked) == 4
    assert [sum(output.response_mask) // answer_tokens(processor) for output in outputs] == [2, 2]
    assert [len(output.multi_modal_data["images"]) for output in outputs] == [2, 4]
    assert outputs[1].prompt_ids == asked[2][0]


@pytest.mark.parametrize("limit", ["prompt", "model"])
def test_a_window_shrinks_until_it_fits(limited, processor, limit):  # noqa: F811
    options = {"response": answer_tokens(processor) + 4, "when_full": "window", **LARGE}
    wide, asked = limited([CLICK] * 4, prompt=999, **options)
    assert [len(images) for _, images, _ in asked] == [1, 2, 3, 4]
    length = len(wide[3].prompt_ids)
    bounds = {"prompt": length - 1} if limit == "prompt" else {"prompt": 999, "model": length + 1}
    narrow, asked = limited([CLICK] * 4, **options, **bounds)
    assert [len(images) for _, images, _ in asked] == [1, 2, 3, 3]
    last = [outputs[3].multi_modal_data["images"][-1].tobytes() for outputs in (wide, narrow)]
    assert last[0] == last[1]


def test_a_prompt_that_cannot_fit_leaves_no_row(limited, caplog):
    outputs, asked = limited([CLICK] * 4, prompt=10)
    assert outputs == [] and asked == []
    assert "a prompt with a single screenshot has" in caplog.text


def test_an_engine_that_answers_too_long_is_cut(limited, processor):  # noqa: F811
    words = processor.tokenizer("Thought: b " * 30, add_special_tokens=False).input_ids
    (output,), asked = limited([words], response=20, turns=1)
    assert asked[0][2]["max_tokens"] == 19 and output.response_ids == words[:20]


WORDS = ("click", "words", "pad", "start", "nothing", "cut")


@given(
    script=st.lists(st.sampled_from(WORDS), min_size=4, max_size=4),
    prompt=st.integers(20, 150),
    response=st.integers(2, 120),
    model=st.integers(30, 200),
    when_full=st.sampled_from(["end", "window"]),
    history_images=st.integers(1, 4),
)
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_nothing_that_a_policy_does_under_any_limits_raises(limited, processor, script, **limits):  # noqa: F811
    tokenizer = processor.tokenizer
    words = tokenizer("Thought: b", add_special_tokens=False).input_ids
    pad, start = (tokenizer.convert_tokens_to_ids(t) for t in ("<|image_pad|>", "<|vision_start|>"))
    say = {
        "click": CLICK,
        "words": "I do not know",
        "pad": [*words, pad, pad, *words],
        "start": [start, pad],
        "nothing": [],
        "cut": words,
    }
    limited([say[word] for word in script], **limits)
