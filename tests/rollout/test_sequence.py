import copy
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_gui.rollout.context import Segment
from verl_gui.rollout.sequence import (
    TURN_TOKENS,
    LengthLimits,
    SequenceError,
    check_sequence,
    pictures_to_drop,
    placeholder_runs,
    truncate,
)

PAD, VIDEO = 8, 9
PLACEHOLDERS = {PAD, VIDEO}
LIMITS = LengthLimits(prompt=100, response=1000, model=1100)
CASES = [
    json.loads(line)
    for line in (Path(__file__).parent / "data/sequence_cases.jsonl").read_text(encoding="utf-8").splitlines()
]


def segment(turns, tokens=4):
    """A prompt with a picture, then ``turns`` answers of three tokens, a picture between two of them."""
    made = Segment([1, 7, *[PAD] * tokens, 2], images=["s0"])
    for turn in range(turns):
        if turn:
            made.append([3, 7, *[PAD] * tokens, 2])
            made.images.append(f"s{turn}")
        made.append([10, 11, 12], sampled_log_probs=[-0.1, -0.2, -0.3])
    return made


def check(made, tokens=4, limits=LIMITS):
    check_sequence(made, placeholders=PLACEHOLDERS, picture_tokens=[tokens] * len(made.images), limits=limits)


def test_placeholder_runs_are_counted_in_order():
    assert placeholder_runs([1, PAD, PAD, 2, VIDEO, 3, PAD], PLACEHOLDERS) == [2, 1, 1]
    assert placeholder_runs([], PLACEHOLDERS) == placeholder_runs([1, 2], PLACEHOLDERS) == []


@given(turns=st.integers(1, 5), tokens=st.integers(1, 5), limit=st.integers(-3, 70))
def test_a_cut_keeps_everything_together(turns, tokens, limit):
    whole, cut = segment(turns, tokens), segment(turns, tokens)
    gone = truncate(cut, limit, placeholders=PLACEHOLDERS)
    assert len(cut.response_ids) <= max(limit, 0)
    assert gone == len(whole.images) - len(cut.images) and cut.images == whole.images[: len(cut.images)]
    for name in ("response_ids", "response_mask", "log_probs"):
        assert getattr(cut, name) == getattr(whole, name)[: len(cut.response_ids)]
    assert not cut.response_mask or cut.response_mask[-1]
    check(cut, tokens)
    # Nothing that fits was given away: the next sampled token would not.
    following = [i for i, sampled in enumerate(whole.response_mask) if sampled and i >= len(cut.response_ids)]
    assert not following or following[0] >= limit


def test_what_fits_is_left_alone_but_for_context_at_the_end():
    made = segment(2)
    made.append([3, 7, PAD, PAD, PAD, PAD, 2])
    made.images.append("s2")
    assert truncate(made, 1000, placeholders=PLACEHOLDERS) == 1
    assert made == segment(2)


BROKEN = {
    "a picture without its placeholders": (lambda s: s.images.append("x"), r"3 pictures .* but \[4, 4\]"),
    "placeholders without their picture": (lambda s: s.images.pop(), r"1 pictures .* but \[4, 4\]"),
    "a picture cut in two": (lambda s: s.prompt_ids.pop(3), r"2 pictures of \[4, 4\] .* but \[3, 4\]"),
    "expanded twice": (lambda s: s.prompt_ids.insert(3, PAD), r"but \[5, 4\]"),
    "a sampled placeholder": (lambda s: s.response_ids.__setitem__(1, PAD), "token 1 .* was sampled"),
    "a mask that is too short": (lambda s: s.response_mask.pop(), "13 response tokens, but 12 mask entries"),
    "log-probabilities too few": (lambda s: s.log_probs.pop(), "12 log-probabilities"),
    "a mask shifted by one": (lambda s: s.response_mask.insert(0, s.response_mask.pop()), "was not sampled"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_does_not_belong_together_is_refused(name):
    made = segment(2)
    check(made)
    breaking, message = BROKEN[name]
    breaking(made)
    with pytest.raises(SequenceError, match=message):
        check(made)


def test_a_sequence_over_a_limit_is_refused():
    for limits in (LengthLimits(6, 99, 99), LengthLimits(99, 12, 99), LengthLimits(99, 99, 19)):
        with pytest.raises(SequenceError, match="7 prompt tokens and 13 response tokens are more than"):
            check(segment(2), limits=limits)
    check(segment(2), limits=LengthLimits(7, 13, 20))


@pytest.mark.parametrize("case", [c for c in CASES if c["kind"] == "mask"], ids=lambda c: c["id"])
def test_the_mask_covers_sampled_tokens_only(case):
    turn, sampled = case["turn"], case["sampled"]
    start = turn.index(sampled[0])
    made = Segment([], images=[])
    made.append(turn[:start])
    made.append(sampled, sampled_log_probs=[-1.0] * len(sampled))
    made.append(turn[start + len(sampled) :])
    assert made.response_ids == turn
    assert made.response_mask == case["expect"] and sum(made.response_mask) == len(sampled)
    assert [bool(log_prob) for log_prob in made.log_probs] == [bool(mask) for mask in case["expect"]]


@given(tokens=st.lists(st.integers(1, 9), min_size=1, max_size=6), excess=st.integers(0, 60))
def test_the_oldest_pictures_go_first_and_the_last_one_stays(tokens, excess):
    dropped = pictures_to_drop(excess, tokens)
    assert 0 <= dropped < len(tokens)
    assert sum(tokens[:dropped]) >= excess or dropped == len(tokens) - 1
    assert dropped == 0 or sum(tokens[: dropped - 1]) < excess


def test_limits_of_the_engine_and_of_training_both_hold():
    rollout = {"prompt_length": 10, "response_length": 20, "max_model_len": 25}
    limits = LengthLimits.of_rollout(SimpleNamespace(**rollout, get=rollout.get))
    assert limits == LengthLimits(10, 20, 25)
    assert (limits.room(10, 5), limits.room(3, 5), limits.room(10, 18)) == (10, 15, -3)
    assert (limits.prompt_excess(10, least_answer=2), limits.prompt_excess(13, least_answer=2)) == (0, 3)
    assert LengthLimits(30, 20, 25).prompt_excess(25, least_answer=2) == 2
    for unset in (None, 99):
        rollout["max_model_len"] = unset
        assert LengthLimits.of_rollout(SimpleNamespace(**rollout, get=rollout.get)).model == 30


@pytest.mark.parametrize("screens", [15, 16])
def test_the_response_that_all_screenshots_need(screens):
    needed = LIMITS.response_for(screens, picture_tokens=2691, answer_tokens=100)
    assert needed == (screens - 1) * (2691 + TURN_TOKENS) + screens * 100


@given(st.data())
@settings(max_examples=50)
def test_checking_changes_nothing(data):
    made = segment(data.draw(st.integers(1, 4)))
    before = copy.deepcopy(made)
    check(made)
    assert made == before
