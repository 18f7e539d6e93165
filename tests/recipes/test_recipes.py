"""Every recipe composes against verl's schema, passes verl's checks and ours, and explains its keys."""

import functools
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from verl_gui.launch import recipe_check
from verl_gui.launch.recipe_check import RecipeError, compose_recipe

REPOSITORY = Path(__file__).parents[2]
FOLDERS = [REPOSITORY / "recipes/arpo", REPOSITORY / "recipes/grpo_gui"]
RECIPES = sorted(path for folder in FOLDERS for path in folder.glob("*.yaml") if "hydra:" in path.read_text())
SCRIPTS = sorted(path for folder in FOLDERS for path in folder.glob("*.sh"))
PARTS = sorted({path for folder in FOLDERS for path in folder.glob("*.yaml")} - set(RECIPES))


def name(path):
    return f"{path.parent.name}/{path.stem}"


@pytest.fixture(autouse=True)
def in_repository(monkeypatch):
    monkeypatch.chdir(REPOSITORY)


def laptop_overrides(script):
    """The overrides that a script puts over the quickstart, read by bash itself."""
    text = script.read_text()
    block = text[text.index("overrides=(") : text.index("\n)\n") + 3]
    done = subprocess.run(
        ["bash", "-c", f'{block}printf "%s\\n" "${{overrides[@]}}"'],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@functools.cache
def settings(path):
    return compose_recipe(path)


@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_composes_and_is_accepted(path):
    config = settings(path)
    rollout, actor = config["actor_rollout_ref"]["rollout"], config["actor_rollout_ref"]["actor"]
    assert rollout["agent"]["default_agent_loop"] == "gui"
    assert rollout["n"] == 8 and rollout["temperature"] == 1.0
    assert (actor["clip_ratio_low"], actor["clip_ratio_high"], actor["clip_ratio_c"]) == (0.2, 0.3, 3.0)
    assert not actor["use_kl_loss"] and not config["algorithm"]["use_kl_in_reward"]
    assert actor["optim"]["lr"] == 1e-6
    assert config["gui"]["reward"]["format_penalty"] == -0.5
    assert (
        config["data"]["max_prompt_length"] + config["data"]["max_response_length"]
        <= rollout["max_model_len"]
    )
    images = rollout["engine_kwargs"]["vllm"]["limit_mm_per_prompt"]
    assert images == {"image": config["gui"]["rollout"]["history_images"], "video": 0}
    replays = path.parent.name == "arpo"
    assert config["algorithm"]["adv_estimator"] == ("arpo" if replays else "grpo")
    sampler = config["trainer"]["v1"]["sampler"]["custom_sampler"]["name"]
    assert sampler == ("SuccessReplaySampler" if replays else "GuiSampler")


def test_the_sizes_of_the_paper():
    full = settings(REPOSITORY / "recipes/arpo/osworld_full.yaml")
    assert (full["trainer"]["nnodes"], full["trainer"]["n_gpus_per_node"]) == (2, 8)
    assert full["gui"]["env"]["num_envs"] == full["data"]["train_batch_size"] * 8 == 128
    assert (full["gui"]["rollout"]["max_steps"], full["gui"]["rollout"]["history_images"]) == (15, 15)
    small = settings(REPOSITORY / "recipes/arpo/osworld_subset32.yaml")
    assert (small["trainer"]["nnodes"], small["trainer"]["n_gpus_per_node"]) == (1, 8)
    assert small["gui"]["env"]["num_envs"] == 16


@pytest.mark.parametrize("recipe", ["osworld_full", "osworld_subset32"])
def test_a_baseline_differs_in_its_method_only(recipe):
    arpo, grpo = (settings(folder / f"{recipe}.yaml") for folder in FOLDERS)
    different = {key for key in flat(arpo) | flat(grpo) if flat(arpo).get(key) != flat(grpo).get(key)}
    names = {"run_dir", "gui.report.dir", "trainer.experiment_name", "trainer.default_local_dir"}
    method = {"algorithm.adv_estimator", "trainer.v1.sampler.custom_sampler"}
    allowed = ("gui.replay.", "algorithm.rollout_correction.", *names, *method)
    assert {key for key in different if not key.startswith(allowed) and "experiment_name" not in key} == set()
    assert "algorithm.adv_estimator" in different


def flat(node, prefix=""):
    if not isinstance(node, dict):
        return {prefix.rstrip("."): str(node)}
    return {key: value for k, child in node.items() for key, value in flat(child, f"{prefix}{k}.").items()}


@pytest.mark.parametrize(
    "script", [s for s in SCRIPTS if "quickstart" in s.read_text()], ids=lambda s: name(s)
)
def test_the_laptop_recipes_are_the_quickstart_with_overrides(script):
    config = compose_recipe("recipes/quickstart/quickstart.yaml", laptop_overrides(script))
    replays = script.parent.name == "arpo"
    assert config["algorithm"]["adv_estimator"] == ("arpo" if replays else "grpo")
    assert config["trainer"]["device"] == "cpu"


@pytest.mark.parametrize("script", SCRIPTS, ids=name)
def test_scripts_are_programs_that_start_what_exists(script):
    assert script.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", script], check=True)
    text = script.read_text()
    for word in re.findall(r"recipes/[\w/.]+", text):
        assert (REPOSITORY / word).exists(), word
    last = shlex.split(text.splitlines()[-1])
    assert last[-1] == "$@"
    if "launch.sh" in last[1]:
        folder, recipe = last[2:4]
        assert folder == script.parent.name and (script.parent / f"{recipe}.yaml").is_file()


def test_the_launcher_hands_recipe_and_arguments_on(tmp_path):
    """With programs of ours in the place of ``verl-gui``: what it would be started with."""
    program = tmp_path / "verl-gui"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    text = (REPOSITORY / "recipes/launch.sh").read_text()
    copy = tmp_path / "recipes/launch.sh"
    copy.parent.mkdir()
    copy.write_text(text)
    copy.chmod(0o755)
    done = subprocess.run(
        [copy, "arpo", "desktop", "trainer.nnodes=3"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "VERL_GUI_RUN_DIR": "out"},
        capture_output=True,
        text=True,
        check=True,
    )
    doctor, run = done.stdout.splitlines()
    assert doctor == "doctor --recipe recipes/arpo/desktop.yaml -- trainer.nnodes=3"
    assert run.startswith("run --dir out -- python -m verl.trainer.main_ppo --config-path")
    assert run.endswith("recipes/arpo --config-name desktop trainer.nnodes=3")


@pytest.mark.parametrize("path", RECIPES + PARTS, ids=name)
def test_every_block_of_keys_is_explained(path):
    """A key has a comment above, or stands directly below one that has."""
    lines = path.read_text().splitlines()
    explained = False
    for line in lines[lines.index("") :]:
        if line.lstrip().startswith("#"):
            explained = True
        elif not line.strip():
            explained = False
        elif line.rstrip().endswith(":"):
            explained = explained or line.startswith(
                ("gui", "data", "actor", "trainer", "algorithm", "hydra")
            )
        else:
            owner = line.startswith(("run_dir", "  - "))
            assert explained or owner, f"{path.name}: no comment for {line.strip()}"


def test_what_verl_or_verl_gui_refuse_is_refused_by_name():
    recipe = "recipes/grpo_gui/osworld_subset32.yaml"
    with pytest.raises(RecipeError, match="max_stepz"):
        compose_recipe(recipe, ["+gui.rollout.max_stepz=3"])
    with pytest.raises(RecipeError, match="train_batch_sise"):
        compose_recipe(recipe, ["data.train_batch_sise=3"])
    cold = ["actor_rollout_ref.rollout.temperature=0", "actor_rollout_ref.rollout.val_kwargs.do_sample=true"]
    with pytest.raises(RecipeError, match="temperature should be greater than 0"):
        compose_recipe(recipe, cold)
    with pytest.raises(RecipeError, match="no such file"):
        compose_recipe("recipes/arpo/nowhere.yaml")


@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_the_doctor_says_what_is_missing_here_and_how_to_get_it(path):
    findings = recipe_check.check_recipe(path, ["actor_rollout_ref.model.path=nowhere"], [])
    assert not findings[0].failed, findings[0].found
    assert all(finding.fix for finding in findings if finding.failed)
    failed = {finding.name for finding in findings if finding.failed}
    assert {"recipe: device", "recipe: model"} <= failed
    assert ("recipe: tasks" in failed) == ("osworld" in path.stem)


def test_the_doctor_finds_the_quickstart_fit_for_a_laptop():
    findings = recipe_check.check_recipe("recipes/quickstart/quickstart.yaml", [], [])
    here = {finding.name: finding for finding in findings}
    assert not here["recipe: device"].failed and not here["recipe: model"].failed
    assert not here["recipe: tasks"].failed and not here["recipe"].failed
