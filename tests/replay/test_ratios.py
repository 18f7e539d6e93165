"""How off-policy replayed rows are."""

import math

import pytest
import torch

from verl_gui.replay.ratios import ratio_metrics


def row(now, stored, mask):
    return torch.tensor(now), torch.tensor(stored), torch.tensor(mask)


def test_ratios_are_those_of_sampled_tokens():
    rows = [row([-1.0, -1.0, -9.0], [-1.0, -3.0, -1.0], [1, 1, 0]), row([-2.0], [-1.0], [1])]
    metrics = ratio_metrics(rows, 2.0)
    ratios = [1.0, math.exp(2), math.exp(-1)]
    assert metrics["training/replay/is_ratio_mean"] == pytest.approx(sum(ratios) / 3)
    assert metrics["training/replay/is_ratio_max"] == pytest.approx(math.exp(2))
    assert metrics["training/replay/is_clip_fraction"] == pytest.approx(1 / 3)


def test_without_a_threshold_nothing_is_clipped():
    assert "training/replay/is_clip_fraction" not in ratio_metrics([row([-1.0], [-1.0], [1])], None)


def test_no_sampled_token_gives_no_metric():
    assert ratio_metrics([], 2.0) == {}
    assert ratio_metrics([row([-1.0], [-1.0], [0])], 2.0) == {}


def test_a_far_policy_stays_finite():
    metrics = ratio_metrics([row([0.0], [-1e6], [1])], 2.0)
    assert math.isfinite(metrics["training/replay/is_ratio_max"])
