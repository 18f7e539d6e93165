"""Two runs in one report, and environment failures by kind."""

import json
import re

from verl_gui.cli import main
from verl_gui.report.charts import charts, compared


def chart(found, title):
    return next(chart for chart in found if chart["title"] == title)


def lines(found, title):
    return {line["label"]: line["points"] for line in chart(found, title)["lines"]}


def test_failures_are_drawn_by_kind_and_are_zero_where_none_is_named():
    steps = {
        0: {"val-core/a/acc/mean@1": 0.1},
        1: {"env/utilisation": 0.9, "env/failures/timeout": 2.0},
        2: {"env/utilisation": 0.9, "env/failures/reset": 1.0},
    }
    assert lines(charts(steps, {}), "Environment failures") == {
        "timeout": [(1, 2.0), (2, 0.0)],
        "reset": [(1, 0.0), (2, 1.0)],
    }


def test_without_counters_the_recorded_episodes_tell():
    assert lines(charts({1: {}}, {3: 1, 1: 0}), "Environment failures") == {
        "episodes without a score": [(1, 0.0), (3, 1.0)]
    }


def test_another_run_is_drawn_into_line_charts_only():
    ours = charts({1: {"success/mean": 0.1, "timing_s/step": 3.0}}, {})
    both = compared(ours, charts({1: {"success/mean": 0.7, "timing_s/step": 9.0}}, {}), "other")
    assert lines(both, "Success rate") == {
        "training rollouts": [(1, 0.1)],
        "training rollouts (other)": [(1, 0.7)],
    }
    assert chart(both, "Seconds per step") == chart(ours, "Seconds per step")
    assert len(chart(ours, "Success rate")["lines"]) == 1


def test_the_command_compares(tmp_path, capsys):
    for name, success in (("one", 0.25), ("two", 0.75)):
        (tmp_path / name).mkdir()
        line = json.dumps({"step": 1, "data": {"success/mean": success}})
        (tmp_path / name / "metrics.jsonl").write_text(line + "\n")
    assert main(["report", str(tmp_path / "one"), "--compare", str(tmp_path / "two")]) == 0
    page = (tmp_path / "one/report.html").read_text()
    assert re.search(r"training rollouts \(two\).{0,40}0\.75", page)
    assert main(["report", str(tmp_path / "one"), "--compare", str(tmp_path / "gone")]) == 2
    assert "not a directory" in capsys.readouterr().err
