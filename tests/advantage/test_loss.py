"""ARPO's loss is verl's own with the keys of docs/algorithms.md: hand-made tensors through verl 0.9.1."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
import yaml
from verl.trainer.ppo.core_algos import agg_loss, compute_policy_loss_vanilla
from verl.trainer.ppo.padding_utils import construct_minimal_padding_template
from verl.workers.config import FSDPActorConfig
from verl.workers.utils.losses import ppo_loss

REPOSITORY = Path(__file__).parents[2]
CASES = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "cases.jsonl").read_text(encoding="utf-8").splitlines()
]
AGG = [case for case in CASES if case["kind"] == "agg"]
LOSS_KEYS = (
    "clip_ratio_low",
    "clip_ratio_high",
    "clip_ratio_c",
    "use_kl_loss",
    "entropy_coeff",
    "loss_agg_mode",
)


@pytest.fixture
def actor():
    """verl's actor configuration with the loss keys of the benchmark's recipe."""
    grid = yaml.safe_load((REPOSITORY / "benchmarks/arpo_vs_grpo/grid.yaml").read_text())
    node = grid["common"]["actor_rollout_ref"]["actor"]
    keys = {key: node[key] for key in LOSS_KEYS}
    return FSDPActorConfig(
        strategy="fsdp2", rollout_n=8, ppo_micro_batch_size_per_gpu=1, ppo_mini_batch_size=8, **keys
    )


def policy_loss(actor, ratios, advantages, mask=None):
    log_prob = torch.tensor(ratios).log().requires_grad_()
    advantages = torch.tensor(advantages)
    mask = torch.ones_like(advantages) if mask is None else torch.tensor(mask)
    loss, metrics = compute_policy_loss_vanilla(
        torch.zeros_like(advantages), log_prob, advantages, mask, actor.loss_agg_mode, actor
    )
    (gradient,) = torch.autograd.grad(loss, log_prob)
    return loss.item(), gradient, metrics


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.29, 2.0, -2.58, -2.58),
        (1.5, 2.0, -2.6, 0.0),  # above 1 + 0.3
        (0.5, 2.0, -1.0, -1.0),  # a good token that became unlikely is not clipped
        (0.81, -2.0, 1.62, 1.62),
        (0.5, -2.0, 1.6, 0.0),  # below 1 - 0.2
        (2.0, -2.0, 4.0, 4.0),
        (5.0, -2.0, 6.0, 0.0),  # dual clip: never more than 3 |A|
        (math.e**4, 2.474867, -2.474867 * 1.3, 0.0),  # a replayed success that became likely meanwhile
        (1.7, 0.0, 0.0, 0.0),
    ],
)
def test_one_token(actor, ratio, advantage, loss, slope):
    got, gradient, _ = policy_loss(actor, [[ratio]], [[advantage]])
    assert got == pytest.approx(loss, rel=1e-5)
    assert gradient.item() == pytest.approx(slope, rel=1e-5)


def test_every_sampled_token_weighs_the_same(actor):
    """Rows of three tokens and of one; what the environment said in between does not count."""
    mask = [[1.0, 1.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]]
    got, gradient, metrics = policy_loss(
        actor, [[1.0, 1.5, 9.0, 1.0], [1.0, 9.0, 9.0, 9.0]], [[1.0] * 4, [-3.0] * 4], mask
    )
    assert got == pytest.approx((-1 - 1.3 - 1 + 3) / 4)
    assert gradient[0, 2] == 0 and not gradient[1, 1:].any()
    assert metrics["actor/pg_clipfrac"] == pytest.approx(1 / 4)


def test_padding_rows_change_neither_loss_nor_gradient(actor):
    ratios, advantages, mask = [[1.1, 0.9]], [[1.0, -1.0]], [[1.0, 1.0]]
    alone, gradient, _ = policy_loss(actor, ratios, advantages, mask)
    padded, with_padding, _ = policy_loss(
        actor, [*ratios, [7.0, 7.0]], [*advantages, [0.0, 0.0]], [*mask, [0.0, 0.0]]
    )
    assert padded == alone
    assert torch.equal(with_padding[:1], gradient) and not with_padding[1:].any()


@pytest.mark.parametrize("case", AGG, ids=[case["id"] for case in AGG])
def test_shared_cases(case, actor):
    """What a batch is worth without padding, and with the two wrong kinds of it."""
    losses = [float(loss) for loss in case["losses"]]
    extra = {None: [], "copy_first": losses[:1], "zero_adv_mask1": [0.0]}[case["pad"]]
    matrix = torch.tensor([[loss] for loss in losses + extra])
    assert agg_loss(matrix, torch.ones_like(matrix), actor.loss_agg_mode).item() == pytest.approx(
        case["expect"], abs=1e-4
    )


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_verls_padding_rows_are_not_counted(actor, rows):
    """The rows that verl itself appends, through the loss that its engine calls."""
    source = {"position_ids": torch.arange(3), "responses": torch.ones(2, dtype=torch.long)}
    sample, tag = construct_minimal_padding_template(source, {"seq_len": 3}, eos_token_id=0)
    assert tag["is_padding"] and not sample["response_mask"].any() and not sample["rm_scores"].any()
    matrix = torch.tensor([[2.0], [4.0], *[[99.0]] * rows])
    mask = torch.tensor([[1.0], [1.0], *[sample["response_mask"].tolist()] * rows])
    assert agg_loss(matrix, mask, actor.loss_agg_mode).item() == 3.0


def test_truncated_importance_weights_scale_a_tokens_loss(actor):
    """``rollout_is`` multiplies after clipping: a replayed token counts by min(weight, threshold)."""
    zeros, ones = torch.zeros(1, 2), torch.ones(1, 2)
    weights = torch.tensor([[2.0, 0.25]])
    loss, _ = compute_policy_loss_vanilla(zeros, zeros, ones, ones, actor.loss_agg_mode, actor, weights)
    assert loss.item() == pytest.approx(-(2.0 + 0.25) / 2)


def test_no_kl_and_no_entropy_term(actor):
    """The loss that the engine calls is the policy loss, and needs no reference model."""
    from tensordict import TensorDict

    fields = {
        "response_mask": [torch.ones(2), torch.ones(1)],
        "old_log_probs": [torch.zeros(2), torch.zeros(1)],
        "advantages": [torch.ones(2), -torch.ones(1)],
        "prompts": [torch.ones(2, dtype=torch.long)] * 2,
        "responses": [torch.ones(2, dtype=torch.long), torch.ones(1, dtype=torch.long)],
        "input_ids": [torch.ones(4, dtype=torch.long), torch.ones(3, dtype=torch.long)],
    }
    nested = {key: torch.nested.as_nested_tensor(value, layout=torch.jagged) for key, value in fields.items()}
    data = TensorDict(nested, batch_size=2)
    for key, item in {"dp_size": 1, "batch_num_tokens": None, "global_batch_size": None}.items():
        data.set_non_tensor(key, item)
    log_probs = torch.nested.as_nested_tensor([torch.zeros(4), torch.zeros(3)], layout=torch.jagged)
    entropy = torch.nested.as_nested_tensor([torch.ones(4), torch.ones(3)], layout=torch.jagged)
    loss, metrics = ppo_loss(actor, {"log_probs": log_probs, "entropy": entropy}, data)
    assert loss.item() == pytest.approx((-1 - 1 + 1) / 3)
    assert not any("kl_loss" in name or "kl_coef" in name for name in metrics)
