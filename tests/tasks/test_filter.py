import json

import pytest
from task_cases import shared_cases

from verl_gui.evaluation.cost import cost
from verl_gui.evaluation.runs import Run, Tally
from verl_gui.evaluation.session import Session
from verl_gui.tasks import Task, TaskInstance, expand_source
from verl_gui.tasks.filter import FilterError, FilterRule, check_enough, filter_tasks, write_task_list
from verl_gui.tasks.filter_report import histogram, page, report, text, write_report


def instance(name, domain="os", seed=None):
    return TaskInstance(Task(name, f"do {name}", domain, evaluator={"func": "x"}), seed)


def counted(successes, valid, invalid=0):
    return Tally(successes, valid, invalid, float(successes), [3] * successes)


@shared_cases("filter")
def test_shared_case(case):
    tasks = [instance(name) for name in case["runs"]]
    tallies = {name: counted(*numbers) for name, numbers in case["runs"].items() if numbers}
    rule = FilterRule(
        min_success=0, lower=case["lower_exclusive"], upper=case["upper_exclusive"], min_valid=8
    )
    filtered = filter_tasks(tasks, tallies, rule)
    assert [i.name for i in filtered.kept] == case["keep"]
    assert filtered.named("unknown") == case["unknown"]
    # ARPO's rule says the same but for the upper bound
    arpo = filter_tasks(tasks, tallies, FilterRule(min_success=1, min_valid=8))
    assert [i.name for i in arpo.kept] == ["B", "C"]
    also = filter_tasks(tasks, tallies, FilterRule(min_success=1, min_valid=8, keep_unknown=True))
    assert [i.name for i in also.kept] == ["B", "C", "D", "E"]


def test_invalid_runs_change_no_rate():
    rule = FilterRule(lower=0.4, min_valid=2)
    assert rule.decide(counted(1, 2, invalid=14)) == rule.decide(counted(1, 2)) == "kept"
    assert rule.decide(counted(0, 1, invalid=15)) == "unknown"


@pytest.mark.parametrize(
    ("rule", "tally", "decision"),
    [
        (FilterRule(min_success=2), (1, 16), "too_hard"),
        (FilterRule(lower=0.25), (4, 16), "too_hard"),  # bounds are exclusive
        (FilterRule(lower=0.25), (5, 16), "kept"),
        (FilterRule(upper=0.75), (12, 16), "too_easy"),
        (FilterRule(upper=0.75), (11, 16), "kept"),
        (FilterRule(min_valid=17), (16, 16), "unknown"),
    ],
)
def test_bounds(rule, tally, decision):
    assert rule.decide(counted(*tally)) == decision


@pytest.mark.parametrize(
    "wrong",
    [{"lower": -0.1}, {"upper": 1.5}, {"lower": 0.5, "upper": 0.5}, {"min_valid": 0}, {"min_success": -1}],
)
def test_a_rule_that_nothing_meets_is_refused(wrong):
    with pytest.raises(ValueError, match=r"expected|no rate"):
        FilterRule(**wrong)


def filtered_with(kept, unknown=0):
    tasks = [instance(f"t{i}") for i in range(kept + unknown + 1)]
    tallies = {f"t{i}": counted(1, 16) for i in range(kept)} | {f"t{kept + unknown}": counted(0, 16)}
    return filter_tasks(tasks, tallies, FilterRule(min_valid=8))


def test_an_empty_result_is_an_error_that_says_why():
    with pytest.raises(FilterError, match=r"no task is left of 3 \(1 too hard, 0 too easy; 2 are unknown"):
        check_enough(filtered_with(0, unknown=2), batch_size=None)


def test_less_than_a_batch_is_an_error_and_an_incomplete_batch_a_warning():
    with pytest.raises(FilterError, match="3 tasks are left, less than one batch of 4"):
        check_enough(filtered_with(3), batch_size=4)
    assert "1 of them" in (check_enough(filtered_with(5), batch_size=4) or "")
    assert check_enough(filtered_with(8), batch_size=4) is None
    assert check_enough(filtered_with(1), batch_size=None) is None


def test_the_list_reads_back_as_the_same_instances_in_the_same_order(tmp_path):
    kept = [
        instance("b-2"),
        instance("miniwob:click-test", "miniwob", 7),
        instance("miniwob:click-test", "miniwob", 3),
        instance("../odd/nämé"),
    ]
    by_domain = [kept[0], kept[3], kept[1], kept[2]]
    write_task_list(kept, tmp_path / "tasks.json", notes={"b-2": {"successes": 1, "valid": 16}})
    assert expand_source(str(tmp_path / "tasks.json")) == by_domain
    assert not (tmp_path.parent / "odd").exists()
    listing = json.loads((tmp_path / "tasks.json").read_text())
    assert listing["miniwob"] == ["miniwob:click-test#7", "miniwob:click-test#3"]
    example = json.loads((tmp_path / "examples/os/b-2.json").read_text())
    assert example["baseline"] == {"successes": 1, "valid": 16} and example["instruction"] == "do b-2"


def test_histogram_keeps_never_and_always_apart():
    rates = {
        "a": (0, 16),
        "b": (1, 16),
        "c": (15, 16),
        "d": (16, 16),
        "e": (0, 0),
        "f": (3, 10),
        "g": (8, 16),
    }
    bars = histogram({name: counted(*numbers) for name, numbers in rates.items()})
    filled = {(bar["from"], bar["to"]): bar["tasks"] for bar in bars if bar["tasks"]}
    assert filled == {(0, 0): 1, (0, 0.1): 1, (0.2, 0.3): 1, (0.4, 0.5): 1, (0.9, 1.0): 1, (1, 1): 1}


def content(name="t0"):
    tasks = [instance(name), instance("t1"), instance("t2")]
    tallies = {name: counted(4, 16), "t1": counted(0, 16), "t2": counted(0, 2, 14)}
    filtered = filter_tasks(tasks, tallies, FilterRule(min_valid=8))
    runs = [Run(name, name, "os", i, 1.0, steps=2, sampled_tokens=5, env_s=0.5) for i in range(4)]
    runs.append(Run("elsewhere", "elsewhere", "os", 0, 1.0, steps=100))
    sessions = [Session(30.0, 5.0, 3, 4, 0.9, 0.5), Session(10.0, 5.0, 1, 4, 0.5, 0.1)]
    return report(tasks, tallies, filtered, FilterRule(min_valid=8), runs, sessions, {"policy": "p"})


def test_report_counts_what_it_cost():
    numbers = content()["cost"]
    assert (numbers["runs"], numbers["steps"], numbers["sampled_tokens"], numbers["env_s"]) == (4, 8, 20, 2.0)
    assert numbers["env_utilisation"] == pytest.approx(0.8) and numbers["wall_s"] == 40.0
    assert cost([], [])["env_utilisation"] is None


def test_report_files(tmp_path):
    found = content()
    assert found["decisions"] == {"kept": ["t0"], "too_hard": ["t1"], "too_easy": [], "unknown": ["t2"]}
    write_report(found, tmp_path)
    assert json.loads((tmp_path / "filter_report.json").read_text())["tasks"][0]["rate"] == 0.25
    assert "1 kept, 1 too hard, 0 too easy, 1 unknown" in text(found)
    html = (tmp_path / "filter_report.html").read_text()
    assert "t2" in html and "25%" in html and "http" not in html


def test_names_of_tasks_are_no_markup():
    html = page(content(name='<script>alert("x")</script>'))
    assert "<script" not in html and "&lt;script&gt;" in html
