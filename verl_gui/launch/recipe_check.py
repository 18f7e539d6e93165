"""Whether this machine has what a recipe needs: ``verl-gui doctor --recipe FILE``.

The recipe is composed and checked exactly as the trainer would, up to where devices are needed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_gui.launch.finding import Finding
from verl_gui.launch.recipe_needs import RecipeNeeds, recipe_needs

_GIB = 1024**3
_PROGRAMS = {"desktop": ("Xvfb", "openbox", "bwrap"), "miniwob": ("Xvfb", "chromium", "bwrap")}
_DOCKER = {"docker", "osworld-desktop-env"}


class RecipeError(ValueError):
    """The recipe cannot be composed, or verl or verl_gui refuse what it says."""


def compose_recipe(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The recipe's whole configuration, resolved, after verl's and our own checks.

    Args:
        path: the recipe's YAML file; paths inside it are relative to the current directory.
        overrides: Hydra overrides, as given to the recipe's script.

    Raises:
        RecipeError: what is wrong, in the words of whoever refused it.
    """
    file = Path(path).absolute()
    if not file.is_file():
        raise RecipeError(f"{path}: no such file")
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    from verl_gui.config import GuiConfig

    try:
        with initialize_config_dir(str(file.parent), version_base=None):
            config = compose(file.stem, overrides=list(overrides))
        with contextlib.redirect_stdout(io.StringIO()):
            validate_config(config, need_reference_policy(config), need_critic(config))
        GuiConfig.from_config(config)
        OmegaConf.resolve(config)
    except (HydraException, OmegaConfBaseException, ValueError, AssertionError, TypeError) as error:
        raise RecipeError(f"{file.name}: {type(error).__name__}: {error}") from error
    plain = OmegaConf.to_container(config)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def check_recipe(
    path: str | os.PathLike[str], overrides: Sequence[str], gpus: Sequence[str]
) -> list[Finding]:
    """Findings about a recipe on this machine; ``gpus`` are the names of the GPUs that are there."""
    try:
        config = compose_recipe(path, overrides)
    except RecipeError as error:
        return [Finding("recipe", str(error), "correct the recipe or the overrides", failed=True)]
    needs = recipe_needs(config)
    findings = [Finding("recipe", f"{Path(path)} composes; verl and verl_gui accept it")]
    for check in (
        _gpus(needs, len(gpus)),
        _estimates(needs, config),
        _memory(needs, _available_memory()),
        _environments(needs, config),
        _model(str(config["actor_rollout_ref"]["model"]["path"])),
        _task_files(config),
        _disk(needs, str(config["trainer"]["default_local_dir"])),
    ):
        findings.extend(check)
    return findings


def _gpus(needs: RecipeNeeds, here: int) -> Iterator[Finding]:
    if not needs.gpus:
        yield Finding("recipe: device", "CPU")
        return
    found = f"{needs.nodes} × {needs.gpus} GPUs needed, {here} here"
    fix = f"use a machine with {needs.gpus} GPUs" + (f", or trainer.n_gpus_per_node={here}" if here else "")
    short = here < needs.gpus
    yield Finding("recipe: device", found, fix if short else "", failed=short)
    if needs.nodes > 1 and not os.environ.get("RAY_ADDRESS"):
        yield Finding(
            "recipe: nodes",
            f"{needs.nodes} nodes, and RAY_ADDRESS is not set",
            "start Ray on all nodes (recipes/arpo/README.md) and set RAY_ADDRESS=auto",
        )


def _estimates(needs: RecipeNeeds, config: Mapping[str, Any]) -> Iterator[Finding]:
    rows = config["data"]["train_batch_size"] * config["actor_rollout_ref"]["rollout"]["n"]
    yield Finding(
        "recipe: trajectory",
        f"at most {needs.trajectory_tokens:,} tokens, {needs.image_tokens:,} a screenshot;"
        f" {needs.trajectory_memory / 2**20:.1f} MiB of host memory each, {_gib(needs.batch_memory)} for"
        f" the {rows} of a step; {_gib(needs.pixel_memory)} of pixels while training on one",
    )
    yield Finding(
        "recipe: KV cache",
        f"{_gib(needs.kv_memory)} for the longest sequence ({needs.model.source})",
    )


def _memory(needs: RecipeNeeds, available: int) -> Iterator[Finding]:
    found = f"about {_gib(needs.node_memory)} needed, {_gib(available)} available"
    if needs.node_memory <= available:
        yield Finding("recipe: memory", found)
        return
    fix = "fewer gui.env.num_envs, a smaller data.train_batch_size or a smaller model on this node"
    # Estimates are on the high side: half of them is a matter of fact
    yield Finding("recipe: memory", found, fix, failed=needs.node_memory > 2 * available)


def _environments(needs: RecipeNeeds, config: Mapping[str, Any]) -> Iterator[Finding]:
    where = f"on nodes with the Ray resource {needs.resource}" if needs.resource else "spread over all nodes"
    fits = max(0, int(_available_memory() * 0.7) // needs.env_memory)
    found = f"{needs.envs} × {needs.backend} {where}; memory here is enough for {fits}"
    short = not needs.resource and fits < needs.envs_per_node
    fix = f"gui.env.num_envs={max(1, fits) * needs.nodes}, or environments on other machines (backend remote)"
    yield Finding("recipe: environments", found, fix if short else "")
    if needs.resource:
        return  # the nodes that have the resource must be looked at, not this one
    missing = [name for name in _PROGRAMS.get(needs.backend, ()) if shutil.which(name) is None]
    if missing:
        yield Finding(
            "recipe: programs", f"missing: {', '.join(missing)}", "see `desktop` above", failed=True
        )
    if needs.backend == "miniwob" and importlib.util.find_spec("miniwob") is None:
        yield Finding("recipe: miniwob", "not installed", "pip install 'verl-gui[miniwob]'", failed=True)
    if needs.backend in _DOCKER:
        yield from _docker()
    if needs.backend == "osworld-desktop-env":
        yield from _virtual_machines(config)


def _docker() -> Iterator[Finding]:
    program = shutil.which("docker")
    error = "not installed"
    if program is not None:
        try:
            done = subprocess.run([program, "info"], capture_output=True, text=True, timeout=20)
            error = "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1:][0] or "no answer"
        except (subprocess.TimeoutExpired, IndexError):
            error = "no answer"
    fix = "install docker.io, start dockerd, and let this user reach its socket (group docker or DOCKER_HOST)"
    yield Finding("recipe: docker", error or "reachable", fix if error else "", failed=bool(error))


def _virtual_machines(config: Mapping[str, Any]) -> Iterator[Finding]:
    from verl_gui.envs.docker.kvm import usable_kvm

    if usable_kvm():
        yield Finding("recipe: KVM", "usable")
    else:
        fix = "use a machine with virtualization (bare metal, or nested), or gui.env.backend=desktop"
        yield Finding("recipe: KVM", "not usable: virtual machines run many times slower", fix, failed=True)
    python = config["gui"]["env"]["options"].get("osworld_python") or os.environ.get(
        "VERL_GUI_OSWORLD_PYTHON"
    )
    if not python or not os.access(python, os.X_OK):
        fix = "make the environment (docs/osworld.md) and set VERL_GUI_OSWORLD_PYTHON to its interpreter"
        yield Finding("recipe: OSWorld", f"no interpreter with desktop_env: {python}", fix, failed=True)


def _model(path: str) -> Iterator[Finding]:
    if (Path(path) / "config.json").is_file():
        yield Finding("recipe: model", path)
    elif Path(path).exists() or path.count("/") != 1 or path.startswith((".", "/", "~")):
        fix = "give a checkpoint: actor_rollout_ref.model.path, VERL_GUI_MODEL"
        yield Finding("recipe: model", f"{path} has no config.json", fix, failed=True)
    else:
        fix = "" if os.environ.get("HF_HUB_OFFLINE") != "1" else "HF_HUB_OFFLINE=1: it must be in the cache"
        yield Finding("recipe: model", f"{path} from Hugging Face, if it is not in the cache", fix)


def _task_files(config: Mapping[str, Any]) -> Iterator[Finding]:
    sources = [*_listed(config["data"]["train_files"]), *_listed(config["data"]["val_files"])]
    paths = {source.split("@")[0] for source in sources if not source.startswith("miniwob:")} - {"desktop"}
    missing = sorted(path for path in paths if not Path(path).expanduser().exists())
    if missing:
        fix = "set VERL_GUI_TRAIN_TASKS and VERL_GUI_VAL_TASKS, or data.train_files and data.val_files"
        yield Finding("recipe: tasks", f"no such file: {', '.join(missing)}", fix, failed=True)
    else:
        yield Finding("recipe: tasks", ", ".join(dict.fromkeys(sources)))


def _disk(needs: RecipeNeeds, directory: str) -> Iterator[Finding]:
    place = Path(directory).absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    found = f"about {_gib(needs.run_bytes)} for checkpoints and trajectories, {_gib(free)} free at {place}"
    short = free < needs.run_bytes
    fix = "run_dir on a larger disk, a smaller trainer.max_actor_ckpt_to_keep, or trainer.save_freq=-1"
    yield Finding("recipe: disk", found, fix if short else "", failed=free < needs.run_bytes // 2)


def _available_memory() -> int:
    facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(facts["MemAvailable"].split()[0]) * 1024


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or [])


def _gib(number: float) -> str:
    return f"{number / _GIB:.1f} GiB"
