"""The expert plays real pages over the real pool; its successes become a warm start."""

import json

import pytest

from verl_gui.cli import main
from verl_gui.rollout.trajectory import read_trajectories
from verl_gui.warmstart.demonstrations import from_trajectories

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def test_record_and_evaluate(tmp_path, capsys):
    sources = ["miniwob:click-button-sequence@demo:2", "miniwob:click-pie@demo:1"]  # no expert knows the pie
    options = ["--num-envs", "2", "--retries", "0", "--expert-grid", "7", "--max-steps", "4"]
    assert main(["tasks", "record", *sources, *options, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "2 successful trajectories of 3 tasks" in said and "0 runs failed, 1 were invalid" in said
    assert "click-pie" in said

    demos = from_trajectories(tmp_path / "demonstrations")
    assert len(demos) == 2 and all(len(d.answers) == len(d.frames) == len(d.targets) == 2 for d in demos)
    for demo, trajectory in zip(demos, read_trajectories(tmp_path / "demonstrations"), strict=True):
        assert demo.instruction == trajectory.instruction and trajectory.score == 1.0
        assert demo.frames[0].shape == (224, 168, 3) and demo.targets[0][0] % 7 == 0

    (session,) = [json.loads(line) for line in (tmp_path / "sessions.jsonl").read_text().splitlines()]
    assert session["runs"] == 3 and 0 < session["working"] <= session["utilisation"] <= 1
