import json
from collections import Counter

import pytest

from verl_gui.tasks.curriculum import Curriculum, rests
from verl_gui.tasks.statistics import TaskRecord


def names(n):
    return [f"t{i}" for i in range(n)]


def one_pool(n, **options):
    return Curriculum(names(n), [(range(n), 1.0)], **options)


def test_every_instance_comes_once_before_one_comes_twice():
    curriculum = one_pool(7, seed=3)
    passes = [[curriculum.draw() for _ in range(7)] for _ in range(3)]
    assert all(sorted(order) == list(range(7)) for order in passes)
    assert passes[0] != passes[1]


def test_the_seed_decides_the_order():
    def first(seed):
        curriculum = one_pool(50, seed=seed)
        return [curriculum.draw() for _ in range(50)]

    assert first(1) == first(1) != first(2)


def test_shares_follow_the_weights_and_not_the_sizes():
    curriculum = Curriculum(names(103), [(range(100), 1.0), (range(100, 103), 3.0)])
    drawn = [curriculum.draw() for _ in range(400)]
    assert sum(i >= 100 for i in drawn) == 300
    for start in range(0, 400, 40):  # all along, not only on average
        assert abs(sum(i >= 100 for i in drawn[start : start + 40]) - 30) <= 1


def test_resting_tasks_are_passed_over_and_come_back():
    resting = {2, 5}
    curriculum = one_pool(6, resting=resting.__contains__)
    assert not resting & {curriculum.draw() for _ in range(40)}
    resting.clear()
    assert set(Counter(curriculum.draw() for _ in range(12))) == set(range(6))


def test_training_never_waits_when_everything_rests():
    curriculum = one_pool(3, resting=lambda _: True)
    assert set(Counter(curriculum.draw() for _ in range(60))) == {0, 1, 2}


def test_a_source_at_rest_keeps_its_share():
    curriculum = Curriculum(names(4), [([0, 1], 1.0), ([2, 3], 1.0)], resting=lambda i: i < 2)
    drawn = Counter(curriculum.draw() for _ in range(40))
    assert drawn[0] + drawn[1] == drawn[2] + drawn[3] == 20


@pytest.mark.parametrize("at", [0, 1, 6, 7, 8, 20])
def test_the_state_goes_on_with_the_next_instance(at):
    whole = Curriculum(names(10), [(range(7), 2.0), (range(7, 10), 1.0)], seed=4)
    expected = [whole.draw() for _ in range(40)]
    first = Curriculum(names(10), [(range(7), 2.0), (range(7, 10), 1.0)], seed=4)
    begun = [first.draw() for _ in range(at)]
    state = json.loads(json.dumps(first.state_dict()))
    second = Curriculum(names(10), [(range(7), 2.0), (range(7, 10), 1.0)], seed=4)
    second.load_state_dict(state)
    assert begun + [second.draw() for _ in range(40 - at)] == expected


def test_a_state_of_other_tasks_is_refused():
    state = one_pool(3).state_dict()
    with pytest.raises(ValueError, match="other tasks"):
        one_pool(4).load_state_dict(state)


def test_empty_and_weightless_sources_are_refused():
    for pools in ([([], 1.0)], [([0], 0.0)], [([0], float("nan"))]):
        with pytest.raises(ValueError, match="weight"):
            Curriculum(names(1), pools)


def test_a_rest_begins_after_failures_in_a_row_and_ends():
    record = TaskRecord(failures_in_a_row=16, last_step=20)
    options = {"failures": 16, "cooldown_steps": 5}
    assert rests(record, step=20, **options) and rests(record, step=24, **options)
    assert not rests(record, step=25, **options)
    assert not rests(TaskRecord(failures_in_a_row=15, last_step=20), step=20, **options)
    assert not rests(record, step=20, failures=0, cooldown_steps=5)  # off
