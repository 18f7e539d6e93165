import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_gui.config import AllocationConfig, ConfigError, StepLimitConfig
from verl_gui.tasks.allocation import make_allocator, register_allocator, within
from verl_gui.tasks.statistics import TaskRecord, TaskStats
from verl_gui.tasks.step_limit import step_limit


def stats_with(**rates):
    stats = TaskStats()
    for task, (successes, attempts) in rates.items():
        stats.ended(task, [(i < successes, 3) for i in range(attempts)], step=1)
    return stats


def test_fixed_gives_everybody_the_same():
    stats = stats_with(easy=(16, 16))
    assert make_allocator(AllocationConfig(), 8).allocate(["easy", "new"], stats) == [8, 8]


def test_success_rate_saves_on_easy_tasks():
    allocator = make_allocator(AllocationConfig(name="success_rate", n_min=2, easy_above=0.6), 8)
    stats = stats_with(
        hard=(0, 16), some=(9, 16), edge=(6, 10), easier=(8, 10), always=(16, 16), little=(4, 4)
    )
    wanted = allocator.allocate(["hard", "some", "edge", "easier", "always", "little", "new"], stats)
    assert wanted == [8, 8, 8, 5, 2, 8, 8]


def test_an_unknown_allocator_is_named():
    with pytest.raises(ValueError, match=r"name='dart'.*fixed.*success_rate"):
        make_allocator(AllocationConfig(name="dart"), 8)


def test_own_allocators_can_be_registered():
    @register_allocator("test-one-each")
    class OneEach:
        def __init__(self, config, n):
            self.n = n

        def allocate(self, task_ids, stats):
            return [1] * len(task_ids)

    assert make_allocator(AllocationConfig(name="test-one-each"), 8).allocate(["a", "b"], TaskStats()) == [
        1,
        1,
    ]
    with pytest.raises(ValueError, match="registered already"):
        register_allocator("fixed")(OneEach)


def test_within_cuts_the_largest_and_fills_the_smallest():
    assert within([8, 8, 2], least=2, most=8, total_min=3, total_max=14) == [6, 6, 2]
    assert within([2, 2, 8], least=2, most=8, total_min=18, total_max=24) == [5, 5, 8]
    assert within([100, 0], least=2, most=8, total_min=2, total_max=24) == [8, 2]
    with pytest.raises(ValueError, match="3 prompts of 2 to 8 rollouts cannot have 3 to 5"):
        within([8, 8, 8], least=2, most=8, total_min=3, total_max=5)


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=12),
    st.integers(1, 4),
    st.integers(4, 16),
    st.data(),
)
def test_within_keeps_every_bound_and_the_order(wanted, least, most, data):
    count = len(wanted)
    low = data.draw(st.integers(0, most * count))
    high = data.draw(st.integers(max(low, least * count), most * count + 5))
    numbers = within(wanted, least=least, most=most, total_min=low, total_max=high)
    assert all(least <= n <= most for n in numbers) and low <= sum(numbers) <= high
    pairs = list(zip(wanted, numbers, strict=True))
    for want, got in pairs:
        # who wanted less never gets more, but for the one that rounding is left with
        assert all(other <= got + 1 for other_want, other in pairs if other_want <= want)


def test_step_limit_follows_the_longest_success_within_bounds():
    config = StepLimitConfig(slack=1.5, least=4, min_successes=2)
    assert step_limit(TaskRecord(successes=2, longest_success=6), config, 15) == 9
    assert step_limit(TaskRecord(successes=2, longest_success=1), config, 15) == 4
    assert step_limit(TaskRecord(successes=2, longest_success=14), config, 15) == 15
    assert step_limit(TaskRecord(successes=1, longest_success=6), config, 15) == 15
    assert step_limit(TaskRecord(), config, 15) == 15
    assert step_limit(TaskRecord(successes=9, longest_success=2), StepLimitConfig(), 15) == 15


@pytest.mark.parametrize(
    "wrong", [{"n_min": 0}, {"n_max": 0}, {"easy_above": 1.0}, {"total_max": 0}, {"min_attempts": 0}]
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=f"allocation.{next(iter(wrong))}"):
        AllocationConfig(**wrong)


def test_a_limit_below_known_solutions_is_refused():
    with pytest.raises(ConfigError, match="slack"):
        StepLimitConfig(slack=0.5)
