"""From recorded trajectories to demonstrations."""

import io

import pytest
from PIL import Image

from verl_gui.rollout.trajectory import Trajectory, TrajectoryStep, TrajectoryWriter, read_trajectories
from verl_gui.tasks.record import keep_successes
from verl_gui.warmstart.demonstrations import from_trajectories

SIZE = (56, 84)


def png(shade):
    out = io.BytesIO()
    Image.new("RGB", SIZE, (shade, 0, 0)).save(out, "PNG")
    return out.getvalue()


def trajectory(uid, score=1.0, error=None, frame=SIZE):
    steps = [
        TrajectoryStep(png(1), "click", actions=[{"type": "click", "x": 28.0, "y": 56.0}], error=error),
        TrajectoryStep(png(2), "type", actions=[{"type": "type", "text": "x"}]),
    ]
    fields = {"task_id": "t", "instruction": "do", "seed": 3, "uid": uid, "global_step": 0, "validate": True}
    return Trajectory(
        **fields,
        score=score,
        format_penalty=0.0,
        reward=score,
        num_turns=2,
        screen=SIZE,
        frame=frame,
        steps=steps,
        outcome="finished",
        final_screenshot=png(3),
    )


@pytest.fixture
def recorded(tmp_path):
    writer = TrajectoryWriter(tmp_path / "trajectories")
    for entry in (
        trajectory("a/0"),
        trajectory("b/0", score=0.5),
        trajectory("c/0", score=None),
        trajectory("a/0"),  # the same run, recorded again after a kill
        trajectory("d/0"),
    ):
        writer.write(entry)
    writer.close()
    return tmp_path


def test_successes_are_kept_once_with_their_pictures(recorded):
    for _ in range(2):  # and again, without growing
        assert keep_successes(recorded / "trajectories", recorded / "demonstrations") == 2
    kept = list(read_trajectories(recorded / "demonstrations"))
    assert [t.uid for t in kept] == ["a/0", "d/0"]
    assert all(t.steps[0].screenshot == png(1) and t.final_screenshot == png(3) for t in kept)


def test_demonstrations_hold_what_cloning_needs(recorded):
    keep_successes(recorded / "trajectories", recorded / "demonstrations")
    demo = from_trajectories(recorded / "demonstrations")[0]
    assert (demo.instruction, demo.answers, demo.targets) == ("do", ["click", "type"], [(28.0, 56.0), None])
    assert [frame.shape for frame in demo.frames] == [(84, 56, 3)] * 2 and demo.elements == [[], []]


def test_what_is_no_demonstration_is_left_out_with_a_warning(tmp_path, caplog):
    writer = TrajectoryWriter(tmp_path)
    writer.write(trajectory("bad", error="no action"))
    writer.write(trajectory("scaled", frame=(28, 28)))
    writer.close()
    assert from_trajectories(tmp_path) == [] and caplog.text.count("is no demonstration") == 2
