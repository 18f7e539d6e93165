import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_process import instances

from verl_gui.evaluation.report import summarize, table
from verl_gui.evaluation.runs import Run, Tally
from verl_gui.evaluation.scores import pass_at_k, score, scores_by, wilson


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        (0, 10, 0.0, 0.2775328),
        (1, 16, 0.0111193, 0.2832874),
        (8, 10, 0.4901625, 0.9433178),
        (128, 369, 0.3001213, 0.3968008),
        (10, 10, 0.7224672, 1.0),
    ],
)
def test_wilson_of_known_counts(successes, trials, low, high):
    assert wilson(successes, trials) == pytest.approx((low, high), abs=1e-6)


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_rate_and_solves_its_equation(counts):
    successes, trials = counts
    rate, z = successes / trials, 1.959963984540054
    low, high = wilson(successes, trials)
    assert 0 <= low <= rate <= high <= 1
    for bound in (low, high):  # |rate - p| = z * sqrt(p (1 - p) / n), but for clipping
        assert abs(rate - bound) <= z * math.sqrt(bound * (1 - bound) / trials) + 1e-9


def test_wilson_of_nothing():
    assert wilson(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="3 successes in 2"):
        wilson(3, 2)


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_draws_with_a_success(numbers):
    successes, trials, k = numbers
    draws = list(combinations(range(trials), k))
    share = sum(any(i < successes for i in draw) for draw in draws) / len(draws)
    assert pass_at_k(successes, trials, k) == pytest.approx(share)


def test_pass_at_k_needs_k_runs():
    with pytest.raises(ValueError, match="pass@4 from 1 successes in 3"):
        pass_at_k(1, 3, 4)


def test_a_score_over_tasks_of_unequal_many_runs():
    found = score([Tally(1, 4, 0, 1.5, [6]), Tally(2, 2, 3, 2.0, [2, 4]), Tally(0, 0, 5)], ks=(2, 4, 8))
    assert (found.instances, found.unknown, found.runs, found.invalid) == (3, 1, 6, 8)
    assert found.pass_1 == pytest.approx((0.25 + 1.0) / 2)  # tasks weigh alike
    assert found.score == pytest.approx((1.5 / 4 + 1.0) / 2)
    assert found.pass_k == {2: pytest.approx((0.5 + 1.0) / 2), 4: 1.0}
    assert found.steps == 4.0
    assert found.interval == wilson(0.625 * 6, 6) and found.interval_new_tasks == wilson(1.25, 2)


def test_a_score_without_a_valid_run():
    found = score([Tally(0, 0, 5)], ks=(2,))
    assert found.pass_1 is None and found.interval == (0.0, 1.0) and found.pass_k == {}
    assert "-" in table({"all": found}, [2])


def test_by_domain_and_task():
    tasks = [*instances("a", "b")]
    tallies = {"a": Tally(1, 2, 0, 1.0, [3]), "b": Tally(2, 2, 0, 2.0, [1, 1])}
    assert scores_by("domain", tasks, tallies)["os"].pass_1 == 0.75
    assert {name: s.pass_1 for name, s in scores_by("task", tasks, tallies).items()} == {"a": 0.5, "b": 1.0}


def test_summary_counts_only_what_was_asked_for():
    runs = [Run("a", "a", "os", 0, 1.0, steps=2), Run("z", "z", "os", 0, 0.0, steps=9)]
    content, shown = summarize(instances("a"), runs, [], {"policy": "p"}, ks=[])
    assert content["overall"]["pass_1"] == 1.0 and content["cost"]["steps"] == 2
    assert content["instances"] == {"a": {"successes": 1, "valid": 1, "invalid": 0, "rate": 1.0}}
    assert shown.splitlines()[-1].split()[:4] == ["all", "1", "1", "0"]
