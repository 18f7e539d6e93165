import pytest

from verl_gui.rollout.metrics import episode_metrics


def row(task, score, format_part=0.0, domain=""):
    info = {"acc": float(score >= 1), "score": score, "format": format_part}
    return {"task_id": task, "domain": domain, "steps": 3, "reward_extra_info": info}


def test_means_over_episodes_and_tasks():
    metrics = episode_metrics([row("a", 1.0), row("a", 0.0, -0.5), row("b", 0.5), row("b", 1.0)])
    assert metrics == {
        "reward/score": pytest.approx(0.625),
        "reward/format": pytest.approx(-0.125),
        "reward/malformed": 0.25,
        "rollout/env_steps_sum": 12.0,
        "success/mean": 0.5,
        "success/a": 0.5,
        "success/b": 0.5,
    }


def test_domains_are_counted_apart():
    rows = [row("a", 1.0, domain="os"), row("b", 0.0, domain="os"), row("c", 1.0, domain="chrome")]
    metrics = episode_metrics(rows)
    assert metrics["success_by_domain/os"] == 0.5 and metrics["success_by_domain/chrome"] == 1.0


def test_no_episodes_no_metrics():
    assert episode_metrics([]) == {}
