"""The grid of benchmarks/arpo_vs_grpo without training: settings, caching, curves, table."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "benchmarks/arpo_vs_grpo"


@pytest.fixture
def grid():
    return yaml.safe_load((FOLDER / "grid.yaml").read_text())


@pytest.fixture
def bench(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("arpo_vs_grpo_run", FOLDER / "run.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"id": "a"}\n')
    monkeypatch.setattr(module, "TASKS", tasks)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    return module


def metrics(directory, steps):
    directory.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"step": step, "data": data}) for step, data in steps.items()]
    (directory / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def validation(success):
    return {"val-core/miniwob:a/acc/mean@4": success}


def test_every_variant_runs_with_every_seed_and_the_same_budget(bench, grid, tmp_path):
    runs = bench.grid_runs(grid, tmp_path)
    assert len(runs) == len({run.directory for run in runs}) == len(grid["variants"]) * len(grid["seeds"])
    for key in ("data.train_batch_size", "actor_rollout_ref.rollout.n", "trainer.total_training_steps"):
        assert len({run.overrides[key] for run in runs}) == 1
    assert [run.seed for run in runs] == sorted(run.seed for run in runs)


def test_verl_reads_the_settings(bench, grid, tmp_path, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    grid["seeds"] = grid["seeds"][:1]
    for run in bench.grid_runs(grid, tmp_path):
        with initialize_config_dir(str(bench.RECIPE), version_base=None):
            config = compose("quickstart", overrides=bench.hydra(run.overrides))
        assert config.algorithm.adv_estimator == ("grpo" if run.variant == "grpo" else "arpo")
        assert config.data.seed == run.seed
        assert config.actor_rollout_ref.actor.clip_ratio_high == 0.3
        assert config.actor_rollout_ref.actor.optim.lr == 2e-4
        sampler = config.trainer.v1.sampler.custom_sampler
        assert sampler.name == ("GuiSampler" if run.variant == "grpo" else "SuccessReplaySampler")
        assert list(config.data.train_files) == ["benchmarks/arpo_vs_grpo/tasks.jsonl"]


def test_a_run_is_known_by_what_it_depends_on(bench, grid, tmp_path):
    before = {(run.variant, run.seed): run.directory for run in bench.grid_runs(grid, tmp_path)}
    assert before == {(run.variant, run.seed): run.directory for run in bench.grid_runs(grid, tmp_path)}
    bench.TASKS.write_text('{"id": "b"}\n')
    assert all(before[run.variant, run.seed] != run.directory for run in bench.grid_runs(grid, tmp_path))
    bench.TASKS.write_text('{"id": "a"}\n')
    grid["variants"]["grpo"]["trainer"] = {"test_freq": 3}
    changed = {run.variant for run in bench.grid_runs(grid, tmp_path) if run.directory not in before.values()}
    assert changed == {"grpo"}


@pytest.mark.parametrize(
    ("key", "item", "other"),
    [("trainer", {"total_training_steps": 3}, False), ("actor_rollout_ref", {"rollout": {"top_k": 5}}, True)],
)
def test_a_run_depends_on_what_it_takes_from_the_recipe(bench, grid, tmp_path, monkeypatch, key, item, other):
    before = bench.recipe_digest(grid)
    recipe = OmegaConf.load(bench.RECIPE / "quickstart.yaml")
    monkeypatch.setattr(bench, "RECIPE", tmp_path)
    OmegaConf.save(OmegaConf.merge(recipe, {key: item}), tmp_path / "quickstart.yaml")
    assert (bench.recipe_digest(grid) != before) is other


def test_a_run_is_done_when_it_ended_well_with_all_its_steps(bench, grid, tmp_path, monkeypatch):
    run = bench.grid_runs(grid, tmp_path)[0]
    last = run.overrides["trainer.total_training_steps"]
    recipe = tmp_path / "recipe"
    recipe.mkdir()
    monkeypatch.setattr(bench, "RECIPE", recipe)
    for steps, status, expected in ((last, 1, False), (last - 1, 0, False), (last, 0, True)):
        script = recipe / "run.sh"
        script.write_text(f"#!/bin/sh\nexit {status}\n")
        script.chmod(0o755)
        metrics(run.directory, {steps: validation(0.5)})
        assert (bench.train(run) == 0) is expected
        assert run.result.is_file() is expected
    (result,) = bench.finished(grid)
    assert result["points"] == [{"step": last, "env_steps": 0, "success": 0.5}]
    assert len(result["commit"]) == 40 and result["fingerprint"] == run.fingerprint
    bench.TASKS.write_text('{"id": "another"}\n')
    assert bench.finished(grid) == []


def test_environment_steps_add_up_over_a_resumed_run(bench, grid, tmp_path):
    run = bench.grid_runs(grid, tmp_path)[0]
    steps = {0: validation(0.1)} | {step: {bench.ENV_STEPS: 100.0} for step in (1, 2, 3)}
    metrics(run.directory, steps)
    (run.directory / "metrics.jsonl").rename(run.directory / "metrics-1.jsonl")
    metrics(run.directory, {3: {bench.ENV_STEPS: 90.0}, 4: {bench.ENV_STEPS: 110.0, **validation(0.6)}})
    rows = bench.points(run)
    assert [(row["step"], row["env_steps"], row["success"]) for row in rows] == [(0, 0, 0.1), (4, 400, 0.6)]


def result(variant, seed, *points, injected=0):
    return {
        "variant": variant,
        "seed": seed,
        "commit": "c" * 40,
        "fingerprint": {"recipe": "r"},
        "injected": injected,
        "points": [
            {"step": i, "env_steps": at, "success": success} for i, (at, success) in enumerate(points)
        ],
    }


def test_the_table_compares_at_the_budget_that_all_have(bench):
    results = [
        result("grpo", 1, (0, 0.1), (100, 0.2), (200, 0.4)),
        result("grpo", 2, (0, 0.1), (100, 0.1), (220, 0.3)),
        result("arpo", 1, (0, 0.1), (100, 0.5), (210, 0.6), injected=7),
    ]
    lines = bench.table(results, 0.5).splitlines()
    assert "after 200 environment steps" in lines[0]
    assert lines[2] == "| grpo | 2 | 10.0% | 33.3% (26.7% to 40.0%) | not reached, not reached | 0, 0 |"
    assert lines[3].endswith("| 100 | 7 |")


def test_the_report_says_what_was_measured_and_by_what(bench, tmp_path):
    points, picture = tmp_path / "points.csv", tmp_path / "picture.png"
    with pytest.raises(SystemExit, match="no run is finished"):
        bench.report([], 0.5, points, picture)
    text = bench.report([result("grpo", 1, (0, 0.1), (50, 0.5))], 0.5, points, picture)
    assert text.endswith("made by commit cccccccccc, recipe r")
    assert points.read_text().splitlines() == [
        "variant,seed,step,env_steps,success",
        "grpo,1,0,0,0.1",
        "grpo,1,1,50,0.5",
    ]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_pages_take_turns(bench):
    tasks = [{"id": page, "seed": seed} for page in "ab" for seed in range(3)]
    assert [(t["id"], t["seed"]) for t in bench.in_turn(tasks, 3)] == [("a", 0), ("b", 0), ("a", 1)]
    assert bench.in_turn([], 3) == []
