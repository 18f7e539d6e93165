"""Every example runs."""

import importlib
import io
import json
import subprocess
from pathlib import Path

import pytest
import torch
from PIL import Image

from verl_gui.actions import Action, ActionFormatError, ActionType, format_actions, parse
from verl_gui.envs.checker import check_env
from verl_gui.rollout.trajectory import Trajectory, TrajectoryStep, TrajectoryWriter
from verl_gui.tasks.task import Task
from verl_gui.warmstart.demonstrations import load_demonstrations

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = REPOSITORY / "examples"
TASK = {"id": "square", "instruction": "Click the red square.", "config": [], "evaluator": {"func": "none"}}


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY))
    return lambda name: importlib.import_module(f"examples.{name}")


def test_every_example_has_a_test():
    text = Path(__file__).read_text()
    names = [path.stem for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh")]
    assert [name for name in names if name != "__init__" and text.count(name) < 2] == []


def test_custom_environment(example):
    module = example("custom_environment")
    check_env(module.SquareEnv(), Task.from_dict(TASK), seed=3)
    env = module.SquareEnv()
    picture = Image.open(io.BytesIO(env.reset(Task.from_dict(TASK), seed=4).screenshot)).convert("RGB")
    red = [(x, y) for x in range(224) for y in range(224) if picture.getpixel((x, y)) == (255, 0, 0)]
    (left, top), (right, bottom) = red[0], red[-1]
    for x, y, score in ((left, top, 1), (right, bottom, 1), (left - 1, top, 0), (right, bottom + 1, 0)):
        env.reset(Task.from_dict(TASK), seed=4)
        env.step([Action(ActionType.CLICK, x=x, y=y)])
        assert env.evaluate() == score
    lines = (EXAMPLES / "custom_environment.py").read_text().splitlines()
    assert len(lines) <= 60


def test_custom_grammar(example):
    example("custom_grammar")
    sizes = {"frame": (100, 50), "screen": (200, 100)}
    found = parse("The button is on the left.\ntap 10 20", grammar="plain", **sizes)
    assert found.thought == "The button is on the left."
    assert [(a.type, a.x, a.y) for a in found.actions] == [(ActionType.CLICK, 20, 40)]
    for action in (
        Action(ActionType.CLICK, x=20, y=40),
        Action(ActionType.TYPE, text="hé llo"),
        Action(ActionType.FINISHED),
    ):
        text = format_actions([action], grammar="plain", thought="so", **sizes)
        assert parse(text, grammar="plain", **sizes).actions == [action]
    assert parse("tap 99999 99999", grammar="plain", **sizes).actions[0].x == 199
    for text in ("", "tap", "tap -1 2", "tap 1 2\nthen", "write", "écrire x"):
        with pytest.raises(ActionFormatError):
            parse(text, grammar="plain", **sizes)


def test_custom_estimator(example):
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    example("custom_estimator")
    rewards = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 0.0], [0.0, 9.0], [0.0, 5.0]])
    mask = torch.tensor([[1, 1], [1, 1], [1, 0], [0, 0], [1, 1]])
    index = ["a", "a", "a", "a", "b"]
    advantages, returns = get_adv_estimator_fn("median")(rewards, mask, index=index, config=None)
    assert advantages.tolist() == [[1, 1], [0, 0], [0, 0], [0, 0], [0, 0]]
    assert torch.equal(advantages, returns)


def test_import_demonstrations(example, tmp_path):
    data = io.BytesIO()
    Image.new("RGB", (56, 28), "white").save(data, "PNG")
    action = {"type": "click", "x": 5.0, "y": 6.0}
    writer = TrajectoryWriter(tmp_path / "demos")
    for score in (1.0, 0.0):
        writer.write(
            Trajectory(
                task_id="t",
                instruction="Click.",
                seed=1,
                uid=f"u{score}",
                global_step=0,
                validate=False,
                score=score,
                format_penalty=0.0,
                reward=score,
                num_turns=1,
                screen=(56, 28),
                frame=(56, 28),
                steps=[TrajectoryStep(data.getvalue(), "Action: click(…)", actions=[action])],
                outcome="terminated",
            )
        )
    writer.close()
    file = tmp_path / "demos.pt"
    assert example("import_demonstrations").main(str(tmp_path / "demos"), str(file)) == 1
    (demo,) = load_demonstrations(file)
    assert demo.instruction == "Click." and demo.targets == [(5.0, 6.0)]
    with pytest.raises(SystemExit, match="no successful trajectory"):
        example("import_demonstrations").main(str(tmp_path / "nothing"), str(file))


def test_use_env_server(example, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.syspath_prepend(str(REPOSITORY / "tests/envs"))
    from server_tools import serving

    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps(TASK) + "\n")
    with serving(backend="examples.custom_environment:SquareEnv") as url:
        assert example("use_env_server").main(url, str(tasks)) in (0.0, 1.0)


@pytest.mark.desktop
def test_evaluate_checkpoint_script_with_a_policy_that_needs_no_model(tmp_path):
    """The same command line with a script in place of the checkpoint; vLLM has its own tests."""
    script = EXAMPLES / "evaluate_checkpoint.sh"
    command = ["bash", str(script), "expert", str(tmp_path / "out"), "--runs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "pass@1" in done.stdout and (tmp_path / "out/evaluation.json").is_file()


def test_evaluate_checkpoint_script_is_sound():
    subprocess.run(["bash", "-n", str(EXAMPLES / "evaluate_checkpoint.sh")], check=True)
