"""Episodes as pictures: the strip, the choice, TensorBoard's and W&B's real files."""

import io
import logging
from types import SimpleNamespace

import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from verl_gui.config import ConfigError, ReportConfig
from verl_gui.report import trackers
from verl_gui.report.filmstrip import filmstrip
from verl_gui.report.trackers import EpisodeTracker, WeightsAndBiases, chosen
from verl_gui.rollout.trajectory import Trajectory, TrajectoryFollower, TrajectoryStep, TrajectoryWriter


def png(shade: int, size=(168, 224)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, (shade, shade, shade)).save(out, "PNG")
    return out.getvalue()


def episode(score: float | None = 1.0, *, validate=False, turns=1, name="t", actions=None) -> Trajectory:
    click = [{"type": "click", "x": 84.0, "y": 112.0}] if actions is None else actions
    steps = [TrajectoryStep(png(90 + i), "Action: …", actions=click) for i in range(turns)]
    size = (168, 224)
    words = "do it\n北京"
    return Trajectory(
        name, words, 1, "u", 1, validate, score, 0.0, score, turns, size, size, steps, "finished"
    )


def test_the_strip_shows_the_turns_and_where_the_pointer_went():
    one, three = filmstrip(episode(), height=224), filmstrip(episode(turns=3), height=224)
    assert three.width == pytest.approx(3 * one.width, abs=20) and one.height == three.height
    assert filmstrip(episode(turns=30), height=50, most=4).width < 5 * 50
    still = filmstrip(episode(actions=[]), height=224)
    changed = [
        (x, y)
        for x in range(one.width)
        for y in range(224)
        if one.getpixel((x, y)) != still.getpixel((x, y)) and y > 30
    ]
    xs, ys = zip(*changed, strict=True)
    assert (min(xs) + max(xs)) / 2 == pytest.approx(6 + 84, abs=2)
    assert (min(ys) + max(ys)) / 2 == pytest.approx(19 + 112, abs=2)


@pytest.mark.parametrize("broken", [b"", b"no picture"])
def test_an_episode_without_pictures_is_an_error(broken):
    bare = Trajectory(
        "t", "", 1, "u", 1, False, 1.0, 0.0, 1.0, 1, (8, 8), (8, 8), [TrajectoryStep(broken, "")], "x"
    )  # fmt: skip
    with pytest.raises(ValueError, match="screenshot"):
        filmstrip(bare)


def test_successes_and_failures_take_turns_and_broken_ones_are_left_out():
    names = ["a", "b", "c", "d", "e"]
    entries = [
        (episode(score), lambda name=name: name)
        for name, score in zip(names, (1, None, 1, 0, 0.5), strict=True)
    ]
    assert [load() for load in chosen(entries, 9)] == ["a", "d", "c", "e"]
    assert [load() for load in chosen(entries, 1)] == ["a"]
    assert chosen([], 3) == []


def test_the_follower_gives_every_record_once_and_waits_for_whole_lines(tmp_path):
    follower = TrajectoryFollower(tmp_path / "records")
    assert follower.new() == []
    writer = TrajectoryWriter(tmp_path / "records")
    writer.write(episode(name="a"))
    ((first, load),) = follower.new()
    assert first.task_id == "a" and first.steps[0].screenshot == b""
    assert load().steps[0].screenshot == png(90)
    assert follower.new() == []
    (lines,) = (tmp_path / "records").glob("*.jsonl")
    writer.write(episode(name="b"))
    whole = lines.read_bytes()
    lines.write_bytes(whole[:-20])
    assert follower.new() == []
    lines.write_bytes(whole + b"broken\n")
    assert [trajectory.task_id for trajectory, _ in follower.new()] == ["b"]


def test_tensorboard_gets_pictures(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "board"))
    trainer = SimpleNamespace(
        project_name="p", experiment_name="e", get=lambda key: ["console", "tensorboard"]
    )
    trackers.follow_run(ReportConfig(dir=str(tmp_path / "records"), track=2), trainer)
    writer = TrajectoryWriter(tmp_path / "records")
    for score in (1.0, 0.0, 0.0):
        writer.write(episode(score))
        writer.write(episode(score, validate=True))
    trackers.track_episodes(3)
    trackers.track_episodes(4)
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    tags = [f"trajectories/{kind}/{place}" for kind in ("train", "val") for place in (0, 1)]
    assert sorted(events.Tags()["images"]) == tags
    (picture,) = events.Images(tags[0])
    assert picture.step == 3
    assert Image.open(io.BytesIO(picture.encoded_image_string)).size == filmstrip(episode()).size


def test_wandb_gets_pictures(tmp_path, monkeypatch, caplog):
    import wandb

    with caplog.at_level(logging.WARNING):
        WeightsAndBiases().add("trajectories/val/0", filmstrip(episode()), 1)
    assert "no W&B run" in caplog.text
    run = wandb.init(project="p", mode="offline", dir=str(tmp_path))
    WeightsAndBiases().add("trajectories/val/0", filmstrip(episode()), 1)
    run.finish()
    assert list(tmp_path.glob("**/media/images/trajectories/val/*.png"))


def test_a_run_that_is_not_tracked_costs_nothing(tmp_path):
    for report, loggers in (
        (ReportConfig(dir=str(tmp_path)), ["tensorboard"]),
        (ReportConfig(track=3), ["tensorboard"]),
        (ReportConfig(dir=str(tmp_path), track=3), ["console"]),
    ):
        trackers.follow_run(report, SimpleNamespace(get=lambda key, loggers=loggers: loggers))
        trackers.track_episodes(1)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match=r"gui\.report\.track"):
        ReportConfig(track=-1)


def test_a_broken_record_does_not_stop_training(tmp_path, caplog):
    tracker = EpisodeTracker(str(tmp_path), 1, [])
    TrajectoryWriter(tmp_path).write(episode())
    (pictures,) = tmp_path.glob("*.pngs")
    pictures.write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        tracker.track(1)
    assert "not shown" in caplog.text
