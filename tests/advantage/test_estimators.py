"""What the estimators give; the expected numbers are worked out by hand or come from verl itself."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from verl_gui.advantage import AdvantageError, arpo_advantage, arpo_batch_std_advantage

CASES = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "cases.jsonl").read_text(encoding="utf-8").splitlines()
]
GRPO_CASES = [case for case in CASES if case["kind"] in ("grpo", "grpo_should_be_zero")]
BOTH = pytest.mark.parametrize("estimator", [arpo_advantage, arpo_batch_std_advantage])


def rows(rewards, *, tokens=3, dtype=torch.float32):
    """Outcome rewards on the last token, every token sampled."""
    levels = torch.zeros(len(rewards), tokens, dtype=dtype)
    levels[:, -1] = torch.tensor(rewards, dtype=dtype)
    return levels, torch.ones(len(rewards), tokens)


def names(*groups):
    return np.array(groups, dtype=object)


def by_row(estimator, rewards, groups, **kwargs):
    levels, mask = rows(rewards)
    advantages, returns = estimator(levels, mask, names(*groups), **kwargs)
    assert torch.equal(advantages, returns)
    assert torch.equal(advantages, advantages[:, :1].expand_as(advantages))
    return advantages[:, 0].tolist()


@pytest.mark.parametrize("case", GRPO_CASES, ids=[case["id"] for case in GRPO_CASES])
def test_shared_cases(case):
    rewards = case["rewards"]
    got = by_row(
        arpo_advantage, rewards, "g" * len(rewards), config={"norm_adv_by_std_in_grpo": case["norm_std"]}
    )
    if len(rewards) == 1 or max(rewards) == min(rewards) or case["kind"] == "grpo_should_be_zero":
        assert got == [0.0] * len(rewards)  # where verl gives a group of one its raw reward
    else:
        assert got == pytest.approx(case["adv"], abs=case["tol"])


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_equals_verls_grpo_on_ordinary_groups(seed, norm):
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    generator = torch.Generator().manual_seed(seed)
    levels = torch.randn(40, 7, generator=generator)
    mask = (torch.rand(40, 7, generator=generator) < 0.6).float()
    mask[:, 0] = 1
    index = names(*(f"uid_{i}" for i in torch.randint(0, 5, (40,), generator=generator).tolist()))
    expected, _ = compute_grpo_outcome_advantage(levels.clone(), mask, index, norm_adv_by_std_in_grpo=norm)
    config = AlgoConfig(adv_estimator="arpo", norm_adv_by_std_in_grpo=norm)
    got, _ = arpo_advantage(levels, mask, index, config=config)
    torch.testing.assert_close(got, expected, rtol=2e-6, atol=1e-6)
    assert got.dtype == expected.dtype


@BOTH
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -0.5, 1 / 3, 0.7, 1e-8, 1e6])
@pytest.mark.parametrize("size", [2, 3, 7, 8, 16])
def test_equal_rewards_are_worth_exactly_zero(estimator, value, size):
    others = by_row(estimator, [value] * size + [1.0, 0.0], ["equal"] * size + ["other"] * 2)
    assert others[:size] == [0.0] * size
    assert others[-2] > 0 > others[-1]


@BOTH
def test_rewards_that_differ_by_rounding_are_equal(estimator):
    levels = torch.tensor([[0.1, 0.2, 0.0], [0.0, 0.0, 0.3], [0.7, -0.5, 0.1], [0.15, 0.0, 0.15]])
    assert len(set(levels.sum(1).tolist())) > 1
    assert not estimator(levels, torch.ones(4, 3), names(*"gggg"))[0].any()


@BOTH
def test_a_small_difference_is_a_difference(estimator):
    got = by_row(estimator, [1.0, 1.0, 1.0, 0.999], "gggg")
    assert got[0] > 0 > got[3]


@BOTH
def test_a_row_without_comparison_is_worth_zero(estimator):
    got = by_row(estimator, [1.0, 1.0, 0.0], ["alone", "pair", "pair"])
    assert got[0] == 0.0 and got[1] > 0 > got[2]


@BOTH
@pytest.mark.parametrize("norm", [True, False])
def test_rows_without_sampled_tokens_and_single_rows_move_nothing(estimator, norm):
    """The same numbers with padding, rejected and single rows in the batch, whatever they hold."""
    rewards, groups = [1.0, 0.0, 0.0, 0.5, 0.0, 0.25], list("aaabbb")
    plain = by_row(estimator, rewards, groups, norm_adv_by_std_in_grpo=norm)
    levels, mask = rows([*rewards, 9.0, -7.0, float("nan"), 5.0])
    mask[6:9] = 0
    got, _ = estimator(levels, mask, names(*groups, "a", "b", "pad", "alone"), norm_adv_by_std_in_grpo=norm)
    assert got[:6, 0].tolist() == plain
    assert not got[6:].any()


@BOTH
def test_one_valid_row_left_in_a_group_is_worth_zero(estimator):
    levels, mask = rows([1.0, 0.0, 0.0, 1.0])
    mask[1:3] = 0
    got, _ = estimator(levels, mask, names(*"aaab"))
    assert not got.any()


@BOTH
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_rewards_that_are_no_numbers_are_refused(estimator, value):
    levels, mask = rows([1.0, value, 0.0])
    with pytest.raises(AdvantageError, match=r"row 1 \(group 'b'\).*(nan|inf).*1 of 3"):
        estimator(levels, mask, names(*"abb"))


@BOTH
def test_shapes_that_do_not_fit_are_refused(estimator):
    levels, mask = rows([1.0, 0.0])
    with pytest.raises(AdvantageError, match="2 rows of rewards but 3 group names"):
        estimator(levels, mask, names(*"aaa"))
    with pytest.raises(AdvantageError, match=r"\(2, 3\).*\(2, 2\)"):
        estimator(levels, mask[:, :2], names(*"aa"))


@BOTH
def test_only_sampled_tokens_get_an_advantage(estimator):
    levels, _ = rows([1.0, 0.0])
    mask = torch.tensor([[1, 0, 1], [0, 1, 0]])
    got, _ = estimator(levels, mask, names(*"aa"))
    assert torch.equal(got != 0, mask != 0)
    assert torch.equal(estimator(levels, mask.bool(), names(*"aa"))[0], got)


@BOTH
def test_an_injected_success_is_an_ordinary_member(estimator):
    before = by_row(estimator, [0.0] * 8, "g" * 8)
    after = by_row(estimator, [0.0, 0.0, 1.0, *[0.0] * 5], "g" * 8)
    assert before == [0.0] * 8
    assert after[2] == pytest.approx(2.474867, abs=1e-5)
    assert after[0] == pytest.approx(-0.353552, abs=1e-5)


def test_the_batch_deviation_weighs_groups_alike():
    """Two groups: {1, 0, 0, 0} and {1, 1, 0, 0}; the scores of all eight have the deviation sqrt(15/56)."""
    rewards = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]
    got = by_row(arpo_batch_std_advantage, rewards, "aaaabbbb")
    std = math.sqrt(15 / 56)
    assert got == pytest.approx(
        [0.75 / std, *[-0.25 / std] * 3, *[0.5 / std] * 2, *[-0.5 / std] * 2], abs=1e-5
    )
    own = by_row(arpo_advantage, rewards, "aaaabbbb")
    assert own[0] / own[4] == pytest.approx(1.5 * math.sqrt(4 / 3), abs=1e-4)
    plain = {"norm_adv_by_std_in_grpo": False}
    assert by_row(arpo_batch_std_advantage, rewards, "aaaabbbb", config=plain) == by_row(
        arpo_advantage, rewards, "aaaabbbb", config=plain
    )


@BOTH
def test_the_input_is_left_alone_and_precision_is_kept(estimator):
    for dtype, expected in ((torch.float64, torch.float64), (torch.bfloat16, torch.bfloat16)):
        levels, mask = rows([1.0, 0.0], dtype=dtype)
        copy = levels.clone()
        assert estimator(levels, mask, names(*"aa"))[0].dtype == expected
        assert torch.equal(levels, copy)
    integers = torch.tensor([[0, 1], [0, 0]])
    assert estimator(integers, torch.ones(2, 2), names(*"aa"))[0].dtype == torch.float32


@BOTH
def test_an_empty_batch_stays_empty(estimator):
    got, _ = estimator(torch.zeros(0, 4), torch.zeros(0, 4), names())
    assert got.shape == (0, 4)


def test_verl_finds_the_estimators_by_name():
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    assert get_adv_estimator_fn("arpo") is arpo_advantage
    assert get_adv_estimator_fn("arpo_batch_std") is arpo_batch_std_advantage
