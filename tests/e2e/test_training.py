"""ARPO through everything that is real: verl, Ray, vLLM, Chromium on an X server.

The trainer is killed (SIGKILL) after its second checkpoint and the run goes on from there, now with recorded
successes to replay. A second, short run trains asynchronously: episodes go on while the policy is trained.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from verl_gui.replay.view import open_buffer
from verl_gui.rollout.trajectory import read_trajectories
from verl_gui.tasks.stats_view import stats_of_checkpoint

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
PAGES = ("click-test-2", "click-button-sequence")  # one turn, two turns
OVERRIDES = [
    "trainer.total_training_steps=3",
    "trainer.val_before_train=false",
    "trainer.test_freq=3",
    "trainer.save_freq=1",
    "trainer.logger=[console,file,tensorboard]",
    "data.train_batch_size=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.n=4",
    "gui.env.num_envs=2",
    "gui.report.train_every=1",
    f"data.train_files=[{','.join(f'miniwob:{page}@train:8' for page in PAGES)}]",
    f"data.val_files=[{','.join(f'miniwob:{page}@test:2' for page in PAGES)}]",
]


def start(folder, log, *overrides):
    environment = {**os.environ, "VERL_GUI_RUN_DIR": str(folder), "VERL_GUI_TEST_RUN": str(folder)}
    return subprocess.Popen(
        [ROOT / "recipes/arpo/run_miniwob_cpu.sh", *OVERRIDES, *overrides],
        cwd=ROOT,
        env=environment,
        stdout=log,
        stderr=subprocess.STDOUT,
    )


def left_over(folder):
    """Processes that belong to the run, by a variable in their environment."""
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
            if process.environ().get("VERL_GUI_TEST_RUN") == str(folder):
                left.append((process.pid, process.cmdline()))
    return left


def kill_after_step(run, folder, step, timeout_s=600):
    """SIGKILL the trainer once the checkpoint of ``step`` is complete and its metrics are written."""
    checkpoint, metrics = folder / "checkpoints/latest_checkpointed_iteration.txt", folder / "metrics.jsonl"
    deadline = time.monotonic() + timeout_s
    while not (
        checkpoint.exists()
        and checkpoint.read_text().strip() == str(step)
        and any(json.loads(line)["step"] == step for line in metrics.read_text().splitlines(keepends=True)
                if line.endswith("\n"))
    ):  # fmt: skip
        assert run.poll() is None, f"the run ended with {run.returncode} before step {step}"
        assert time.monotonic() < deadline, f"no checkpoint of step {step} in {timeout_s} s"
        time.sleep(0.1)
    for process in psutil.Process(run.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "verl.trainer.main_ppo" in process.cmdline():
                process.send_signal(signal.SIGKILL)


def record_successes(folder):
    """A scripted expert's successes on the training tasks, as a file for replay."""
    tasks = [f"miniwob:{page}@train:8" for page in PAGES]
    recipe = "recipes/quickstart/quickstart.yaml"
    record = [
        "tasks",
        "record",
        *tasks,
        "--config",
        recipe,
        "--num-envs",
        "2",
        "--out",
        str(folder / "demos"),
    ]
    out = str(folder / "successes.safetensors")
    imported = ["replay", "import", str(folder / "demos/demonstrations"), "--recipe", recipe, "--out", out]
    for command in (record, imported):
        subprocess.run([sys.executable, "-m", "verl_gui.cli", *command], cwd=ROOT, check=True, timeout=300)
    return out


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The run's directory, its metrics by step, and what it printed."""
    folder = tmp_path_factory.mktemp("arpo")
    output = folder.with_name(f"{folder.name}.out")

    def tell():
        logs = sorted(folder.glob("*.log"), key=lambda path: path.stat().st_mtime)
        tail = logs[-1].read_text(errors="replace")[-3000:] if logs else "(no log)"
        return f"{output.read_text()[-3000:]}\n--- {logs[-1:]} ---\n{tail}"

    with open(output, "w") as log:
        first = start(folder, log)
        kill_after_step(first, folder, 2)
        assert first.wait(180) != 0, "a killed trainer passed for a finished run"
        after_the_kill = left_over(folder)
        successes = record_successes(folder)
        second = start(folder, log, f"++gui.replay.path={successes}")
        assert second.wait(600) == 0, tell()
    return folder, metrics_by_step(folder), after_the_kill, output.read_text()


def metrics_by_step(folder):
    metrics = {}
    for file in sorted(folder.glob("metrics*.jsonl"), key=lambda path: path.stat().st_mtime):
        for line in file.read_text().splitlines():
            entry = json.loads(line)
            metrics.setdefault(entry["step"], {}).update(entry["data"])
    return metrics


def test_a_killed_trainer_leaves_no_process(run):
    _, _, after_the_kill, _ = run
    assert after_the_kill == []


def test_every_step_trained_once_it_counted(run):
    _, metrics, _, _ = run
    assert {1, 2, 3} <= set(metrics)
    for step in (1, 2, 3):
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
    (saved,) = (folder / "checkpoints/global_step_3/actor/huggingface").glob("*.safetensors")
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
    assert all(f"val-core/miniwob:{page}/acc/mean@1" in metrics[3] for page in PAGES)
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


def test_task_statistics_are_logged_saved_and_resumed(run):
    folder, metrics, _, _ = run
    for step in (2, 3):
        stats = stats_of_checkpoint(folder / f"checkpoints/global_step_{step}/data.pt")
        counted = {task_id: record.attempts + record.invalid for task_id, record in stats.items()}
        assert set(counted) <= {f"miniwob:{page}" for page in PAGES}
        assert sum(counted.values()) == step * 4 * 4 and stats.step == step
        assert metrics[step]["tasks/seen"] == len(counted)


def test_the_order_of_tasks_goes_on_where_it_was(run):
    folder, _, _, _ = run
    played = {}
    for episode in read_trajectories(folder / "trajectories", with_screenshots=lambda _: False):
        if not episode.validate:
            played.setdefault(episode.global_step, set()).add((episode.task_id, episode.seed))
    assert [len(played[step]) for step in (1, 2, 3)] == [4, 4, 4]
    assert not played[1] & played[2] and not played[3] & (played[1] | played[2])


def test_successes_survive_the_kill_and_recorded_ones_are_replayed(run):
    folder, metrics, _, _ = run
    before, after = (open_buffer(folder / f"checkpoints/global_step_{step}/data.pt").tasks for step in (2, 3))
    for task, stored in before.items():
        assert {success.fingerprint for success in stored} <= {success.fingerprint for success in after[task]}
    recorded = open_buffer(folder / "successes.safetensors").tasks
    assert len(recorded) == 2 * 8 and set(recorded) <= set(after)
    assert metrics[1]["training/replay/injected"] == metrics[2]["training/replay/injected"] == 0
    injected = metrics[3]["training/replay/injected"]
    assert injected >= 1
    # The expert's log-probs are unknown: nothing may be weighed by them.
    assert metrics[3]["training/replay/is_ratio_mean"] == pytest.approx(1.0)


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
    folder, _, _, _ = run
    assert left_over(folder) == []


@pytest.fixture(scope="module")
def asynchronous_run(run, tmp_path_factory):
    """The directory and the metrics of a run in which rollouts overlap training (``colocate_async``)."""
    recorded = run[0] / "successes.safetensors"
    folder = tmp_path_factory.mktemp("async")
    output = folder.with_name(f"{folder.name}.out")
    with open(output, "w") as log:
        started = start(
            folder,
            log,
            "trainer.v1.trainer_mode=colocate_async",
            "trainer.v1.sampler.custom_sampler.name=SuccessReplaySamplerAsync",
            "trainer.test_freq=-1",
            "trainer.save_freq=-1",
            f"++gui.replay.path={recorded}",
        )
        assert started.wait(600) == 0, output.read_text()[-3000:]
    return folder, metrics_by_step(folder)


def test_asynchronous_training_replays_successes_too(asynchronous_run):
    folder, metrics = asynchronous_run
    assert {1, 2, 3} <= set(metrics)
    for step in (1, 2, 3):
        assert metrics[step]["actor/grad_norm"] > 0
        assert metrics[step]["training/replay/size_mb"] > 0
    assert sum(metrics[step]["training/replay/injected"] for step in (1, 2, 3)) >= 1
    assert left_over(folder) == []
