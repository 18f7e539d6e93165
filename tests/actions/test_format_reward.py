from __future__ import annotations

import pytest

from verl_gui.actions import format_reward, step_format_rewards


def test_once_charges_the_first_slip_only() -> None:
    assert format_reward([False, True, True]) == -0.5
    assert step_format_rewards([False, True, True]) == [0.0, -0.5, 0.0]


def test_per_step_charges_every_slip() -> None:
    assert format_reward([False, True, True], penalty=-0.25, aggregation="per_step") == -0.5
    assert step_format_rewards([True, False], penalty=-1, aggregation="per_step") == [-1, 0.0]


@pytest.mark.parametrize("aggregation", ["once", "per_step"])
def test_well_formed_costs_nothing(aggregation) -> None:
    assert format_reward([], aggregation=aggregation) == 0
    assert format_reward([False] * 15, aggregation=aggregation) == 0


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="penalty"):
        format_reward([True], penalty=0.5)
    with pytest.raises(ValueError, match="penalty"):
        format_reward([True], penalty=float("nan"))
    with pytest.raises(ValueError, match="aggregation"):
        format_reward([True], aggregation="twice")
