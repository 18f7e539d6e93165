import pytest

from verl_gui.config import RewardConfig
from verl_gui.rollout.reward import episode_reward

CASES = [
    ({"env": 0.0, "malformed": 1}, -0.5),
    ({"env": 1.0, "malformed": 0}, 1.0),
    ({"env": 0.0, "malformed": 0}, 0.0),
    ({"env": 1.0, "malformed": 2}, 0.5),
]


@pytest.mark.parametrize(("case", "expected"), CASES)
def test_score_and_penalty_once(case, expected):
    reward = episode_reward(case["env"], malformed=case["malformed"], answers=3, config=RewardConfig())
    assert reward.total == expected
    assert reward.score == case["env"]


def test_penalty_per_step_is_the_malformed_share():
    config = RewardConfig(format_penalty=-0.6, format_aggregation="per_step")
    assert episode_reward(0.0, malformed=1, answers=3, config=config).total == pytest.approx(-0.2)
    assert episode_reward(0.0, malformed=3, answers=3, config=config).total == pytest.approx(-0.6)


@pytest.mark.parametrize(("score", "malformed"), [(1.5, 0), (-0.1, 0), (float("nan"), 0), (0.5, 4)])
def test_impossible_input_is_refused(score, malformed):
    with pytest.raises(ValueError):
        episode_reward(score, malformed=malformed, answers=3, config=RewardConfig())
