import json
from dataclasses import asdict

import pytest
from in_process import instances

from verl_gui.evaluation.runs import ResultsError, Run, RunLog, open_slots, read_runs, tally


def run(name="a", slot=0, score=1.0, **more):
    return Run(name, name, "os", slot, score, **more)


def test_results_come_back(tmp_path):
    log = RunLog(tmp_path, {"policy": "p"})
    log.append(run(steps=3))
    log.append(run(slot=1, score=None, failure="EnvFailure: [dead] gone"))
    log.close()
    again = RunLog(tmp_path, {"policy": "p"})
    assert again.runs == log.runs and len(again.runs) == 2


@pytest.mark.parametrize("cut", [1, 10, 40])
def test_a_torn_last_line_is_cut_off_and_written_anew(tmp_path, cut):
    log = RunLog(tmp_path, {})
    for slot in range(3):
        log.append(run(slot=slot))
    log.close()
    file = tmp_path / "runs.jsonl"
    file.write_bytes(file.read_bytes()[:-cut])
    again = RunLog(tmp_path, {})
    assert [r.slot for r in again.runs] == [0, 1]
    again.append(run(slot=2))
    again.close()
    assert [r.slot for r in read_runs(file)[0]] == [0, 1, 2]


def test_a_foreign_line_is_left_out_with_a_warning(tmp_path, caplog):
    lines = [json.dumps(asdict(run())), "not json", "[1]", '{"instance": 3}', json.dumps(asdict(run(slot=1)))]
    (tmp_path / "runs.jsonl").write_text("\n".join(lines) + "\n")
    assert [r.slot for r in read_runs(tmp_path / "runs.jsonl")[0]] == [0, 1]
    assert all(f"line {n} is left out" in caplog.text for n in (2, 3, 4))


def test_two_evaluations_cannot_write_at_once(tmp_path):
    log = RunLog(tmp_path, {})
    with pytest.raises(ResultsError, match="another evaluation"):
        RunLog(tmp_path, {})
    log.close()
    RunLog(tmp_path, {}).close()


def test_results_of_other_settings_are_not_mixed(tmp_path):
    RunLog(tmp_path, {"temperature": 1.0}).close()
    with pytest.raises(ResultsError, match=r"temperature=1.0, now it is 0.0"):
        RunLog(tmp_path, {"temperature": 0.0})


def test_slots_are_open_until_a_valid_run_or_too_many_invalid_ones():
    tasks = instances("a", "b")
    runs = [run("a", 0), run("a", 1, None), run("b", 0, None), run("b", 0, None), run("b", 0, None)]

    def left(retries):
        return [(s.instance.name, s.slot, s.attempts) for s in open_slots(tasks, runs, k=2, retries=retries)]

    assert left(2) == [("a", 1, 2), ("b", 1, 3)]
    assert left(3) == [("b", 0, 1), ("a", 1, 3), ("b", 1, 4)]  # more retries open what had given up
    assert left(0) == [("b", 1, 1)]


def test_every_task_is_tried_once_before_one_is_tried_twice():
    slots = open_slots(instances("a", "b", "c"), [], k=2, retries=0)
    assert [s.instance.name for s in slots] == ["a", "b", "c"] * 2


def test_tally_leaves_invalid_runs_out_of_rates():
    runs = [run(steps=4), run(score=0.5), run(score=None), run("elsewhere")]
    counts = tally(runs, instances("a", "b"))
    a = counts["a"]
    assert (a.successes, a.valid, a.invalid, a.score, a.lengths) == (1, 2, 1, 1.5, [4])
    assert a.rate == 0.5 and counts["b"].rate is None and list(counts) == ["a", "b"]
