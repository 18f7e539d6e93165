import dataclasses
import enum
import json
import logging
import multiprocessing
import os
import subprocess
import sys

import pytest

from verl_gui.rollout.trajectory import Trajectory, TrajectoryStep, TrajectoryWriter, read_trajectories

HOSTILE = "</script><img src=x onerror=alert(1)> \x00 \u2028 \ud800 \N{SNOWMAN}\r\n\"'`"


def picture(n: int, size: int = 64) -> bytes:
    return bytes([n % 256]) * size


def trajectory(n: int = 0, **changes: object) -> Trajectory:
    steps = [
        TrajectoryStep(
            screenshot=picture(n + i),
            text=HOSTILE,
            thought="think",
            actions=[{"type": "click", "x": 1.5, "y": 0.0}],
            error=None if i else "no action",
            log_prob_mean=-0.25,
            seconds={"generate": 0.5},
        )
        for i in range(2)
    ]
    record = Trajectory(
        task_id=f"task-{n}", instruction="Click it", seed=n, uid=f"u{n}", global_step=n, validate=False,
        score=1.0, format_penalty=-0.5, reward=0.5, num_turns=2, screen=(1920, 1080), frame=(1932, 1092),
        steps=steps, outcome="finished", final_screenshot=picture(n + 2),
    )  # fmt: skip
    return dataclasses.replace(record, **changes)  # type: ignore[arg-type]


def write(directory, *records: Trajectory) -> None:
    writer = TrajectoryWriter(directory)
    for record in records:
        writer.write(record)
    writer.close()


def test_records_come_back_unchanged(tmp_path):
    records = [
        trajectory(0),
        trajectory(1, score=None, reward=None, seed=None, env_failure="[dead] it died"),
        trajectory(2),
    ]
    write(tmp_path, *records)
    assert list(read_trajectories(tmp_path)) == records


def test_no_directory_means_no_trajectories(tmp_path):
    assert list(read_trajectories(tmp_path / "nowhere")) == []


def test_equal_screenshots_are_stored_once(tmp_path):
    same = [TrajectoryStep(screenshot=picture(7, 10_000), text=str(i)) for i in range(15)]
    records = [trajectory(i, steps=same, final_screenshot=picture(7, 10_000)) for i in range(8)]
    write(tmp_path, *records)
    assert sum(path.stat().st_size for path in tmp_path.glob("*.pngs")) == 10_000
    assert list(read_trajectories(tmp_path)) == records


def test_screenshots_are_loaded_only_where_wanted(tmp_path):
    write(tmp_path, trajectory(0), trajectory(1))
    first, second = read_trajectories(tmp_path, with_screenshots=lambda t: t.task_id == "task-1")
    assert [step.screenshot for step in first.steps] == [b"", b""] and first.final_screenshot == b""
    assert second == trajectory(1)


def test_torn_last_line_is_left_out_with_a_warning(tmp_path, caplog):
    write(tmp_path, trajectory(0), trajectory(1))
    (path,) = tmp_path.glob("*.jsonl")
    path.write_bytes(path.read_bytes()[:-40])
    with caplog.at_level(logging.WARNING):
        assert list(read_trajectories(tmp_path)) == [trajectory(0)]
    assert "line 2" in caplog.text


@pytest.mark.parametrize(
    "line", ["not json", "[]", "null", "{}", '{"version": 1}', '{"version": 99, "steps": []}', "1e999"]
)
def test_foreign_lines_are_left_out_with_a_warning(tmp_path, caplog, line):
    write(tmp_path, trajectory(0))
    (tmp_path / "foreign.jsonl").write_text(line + "\n")
    with caplog.at_level(logging.WARNING):
        assert list(read_trajectories(tmp_path)) == [trajectory(0)]
    assert "foreign.jsonl" in caplog.text


def test_missing_or_short_picture_file_costs_only_its_records(tmp_path, caplog):
    write(tmp_path / "a", trajectory(0), trajectory(1))
    (pictures,) = (tmp_path / "a").glob("*.pngs")
    pictures.write_bytes(
        pictures.read_bytes()[: 3 * 64]
    )  # all of the first record's, not all of the second's
    with caplog.at_level(logging.WARNING):
        assert list(read_trajectories(tmp_path / "a")) == [trajectory(0)]
    pictures.unlink()
    assert [t.task_id for t in read_trajectories(tmp_path / "a", with_screenshots=lambda _: False)] == [
        "task-0",
        "task-1",
    ]


def test_unknown_fields_of_a_later_writer_are_ignored(tmp_path):
    write(tmp_path, trajectory(0))
    (path,) = tmp_path.glob("*.jsonl")
    record = json.loads(path.read_bytes())
    record["novelty"] = record["steps"][0]["novelty"] = 1
    path.write_text(json.dumps(record) + "\n")
    assert list(read_trajectories(tmp_path)) == [trajectory(0)]


def test_enums_and_numpy_scalars_are_written_plainly(tmp_path):
    import numpy as np

    class Kind(enum.Enum):
        CLICK = "click"

    step = TrajectoryStep(screenshot=b"", text="", actions=[{"type": Kind.CLICK, "x": np.float32(2.5)}])
    write(tmp_path, trajectory(0, steps=[step], score=np.float64(1.0)))
    (back,) = read_trajectories(tmp_path)
    assert back.steps[0].actions == [{"type": "click", "x": 2.5}] and back.score == 1.0


def test_what_json_cannot_hold_is_refused_and_harms_nothing(tmp_path):
    writer = TrajectoryWriter(tmp_path)
    writer.write(trajectory(0))
    with pytest.raises(TypeError, match="object"):
        writer.write(trajectory(1, score=object()))
    writer.write(trajectory(2))
    assert list(read_trajectories(tmp_path)) == [trajectory(0), trajectory(2)]


def test_after_a_line_was_cut_short_by_a_full_disk_the_next_is_whole(tmp_path, monkeypatch):
    writer = TrajectoryWriter(tmp_path)
    writer.write(trajectory(0))
    real = writer._lines

    class FullDisk:
        def write(self, line: bytes) -> int:
            return real.write(line[:50])

        def close(self) -> None:
            real.close()

    monkeypatch.setattr(writer, "_lines", FullDisk())
    with pytest.raises(OSError, match="in part"):
        writer.write(trajectory(1))
    writer.write(trajectory(2))
    assert sorted(t.global_step for t in read_trajectories(tmp_path)) == [0, 2]


def _write_many(directory, first: int) -> None:
    write(directory, *(trajectory(first + i) for i in range(20)))


def test_several_processes_write_side_by_side(tmp_path):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_write_many, args=(tmp_path, 20 * i)) for i in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    back = sorted(read_trajectories(tmp_path), key=lambda t: t.global_step)
    assert back == [trajectory(i) for i in range(60)]


def test_a_forked_child_does_not_write_into_its_parents_files(tmp_path):
    writer = TrajectoryWriter(tmp_path)
    writer.write(trajectory(0))
    child = os.fork()
    if child == 0:
        writer.write(trajectory(1))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    writer.write(trajectory(2))
    assert len(list(tmp_path.glob("*.jsonl"))) == 2
    assert sorted(t.global_step for t in read_trajectories(tmp_path)) == [0, 1, 2]


def test_importing_the_record_does_not_import_torch():
    code = "import sys, verl_gui.rollout.trajectory; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
