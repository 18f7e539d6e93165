"""A sampler may add metrics once its rows have log-probs, by the bridge and by its patch."""

import inspect
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from tensordict import NonTensorStack, TensorDict

from verl_gui.compat import batch_metrics


class Queue:
    """The few calls of TransferQueue that an advantage needs."""

    def __init__(self, fields):
        self.fields = fields

    def kv_batch_get(self, keys, partition_id, select_fields):
        return self.fields.select(*[name for name in select_fields if name in self.fields])

    def kv_batch_put(self, keys, partition_id, fields):
        self.written = fields
        return SimpleNamespace(keys=keys, partition_id=partition_id)


def jagged(*rows):
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


@pytest.fixture
def advantage(monkeypatch):
    """Runs verl's own step of the trainer on two rows; gives its metrics."""

    def run(module, sampler):
        fields = TensorDict(
            {
                "uid": NonTensorStack("a", "a"),
                "response_mask": jagged([1, 1], [1]),
                "rm_scores": jagged([0.0, 1.0], [0.0]),
                "rollout_log_probs": jagged([-1.0, -2.0], [-1.0]),
                "old_log_probs": jagged([-1.0, -1.5], [-1.0]),
            },
            batch_size=2,
        )
        monkeypatch.setattr(module, "tq", Queue(fields))
        trainer = SimpleNamespace(
            replay_buffer=sampler,
            config=OmegaConf.create(
                {
                    "algorithm": {"adv_estimator": "grpo", "gamma": 1, "lam": 1, "use_kl_in_reward": False},
                    "actor_rollout_ref": {"rollout": {"n": 2}},
                }
            ),
        )
        batch = type("Batch", (SimpleNamespace,), {"__len__": lambda self: 2})
        metrics = {}
        module.PPOTrainer._compute_advantage(
            trainer, batch(keys=["a_0_0", "a_1_0"], partition_id="train"), metrics
        )
        assert "advantages" in module.tq.written
        return metrics

    return run


class Sampler:
    def prepare_batch(self, batch):
        self.prepared = list(batch.keys)

    def batch_metrics(self, batch, config):
        return {"training/rows": len(batch.keys), "training/estimator": config.algorithm.adv_estimator}


def test_released_verl_asks_nobody(released, advantage):
    assert "training/rows" not in advantage(released(batch_metrics.BRIDGE), Sampler())


def test_the_sampler_is_asked(repaired, advantage):
    sampler = Sampler()
    metrics = advantage(repaired(batch_metrics.BRIDGE), sampler)
    assert sampler.prepared == ["a_0_0", "a_1_0"]
    assert metrics["training/rows"] == 2 and metrics["training/estimator"] == "grpo"


def test_verls_own_samplers_need_not_answer(repaired, advantage):
    module = repaired(batch_metrics.BRIDGE)
    assert not advantage(module, object())
    parameters = inspect.signature(module.PPOTrainer._compute_advantage).parameters
    assert list(parameters) == ["self", "batch", "metrics"]
