import json
import logging

import pytest

from verl_gui.report.charts import charts
from verl_gui.report.metrics import (
    TRAIN_SUCCESS,
    VALIDATION_SUCCESS,
    parse_line,
    read_metrics,
    series,
    value,
)


def write(path, *records):
    path.write_text("".join(json.dumps({"step": step, "data": data}) + "\n" for step, data in records))


def test_what_verl_writes_is_read(tmp_path, monkeypatch):
    """Through verl's own logger, so that a change of its format is noticed."""
    np = pytest.importorskip("numpy")
    tracking = pytest.importorskip("verl.utils.tracking")
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "metrics.jsonl"))
    logger = tracking.FileLogger("project", "experiment")
    logger.log({"a/b": np.float32(0.5), "n": np.int64(3), "text": "no number"}, step=7)
    logger.finish()
    assert read_metrics(tmp_path) == {7: {"a/b": 0.5, "n": 3.0}}


def test_no_metrics(tmp_path):
    assert read_metrics(tmp_path) == {}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "torn {",
        "[]",
        "null",
        '{"step": 1}',
        '{"step": "x", "data": {}}',
        '{"step": 1, "data": 3}',
        '{"step": 1e999, "data": {}}',
    ],
)
def test_lines_that_are_no_records_are_refused(line):
    assert parse_line(line) is None


def test_a_torn_line_costs_itself_only(tmp_path, caplog):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "data": {"a": 1}}\n{"step": 2, "da')
    with caplog.at_level(logging.WARNING):
        assert read_metrics(tmp_path) == {1: {"a": 1.0}}
    assert "line 2" in caplog.text


def test_a_resumed_run_replaces_the_steps_it_did_again(tmp_path):
    write(tmp_path / "metrics-1.jsonl", *((step, {"a": 1.0}) for step in range(6)))
    write(tmp_path / "metrics-2.jsonl", *((step, {"a": 2.0}) for step in (4, 5, 6, 7)))
    for number in range(3, 11):
        (tmp_path / f"metrics-{number}.jsonl").write_text("")
    write(tmp_path / "metrics.jsonl", (6, {"a": 3.0}))
    assert {step: data["a"] for step, data in read_metrics(tmp_path).items()} == {
        0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0, 4: 2.0, 5: 2.0, 6: 3.0,
    }  # fmt: skip


def test_the_best_name_answers_and_sources_are_averaged():
    data = {
        "val-core/a/acc/mean@4": 0.2,
        "val-core/b/acc/mean@4": 0.6,
        "val-aux/a/score/mean@4": 0.9,
        "val-aux/a/reward/std@4": 0.1,
        "success/click": 0.0,
        "reward/score": 0.3,
        "critic/score/mean": -0.5,
    }
    assert value(data, VALIDATION_SUCCESS) == pytest.approx(0.4)
    assert value(data, TRAIN_SUCCESS) == 0.3
    assert value({**data, "success/mean": 0.7}, TRAIN_SUCCESS) == 0.7
    assert value({"success/mean": float("nan")}, TRAIN_SUCCESS) is None


def test_one_name_answers_for_the_whole_run():
    steps = {1: {"critic/score/mean": 0.1}, 2: {"critic/score/mean": 0.2, "reward/score": 0.8}}
    assert series(steps, TRAIN_SUCCESS) == [(2, 0.8)]


def test_charts_without_data_are_left_out():
    assert charts({}, {}) == []
    (chart,) = charts({1: {"actor/entropy": 0.5}}, {})
    assert chart["title"] == "Entropy" and chart["lines"] == [{"label": "entropy", "points": [(1, 0.5)]}]


def test_seconds_add_up_to_the_step():
    data = {"timing_s/step": 10.0, "timing_s/gen": 4.0, "timing_s/update_actor": 5.0, "timing_s/testing": 3.0}
    (chart,) = charts({1: data}, {})
    assert {line["label"]: line["points"][0][1] for line in chart["lines"]} == {
        "rollout": 4.0, "actor update": 5.0, "other": 1.0, "validation": 3.0,
    }  # fmt: skip


def test_episodes_per_minute_leave_out_counts_with_a_validation_in_them():
    step = {"timing_s/gen": 30.0, "env/count/evaluate": 10.0}
    steps = {0: {"val-core/a/acc/mean@1": 0.0}, 1: step, 2: step, 3: step}
    (throughput,) = [chart for chart in charts(steps, {}) if chart["title"] == "Throughput"]
    assert throughput["lines"][0]["points"] == [(2, 20.0), (3, 20.0)]
