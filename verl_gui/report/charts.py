"""Which curves a report shows. A curve without data is left out, and so is a chart without curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verl_gui.report import metrics

Steps = Mapping[int, Mapping[str, float]]
Points = Sequence[tuple[int, float]]

_FAILURES = "env/failures/"

# verl's timers, in the order of a step. Other timers lie inside these.
_PARTS = {
    "rollout": "gen",
    "reward": "reward",
    "old log-probs": "old_log_prob",
    "reference": "ref",
    "values": "values",
    "advantage": "adv",
    "critic update": "update_critic",
    "actor update": "update_actor",
    "weight sync": "update_weights",
    "checkpoint": "save_checkpoint",
}


def charts(steps: Steps, failures: Mapping[int, int]) -> list[dict[str, Any]]:
    """The charts of a run.

    Args:
        steps: metrics by step.
        failures: recorded environment failures by step.

    Returns:
        Charts as ``{"title", "note", "kind": "line" | "stack", "range": [low, high] or None, "lines":
        [{"label", "points": [(step, value), …]}, …]}``.
    """
    candidates = [
        _chart(
            "Success rate",
            {
                "validation": metrics.series(steps, metrics.VALIDATION_SUCCESS),
                "training rollouts": metrics.series(steps, metrics.TRAIN_SUCCESS),
            },
            limits=(0.0, 1.0),
        ),
        _chart(
            "Reward",
            {
                "reward": _named(steps, "critic/rewards/mean", "critic/score/mean"),
                "score": _named(steps, "reward/score", "reward/score/mean"),
                "format penalty": _named(steps, "reward/format", "reward/format/mean"),
            },
            note="mean over the episodes of a step",
        ),
        _chart("Seconds per step", _seconds(steps), kind="stack", note="validation comes on top of the step"),
        _chart("Throughput", {"episodes per minute of rollout": _episodes_per_minute(steps)}),
        _chart(
            "Tokens per second",
            {"tokens/s": _named(steps, "perf/throughput")},
            note="per device, as verl counts",
        ),
        _chart(
            "Rollout versus actor",
            {
                "mean": _named(steps, "training/rollout_probs_diff_mean"),
                "standard deviation": _named(steps, "training/rollout_probs_diff_std"),
            },
            note="difference of token probabilities; large means that the two disagree about the policy",
        ),
        _chart(
            "Environments",
            {"held by an episode": _named(steps, "env/utilisation"), "working": _named(steps, "env/working")},
            limits=(0.0, 1.0),
            note="share of all environments",
        ),
        _chart(
            "Environment latency",
            {
                f"{what} {share}": _named(steps, f"env/{what}_s/{share}")
                for what in ("reset", "step", "evaluate", "lease")
                for share in ("p50", "p95")
            },
            note="seconds; median and 95th percentile",
        ),
        _chart("Environment failures", _failures(steps, failures), note="environments lost, by what failed"),
        _chart(
            "Malformed answers", {"share of episodes": _named(steps, "reward/malformed")}, limits=(0.0, 1.0)
        ),
        _chart("Entropy", {"entropy": _named(steps, "actor/entropy")}, note="nats per token"),
        _chart(
            "Actor update",
            {
                "gradient norm": _named(steps, "actor/grad_norm"),
                "clipped share": _named(steps, "actor/pg_clipfrac"),
            },
        ),
        _chart(
            "Answers per episode",
            {
                "mean": _named(steps, "training/num_turns/mean"),
                "most": _named(steps, "training/num_turns/max"),
            },
            note="as verl counts turns: prompts and answers",
        ),
        _chart("Memory", {"GiB of the machine in use": _named(steps, "perf/cpu_memory_used_gb")}),
        _chart("Replay", {name.split("/", 1)[1]: _named(steps, name) for name in _names(steps, "replay/")}),
    ]
    return [chart for chart in candidates if chart["lines"]]


def _chart(
    title: str,
    lines: Mapping[str, Points],
    *,
    kind: str = "line",
    limits: tuple[float, float] | None = None,
    note: str = "",
) -> dict[str, Any]:
    drawn = [{"label": label, "points": list(points)} for label, points in lines.items() if points]
    return {"title": title, "note": note, "kind": kind, "range": limits, "lines": drawn}


def _named(steps: Steps, *names: str) -> Points:
    """The series of the first of ``names`` that exists."""
    for name in names:
        points = [(step, data[name]) for step, data in steps.items() if name in data]
        if points:
            return points
    return []


def _names(steps: Steps, prefix: str) -> list[str]:
    return sorted({name for data in steps.values() for name in data if name.startswith(prefix)})


def _seconds(steps: Steps) -> dict[str, Points]:
    """Seconds of each part of a step, what no timer covers, and validation."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for step, data in steps.items():
        parts = {
            label: data[f"timing_s/{name}"] for label, name in _PARTS.items() if f"timing_s/{name}" in data
        }
        rest = data.get("timing_s/step", 0.0) - sum(parts.values())
        if rest > 0:
            parts["other"] = rest
        if "timing_s/testing" in data:
            parts["validation"] = data["timing_s/testing"]
        for label, seconds in parts.items():
            lines.setdefault(label, []).append((step, seconds))
    order = [*_PARTS, "other", "validation"]
    return {label: lines[label] for label in order if label in lines}


def _episodes_per_minute(steps: Steps) -> Points:
    """From the pool's count of evaluations.

    The pool counts between one training batch and the next, so a count that holds a validation is left out.
    """
    points = []
    validated = False
    for step, data in steps.items():
        seconds, episodes = data.get("timing_s/gen"), data.get("env/count/evaluate")
        if seconds and episodes and not validated:
            points.append((step, 60 * episodes / seconds))
        validated = any(name.startswith("val-") for name in data)
    return points


def _failures(steps: Steps, failures: Mapping[int, int]) -> dict[str, Points]:
    """By kind from the pool's counters; without them, from the recorded episodes.

    The pool names a kind only in steps where it happened: elsewhere it is 0.
    """
    kinds = _names(steps, _FAILURES)
    if not kinds:
        return {"episodes without a score": [(step, float(n)) for step, n in sorted(failures.items())]}
    trained = [step for step, data in steps.items() if any(name.startswith("env/") for name in data)]
    return {
        kind.removeprefix(_FAILURES): [(step, steps[step].get(kind, 0.0)) for step in trained]
        for kind in kinds
    }


def compared(ours: list[dict[str, Any]], others: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The charts of a run, with the lines of another run of the same title in them.

    Stacked charts show parts of a whole, so they stay with their own run.

    Args:
        ours, others: charts of the two runs, from :func:`charts`.
        name: of the other run, for its labels.
    """
    added = {chart["title"]: chart["lines"] for chart in others}
    return [
        chart
        if chart["kind"] == "stack"
        else {
            **chart,
            "lines": [
                *chart["lines"],
                *({**line, "label": f"{line['label']} ({name})"} for line in added.get(chart["title"], [])),
            ],
        }
        for chart in ours
    ]
