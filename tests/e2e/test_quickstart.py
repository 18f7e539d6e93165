"""Two training steps through everything that is real: verl, Ray, vLLM, Chromium on an X server."""

import json
import os
import subprocess
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from verl_gui.rollout.trajectory import read_trajectories
from verl_gui.tasks.stats_view import stats_of_checkpoint

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
PAGES = ("click-test-2", "click-button-sequence")  # one turn, two turns
OVERRIDES = [
    "trainer.total_training_steps=2",
    "trainer.val_before_train=false",
    "trainer.test_freq=2",
    "trainer.save_freq=2",
    "trainer.logger=[console,file,tensorboard]",
    "data.train_batch_size=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.n=4",
    "gui.env.num_envs=2",
    "gui.report.train_every=1",
    f"data.train_files=[{','.join(f'miniwob:{page}@train:8' for page in PAGES)}]",
    f"data.val_files=[{','.join(f'miniwob:{page}@test:2' for page in PAGES)}]",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The run's directory and its metrics by step."""
    folder = tmp_path_factory.mktemp("quickstart")
    marker = f"VERL_GUI_TEST_RUN={folder}"
    environment = {**os.environ, "VERL_GUI_RUN_DIR": str(folder), "VERL_GUI_TEST_RUN": str(folder)}
    done = subprocess.run(
        [ROOT / "recipes/quickstart/run.sh", *OVERRIDES],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=840,
    )
    log = folder / "train.log"
    tail = log.read_text(errors="replace")[-3000:] if log.exists() else "(no log)"
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n--- {log} ---\n{tail}"
    metrics = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        metrics.setdefault(entry["step"], {}).update(entry["data"])
    return folder, metrics, marker, done.stdout


def test_both_steps_trained(run):
    _, metrics, _, _ = run
    assert {1, 2} <= set(metrics)
    for step in (1, 2):
        assert metrics[step]["actor/grad_norm"] > 0
        assert {"reward/score", "reward/format", "success/mean"} <= set(metrics[step])
        assert {"env/utilisation", "env/count/step", "env/step_s/p95", "env/workers"} <= set(metrics[step])


def test_rollout_and_actor_agree_before_and_after_a_weight_sync(run):
    _, metrics, _, _ = run
    for step in (1, 2):
        assert metrics[step]["training/rollout_probs_diff_mean"] < 5e-3
        assert metrics[step]["training/rollout_actor_probs_pearson_corr"] > 0.99


def test_weights_changed(run):
    folder, _, _, _ = run
    before = load_file(ROOT / "recipes/quickstart/policy/model.safetensors")
    (saved,) = (folder / "checkpoints/global_step_2/actor/huggingface").glob("*.safetensors")
    after = load_file(saved)
    moved = [
        name
        for name in before
        if name in after and not torch.equal(before[name].float(), after[name].float())
    ]
    assert len(moved) > 0.9 * len(before)
    assert any("visual" in name for name in moved)


def test_validation_ran_on_held_out_seeds(run):
    folder, metrics, _, _ = run
    assert all(f"val-core/miniwob:{page}/acc/mean@1" in metrics[2] for page in PAGES)
    seeds = {t.seed for t in read_trajectories(folder / "trajectories") if t.validate}
    assert seeds and min(seeds) >= 1_000_000_000


def test_episodes_are_recorded_turn_by_turn(run):
    folder, _, _, _ = run
    episodes = list(read_trajectories(folder / "trajectories"))
    assert any(len(t.steps) == 2 for t in episodes if t.task_id == "miniwob:click-button-sequence")
    for episode in episodes:
        assert episode.env_failure is None
        assert all(
            step.screenshot.startswith(b"\x89PNG") and step.log_prob_mean <= 0 for step in episode.steps
        )
        assert episode.reward == pytest.approx(episode.score + episode.format_penalty)


def test_task_statistics_are_logged_and_saved(run):
    folder, metrics, _, _ = run
    stats = stats_of_checkpoint(folder / "checkpoints/global_step_2/data.pt")
    counted = {task_id: record.attempts + record.invalid for task_id, record in stats.items()}
    assert set(counted) <= {f"miniwob:{page}" for page in PAGES} and sum(counted.values()) == 2 * 4 * 4
    assert metrics[2]["tasks/seen"] == len(counted) and stats.step == 2


def test_report_is_written_and_named(run):
    folder, _, _, output = run
    assert (folder / "report.html").stat().st_size > 10_000
    assert "report.html" in output


def test_episodes_are_pictures_in_tensorboard(run):
    folder, _, _, _ = run
    board = EventAccumulator(str(folder / "tensorboard"))
    board.Reload()
    assert {"trajectories/train/0", "trajectories/val/0"} <= set(board.Tags()["images"])


def test_no_process_is_left(run):
    _, _, marker, _ = run
    key, _, value = marker.partition("=")
    left = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(key) == value:
                left.append((process.pid, process.cmdline()))
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    assert left == []
