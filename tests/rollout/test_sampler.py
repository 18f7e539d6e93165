import pytest

from verl_gui.rollout.sampler import RolloutStalled, StallClock, last_outputs


def test_one_row_an_episode_the_last():
    keys = ["u_0_0", "u_0_1", "u_0_10", "u_0_9", "v_0_0", "u_1_0"]
    assert sorted(last_outputs(keys)) == ["u_0_10", "u_1_0", "v_0_0"]


def test_progress_winds_the_clock():
    clock = StallClock(10)
    for now, state in [(0, "a"), (9, "a"), (11, "b"), (20, "b"), (21, "b")]:
        clock.look(state, now)
    with pytest.raises(RolloutStalled, match=r"12 s \(b\)"):
        clock.look("b", 23)
