"""Reading growing files, naming phases, estimating time."""

import io

from verl_gui.launch.display import Progress, duration, make_display
from verl_gui.launch.follow import Follower
from verl_gui.launch.phases import PhaseTracker


def test_only_complete_new_lines_come(tmp_path):
    path = tmp_path / "log"
    follower = Follower(path)
    assert follower.lines() == []
    with open(path, "ab", buffering=0) as file:
        file.write(b"one\ntwo\r 10%\r 20%\nthr")
        assert follower.lines() == ["one", "two", " 10%", " 20%"]
        file.write(b"ee\n\xff\n")
        assert follower.lines() == ["three", "\ufffd"]
        file.write(b"unended")
    assert follower.lines() == []
    assert follower.lines(to_the_end=True) == ["unended"]
    assert follower.lines(to_the_end=True) == []


def test_a_replaced_or_emptied_file_is_read_from_its_start(tmp_path):
    path = tmp_path / "log"
    follower = Follower(path)
    path.write_text("old 1\nold 2\nunfinish")
    assert follower.lines() == ["old 1", "old 2"]
    path.write_text("new\n")
    assert follower.lines() == ["new"]
    path.unlink()
    assert follower.lines() == []
    (tmp_path / "other").write_text("replaced 1\nreplaced 2\n")
    (tmp_path / "other").rename(path)
    assert follower.lines() == ["replaced 1", "replaced 2"]


def test_phases_only_move_forward_and_the_log_tells_the_steps():
    tracker = PhaseTracker()
    seen = []
    for line in (
        "ray init kwargs: {}",
        "\x1b[36m(TaskRunnerV1 pid=9)\x1b[0m dataset len: 8",
        "\x1b[36m(TaskRunnerV1 pid=9)\x1b[0m dataset len: 8",
        "ray init kwargs: {}",
        "(vLLMHttpServer pid=3) ['serve',",
        "(WorkerDict pid=4) Total steps: 20, num_warmup_steps: 0",
        "(TaskRunnerV1 pid=9) Training Progress:   5%|▌         | 1/20 [00:10<03:10, 10.0s/it]",
    ):
        if tracker.feed(line):
            seen.append(tracker.phase)
    assert seen == ["starting Ray", "starting the trainer", "loading tasks", "starting vLLM", "training"]
    assert tracker.total_steps == 20


def test_time_left_follows_the_recent_pace():
    progress = Progress(10, [])
    assert progress.seconds_left() is None
    progress.take(1, {"timing_s/step": 20.0})
    assert progress.seconds_left() == 180.0
    progress._arrivals = [(100.0, 1), (130.0, 4)]
    progress.done = 4
    assert progress.seconds_left() == 60.0


def test_figures_keep_the_last_validation():
    progress = Progress(None, [])
    progress.take(0, {"val-core/miniwob/reward/mean@1": 0.25})
    progress.take(1, {"reward/score": 0.5, "timing_s/step": 3.0})
    assert progress.figures() == "validation 0.25, train 0.5, 3.0 s/step"


def test_lines_show_life_during_a_long_start(monkeypatch):
    stream = io.StringIO()
    display = make_display(None, [], stream)
    display.phase("starting Ray")
    display.tick()
    assert stream.getvalue().count("\n") == 1
    monkeypatch.setattr("verl_gui.launch.display._LINE_EVERY_SECONDS", 0.0)
    display.tick()
    assert "still starting Ray (0s)" in stream.getvalue()


def test_durations():
    assert [duration(s) for s in (0.9, 59, 60, 3599, 3600, 7500)] == [
        "0s",
        "59s",
        "1m00s",
        "59m59s",
        "1h00m",
        "2h05m",
    ]
