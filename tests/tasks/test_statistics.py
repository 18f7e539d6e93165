import copy
import json

import pytest

from verl_gui.tasks.statistics import RECENT, TaskStats, take_rows


def row(task_id, success, steps):
    return {"task_id": task_id, "steps": steps, "reward_extra_info": {"acc": float(success)}}


def test_counts_of_a_task():
    stats = TaskStats()
    stats.ended("t", [(True, 4), (False, 15), (True, 6)], step=3)
    record = stats["t"]
    assert (record.attempts, record.successes, record.longest_success) == (3, 2, 6)
    assert record.mean_success_length == 5.0 and record.rate == pytest.approx(2 / 3)
    assert (record.last_step, stats.step) == (3, 3)


def test_a_task_that_was_never_run():
    record = TaskStats()["t"]
    assert record.rate is None and record.mean_success_length is None and record.last_step == -1


def test_failures_in_a_row_end_with_any_success_of_a_group():
    stats = TaskStats()
    stats.ended("t", [(False, 9)] * 3, step=1)
    stats.ended("t", [(False, 9)] * 2, step=2)
    assert stats["t"].failures_in_a_row == 5
    stats.ended("t", [(True, 9), (False, 9)], step=3)
    assert stats["t"].failures_in_a_row == 0


def test_the_rate_forgets_old_attempts():
    stats = TaskStats()
    stats.ended("t", [(False, 1)] * 100, step=1)
    stats.ended("t", [(True, 1)] * RECENT, step=2)
    assert stats["t"].rate == 1.0 and stats["t"].attempts == 100 + RECENT


def test_what_did_not_come_back_was_invalid_and_is_no_failure():
    stats = TaskStats()
    stats.started("good", 2)
    stats.started("broken", 4)
    metrics = take_rows(stats, [row("good", True, 2), row("good", False, 3)], step=1, all_back=True)
    assert stats["broken"].invalid == 4 and stats["broken"].attempts == 0
    assert stats["broken"].failures_in_a_row == 0 and stats["broken"].rate is None
    assert stats["good"].invalid == 0
    assert metrics["tasks/invalid_share"] == pytest.approx(4 / 6)


def test_what_still_runs_is_not_yet_invalid():
    stats = TaskStats()
    stats.started("t", 4)
    take_rows(stats, [row("t", True, 2)], step=1, all_back=False)
    assert stats["t"].running == 3 and stats["t"].invalid == 0
    take_rows(stats, [row("t", False, 2)] * 3, step=2, all_back=True)
    assert stats["t"].running == 0 and stats["t"].invalid == 0


def test_metrics():
    stats = TaskStats()
    assert stats.metrics() == {}
    stats.ended("always", [(True, 1)] * 4, step=1)
    stats.ended("never", [(False, 1)] * 4, step=1)
    stats.ended("half", [(True, 1), (False, 1)], step=1)
    metrics = stats.metrics()
    assert metrics["tasks/seen"] == 3 and metrics["tasks/solved_once"] == 2
    assert metrics["tasks/always_solved"] == metrics["tasks/never_solved_recently"] == 1
    assert metrics["tasks/recent_rate"] == pytest.approx(0.5)


def test_the_state_is_plain_and_goes_on():
    stats = TaskStats()
    stats.started("t", 5)
    stats.ended("t", [(True, 4), (False, 15)], step=7)
    state = json.loads(json.dumps(stats.state_dict()))
    again = TaskStats()
    again.ended("old", [(True, 1)], step=1)
    again.load_state_dict(state)
    assert again.state_dict() == state and len(again) == 1 and again.step == 7
    assert again["t"].running == 0  # after a restart nothing runs
    before = copy.deepcopy(state)
    again.ended("t", [(True, 1)] * RECENT, step=8)
    assert state == before and len(again["t"].recent) == RECENT
