import asyncio
import io

import pytest
from in_process import Leases, SayClick, broken, instances

from verl_gui.envs.base import EnvFailure
from verl_gui.evaluation.engine import EvaluationStopped, RunSettings, evaluate
from verl_gui.evaluation.policies import Answer, PolicyFailure, PolicySetupError
from verl_gui.evaluation.progress import Progress
from verl_gui.evaluation.runs import RunLog, tally
from verl_gui.rollout.trajectory import read_trajectories

QUIET = io.StringIO


def do(log, leases, policy=None, *, names=("a", "b", "c"), concurrency=2, **settings):
    asyncio.run(
        evaluate(
            instances(*names),
            policy or SayClick(),
            leases,
            log,
            RunSettings(**{"k": 2, **settings}),
            concurrency=concurrency,
            progress=Progress("test", QUIET()),
        )
    )


@pytest.fixture
def log(tmp_path):
    log = RunLog(tmp_path, {})
    yield log
    log.close()


def test_every_task_gets_its_runs(log):
    leases = Leases(lambda task, n: float(task == "a" or n == 0))
    do(log, leases)
    counts = tally(log.runs, instances("a", "b", "c"))
    assert {name: (t.successes, t.valid) for name, t in counts.items()} == {
        "a": (2, 2),
        "b": (1, 2),
        "c": (1, 2),
    }
    run = log.runs[0]
    assert (run.steps, run.outcome, run.prompt_tokens, run.sampled_tokens) == (2, "terminated", 20, 6)
    assert leases.most == 2  # as many at once as there are environments, and all given back
    assert leases.out == 0


def test_an_environments_fault_is_repeated_and_never_a_failed_attempt(log):
    def verdict(task, n):
        if task == "a" and n == 0:
            raise EnvFailure("dead", "the desktop is gone")
        return 0.0

    do(log, Leases(verdict), k=1)
    a = tally(log.runs, instances("a"))["a"]
    assert (a.valid, a.invalid, a.successes) == (1, 1, 0)
    assert any("the desktop is gone" in (run.failure or "") for run in log.runs)


def test_a_task_that_always_breaks_is_given_up_and_stays_unknown(log):
    def verdict(task, n):
        return broken() if task == "a" else 1.0

    do(log, Leases(verdict), k=2, retries=1, names=("a", "b", "c", "d"))
    counts = tally(log.runs, instances("a", "b"))
    assert (counts["a"].valid, counts["a"].invalid) == (0, 4) and counts["a"].rate is None
    assert counts["b"].rate == 1.0


def test_it_stops_when_nothing_works_and_says_why(log):
    with pytest.raises(EvaluationStopped, match=r"6 runs were all invalid.*the desktop is gone.*kept"):
        do(log, Leases(broken), names=[f"t{i}" for i in range(50)])
    assert 6 <= len(log.runs) <= 8


def test_a_silent_endpoint_is_no_failed_attempt(log):
    class Silent(SayClick):
        async def answer(self, episode, observation, rng):
            if len(self.asked) < 1:
                self.asked.append(None)
                raise PolicyFailure("no answer within 1 s")
            return await super().answer(episode, observation, rng)

    do(log, Leases(), Silent(), names=("a",), k=1)
    assert [run.valid for run in log.runs] == [False, True]
    assert "no answer within 1 s" in log.runs[0].failure


def test_an_unusable_policy_ends_it_at_once(log):
    class Refused(SayClick):
        async def answer(self, episode, observation, rng):
            raise PolicySetupError("unknown model")

    leases = Leases()
    with pytest.raises(PolicySetupError, match="unknown model"):
        do(log, leases, Refused())
    assert log.runs == [] and leases.out == 0


def test_it_goes_on_where_it_was_and_does_nothing_twice(log):
    class Interrupted(Exception):
        pass

    async def stop():
        if len(log.runs) >= 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        do(log, Leases(), SayClick(stop))
    done = [(run.instance, run.slot) for run in log.runs]
    assert 3 <= len(done) < 6
    do(log, Leases())
    every = [(run.instance, run.slot) for run in log.runs]
    assert every[: len(done)] == done and len(every) == len(set(every)) == 6
    policy = SayClick()
    do(log, Leases(), policy)
    assert policy.asked == []


def test_more_runs_can_be_asked_for_later(log):
    do(log, Leases(), k=1)
    do(log, Leases(), k=3)
    assert len(log.runs) == 9


def test_chance_depends_on_run_and_turn_alone(log, tmp_path):
    first, second = SayClick(), SayClick()
    do(log, Leases(), first, concurrency=3)
    other = RunLog(tmp_path / "other", {})
    do(other, Leases(), second, concurrency=1, names=("c", "b", "a"))
    assert sorted(first.asked) == sorted(second.asked)
    assert len({chance for _, _, chance in first.asked}) == 12


def test_a_full_context_ends_the_episode_as_it_stands(log):
    class Short(SayClick):
        async def answer(self, episode, observation, rng):
            if episode.answers:
                return None
            return await super().answer(episode, observation, rng)

    do(log, Leases(lambda task, n: 0.0), Short(), names=("a",), k=1)
    (run,) = log.runs
    assert (run.outcome, run.steps, run.score) == ("length_limit", 1, 0.0)


def test_malformed_answers_are_steps(log):
    class Mumbles(SayClick):
        async def answer(self, episode, observation, rng):
            return Answer("hm")

    do(log, Leases(lambda task, n: 0.0), Mumbles(), names=("a",), k=1)
    (run,) = log.runs
    assert (run.malformed, run.steps, run.outcome) == (15, 15, "step_limit")


def test_trajectories_are_recorded(log, tmp_path):
    do(log, Leases(), names=("a",), k=2, record=True)
    found = list(read_trajectories(tmp_path / "trajectories"))
    assert {t.uid for t in found} == {"a/0", "a/1"}
    assert all(t.score == 1.0 and len(t.steps) == 2 and t.final_screenshot for t in found)


def test_the_bar_counts_what_was_done_before(log):
    do(log, Leases(), k=1)
    stream = io.StringIO()
    progress = Progress("again", stream)
    settings = RunSettings(k=2)
    asyncio.run(
        evaluate(
            instances("a", "b", "c"), SayClick(), Leases(), log, settings, concurrency=1, progress=progress
        )
    )
    assert "3/6" in stream.getvalue() and "6/6" in stream.getvalue() and "success=100%" in stream.getvalue()


@pytest.mark.parametrize("wrong", [{"k": 0}, {"k": 1, "retries": -1}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ValueError, match="expected k >= 1"):
        RunSettings(**wrong)
