"""The rollout worker fails in a weight sync of a real run: the run ends with that error, and soon."""

import os
import subprocess
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]

# Loaded by verl in every process, vLLM's worker included. The first sync (the initial weights) passes.
DRILL = """
import os, time
from verl_gui.compat import after_import

syncs = 0

def break_the_second_sync(utils):
    extension = utils.vLLMColocateWorkerExtension
    original = extension.update_weights_from_ipc

    def update_weights_from_ipc(self, *args, **kwargs):
        global syncs
        syncs += 1
        return original(self, *args, **kwargs)

    load = extension._update_weights

    def _update_weights(self, *args, **kwargs):
        if syncs < 2:
            return load(self, *args, **kwargs)
        with open(os.environ["DRILL_TIME_FILE"], "w") as file:
            file.write(str(time.time()))
        if os.environ["DRILL_KIND"] == "die":
            os.kill(os.getpid(), 9)
        raise RuntimeError("DRILL: the worker refuses the weights")

    extension.update_weights_from_ipc = update_weights_from_ipc
    extension._update_weights = _update_weights

after_import("verl.workers.rollout.vllm_rollout.utils", break_the_second_sync)
"""


@pytest.mark.parametrize("kind", ["raise", "die"])
def test_run_ends_with_the_first_error_in_bounded_time(tmp_path, kind):
    (tmp_path / "weight_sync_drill.py").write_text(DRILL)
    failed_at = tmp_path / "failed_at"
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "VERL_USE_EXTERNAL_MODULES": "verl_gui.plugin,weight_sync_drill",
        "VERL_GUI_WEIGHT_SYNC_TIMEOUT_S": "60",
        "VERL_GUI_RUN_DIR": str(tmp_path / "run"),
        "DRILL_TIME_FILE": str(failed_at),
        "DRILL_KIND": kind,
    }
    overrides = [
        "trainer.total_training_steps=3",
        "trainer.val_before_train=false",
        "trainer.logger=[console]",
        "data.train_batch_size=2",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.rollout.n=2",
        "gui.env.num_envs=1",
        "data.train_files=[miniwob:click-test-2@train:8]",
        "data.val_files=[miniwob:click-test-2@test:1]",
    ]
    done = subprocess.run(
        [ROOT / "recipes/quickstart/run.sh", *overrides],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=840,
    )
    ended_at = time.time()
    log = (tmp_path / "run/train.log").read_text(errors="replace")
    assert failed_at.exists(), f"the drill was never reached:\n{log[-3000:]}"
    assert done.returncode != 0
    assert ended_at - float(failed_at.read_text()) < 120
    if kind == "raise":
        assert "DRILL: the worker refuses the weights" in log
    assert "exported pointers" not in log
