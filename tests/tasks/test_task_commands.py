"""The ``verl-gui tasks`` commands that start nothing."""

import json

import pytest

from verl_gui.cli import main
from verl_gui.evaluation.runs import Run, RunLog

TASK = {"id": "t-1", "instruction": "Open\nthe file", "domain": "os", "evaluator": {"func": "f"}}


@pytest.fixture
def tasks(tmp_path):
    file = tmp_path / "tasks.json"
    file.write_text(json.dumps([TASK, {**TASK, "id": "t-2", "domain": "chrome"}]))
    return str(file)


def test_list(tasks, capsys):
    assert main(["tasks", "list", tasks, "miniwob:click-test@test:1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "t-1\tos\tOpen the file" and lines[2].startswith("miniwob:click-test#1000000000\t")
    assert main(["tasks", "list", tasks, "--domains"]) == 0
    assert capsys.readouterr().out.split() == ["1", "chrome", "1", "os"]


def test_show(tasks, capsys):
    assert main(["tasks", "show", tasks, "t-2"]) == 0
    assert json.loads(capsys.readouterr().out)["domain"] == "chrome"
    assert main(["tasks", "show", tasks, "t-3"]) == 2
    assert "has no task 't-3'" in capsys.readouterr().err


def test_validate_reports_everything_that_is_wrong(tmp_path, tasks, capsys):
    assert main(["tasks", "validate", tasks]) == 0
    assert "2 tasks can be used, 0 cannot" in capsys.readouterr().out
    bad = tmp_path / "bad.jsonl"
    bad.write_text(json.dumps(TASK) + "\n{}\n" + json.dumps({**TASK, "id": "x", "config": 3}) + "\n")
    assert main(["tasks", "validate", str(bad)]) == 1
    out = capsys.readouterr().out
    assert "bad.jsonl:2: field 'id'" in out and "bad.jsonl:3: field 'config'" in out
    assert "1 tasks can be used, 2 cannot" in out


def test_a_missing_file_is_one_line_and_no_traceback(capsys):
    assert main(["tasks", "list", "/nowhere/tasks.json"]) == 2
    assert capsys.readouterr().err == "/nowhere/tasks.json: field '': no such file or directory\n"


def test_stats_of_results(tmp_path, capsys):
    log = RunLog(tmp_path / "out", {})
    for slot, score in enumerate((1.0, 0.0, None)):
        log.append(Run("t-1", "t-1", "os", slot, score, steps=4))
    log.close()
    assert main(["tasks", "stats", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["t-1", "1", "2", "1", "50%", "4"]
    assert main(["tasks", "stats", str(tmp_path)]) == 2
    assert "neither runs.jsonl" in capsys.readouterr().err


FILTER = ["tasks", "filter", "--policy", "random", "--runs", "4", "--set", "gui.env.backend=desktop"]


def finished(folder, successes):
    """A directory in which all runs that FILTER wants have been done."""
    from verl_gui.evaluation.engine import RunSettings
    from verl_gui.evaluation.policies import PolicyOptions

    settings = {
        **PolicyOptions("random").settings(),
        **RunSettings(k=4).settings(),
        "env": {"backend": "desktop", "options": {}},
    }
    log = RunLog(folder, settings)
    for task, count in successes.items():
        for slot in range(4):
            log.append(Run(task, task, "os", slot, float(slot < count)))
    log.close()


def test_filter_writes_list_and_report(tmp_path, tasks, capsys):
    finished(tmp_path / "out", {"t-1": 1, "t-2": 0})
    assert main([*FILTER, tasks, "--out", str(tmp_path / "out"), "--batch-size", "1"]) == 0
    assert json.loads((tmp_path / "out/tasks.json").read_text()) == {"os": ["t-1"]}
    assert "1 kept, 1 too hard" in capsys.readouterr().out
    assert main(["tasks", "list", str(tmp_path / "out/tasks.json")]) == 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--min-success", "2"], "no task is left of 2"),
        (["--batch-size", "2"], "less than one batch of 2"),
    ],
)
def test_a_filter_that_leaves_too_little_says_so_and_writes_no_list(tmp_path, tasks, capsys, options, why):
    finished(tmp_path / "out", {"t-1": 1, "t-2": 0})
    assert main([*FILTER, tasks, "--out", str(tmp_path / "out"), *options]) == 1
    assert why in capsys.readouterr().err
    assert not (tmp_path / "out/tasks.json").exists() and (tmp_path / "out/filter_report.html").exists()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--lower", "2"], "lower=2.0"),
        (["--set", "env.backend=x"], "expected gui.<key>=<value>"),
        (["--set", "gui.env.nonsense=1"], "gui.env.nonsense"),
        (["--max-steps", "7"], "begun with max_steps=15, now it is 7"),
    ],
)
def test_wrong_options_are_one_line(tmp_path, tasks, capsys, options, why):
    finished(tmp_path / "out", {"t-1": 1, "t-2": 0})
    assert main([*FILTER, tasks, "--out", str(tmp_path / "out"), *options]) == 2
    error = capsys.readouterr().err
    assert why in error and "Traceback" not in error and error.count("\n") == 1
