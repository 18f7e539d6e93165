"""Replay on rows in a real TransferQueue: what is stored, what a failed group gets, what stays as it was."""

import io
from types import SimpleNamespace

import pytest
import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from PIL import Image
from transfer_queue import KVBatchMeta
from transformers import Qwen2VLImageProcessor
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from verl_gui.config import ReplayConfig
from verl_gui.models.encoded_images import IMAGES, encode, with_pixels
from verl_gui.replay.packing import UNKNOWN_LOG_PROBS
from verl_gui.replay.run import training_replay
from verl_gui.replay.sampler import SuccessReplaySampler, fetch, replay_successes
from verl_gui.report.injections import FILE, InjectionRecord, read_injections

PROCESSOR = SimpleNamespace(image_processor=Qwen2VLImageProcessor())


@pytest.fixture(scope="module")
def queue():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    yield
    tq.close()
    ray.shutdown()


@pytest.fixture(autouse=True)
def replay(tmp_path):
    training_replay().configure(ReplayConfig(enable=True), str(tmp_path))
    yield training_replay()
    training_replay().configure(ReplayConfig())


def png(shade):
    out = io.BytesIO()
    Image.effect_noise((56, 84), shade).convert("RGB").save(out, "PNG")
    return out.getvalue()


def episode(uid, session, score, step, task="page", tokens=(5, 6, 7), log_prob=-0.5):
    """A row as the agent loop worker stores it, with one encoded screenshot."""
    n = len(tokens)
    return {
        "prompts": torch.tensor([1, 2, 3, session]),
        "responses": torch.tensor(tokens),
        "response_mask": torch.ones(n, dtype=torch.int64),
        "loss_mask": torch.ones(n, dtype=torch.int64),
        "rollout_log_probs": torch.full((n,), log_prob),
        "rm_scores": torch.tensor([0.0] * (n - 1) + [score]),
        "input_ids": torch.tensor([1, 2, 3, session, *tokens]),
        "position_ids": torch.arange(4 * (4 + n)).reshape(4, 4 + n),
        "multi_modal_inputs": encode([png(10 + session)], [(56, 84)], PROCESSOR),
        "uid": uid,
        "session_id": session,
        "global_steps": step,
        "seed": 3,
        "task": {"id": task},
        "extra_fields": {
            "task_id": task,
            "steps": 1,
            "reward_extra_info": {"acc": float(score >= 1), "score": score, "format": 0.0},
        },
    }


def put(step, groups):
    """Store groups of scores; the batch that verl's sampler would give."""
    rows, keys, tags = [], [], []
    for uid, (task, scores) in groups.items():
        for session, score in enumerate(scores):
            rows.append(episode(uid, session, score, step, task, tokens=(5, 6, 7 + session)))
            keys.append(f"{uid}_{session}_0")
            tags.append({"status": "success", "global_steps": step, "seq_len": 7, "min_global_steps": step})
    tq.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(rows), tags=tags)
    return KVBatchMeta(keys=keys, tags=tags, partition_id="train")


def everything(batch):
    return dict(zip(batch.keys, fetch(batch.keys, "train"), strict=True))


def same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


def test_a_success_takes_the_place_of_the_first_row_of_a_failed_group(queue, replay, tmp_path):
    first = put(1, {"a": ("page", [0.0, 1.0]), "b": ("other", [0.0, 0.0])})
    stored = everything(first)["a_1_0"]
    metrics = replay_successes(first, 1)
    assert (metrics["training/replay/stored"], metrics["training/replay/injected"]) == (1, 0)
    assert list(replay.buffer.tasks) == ["page#3"]

    second = put(4, {"c": ("other", [0.0, 0.0]), "d": ("page", [0.0, 0.0]), "e": ("page", [0.0, 1.0])})
    before = everything(second)
    metrics = replay_successes(second, 4)
    after = everything(second)
    assert metrics["training/replay/injected"] == 1 and metrics["training/replay/age_mean"] == 3
    assert replay.injected == {"d_0_0"}
    changed = [key for key in second.keys if not same(before[key], after[key])]
    assert changed == ["d_0_0"]
    row = after["d_0_0"]
    assert (row["uid"], row["session_id"], row["global_steps"]) == ("d", 0, 4)
    taken = {"uid", "session_id", "global_steps"}
    assert all(same(row[name], stored[name]) for name in stored.keys() - taken)
    assert torch.equal(
        with_pixels([row["multi_modal_inputs"]])[0]["pixel_values"],
        with_pixels([stored["multi_modal_inputs"]])[0]["pixel_values"],
    )
    assert read_injections(tmp_path) == [InjectionRecord(4, "d", 0, "page#3", 1, 1.0)]
    assert second.tags[second.keys.index("d_0_0")]["seq_len"] == 7


def test_a_torn_line_of_the_log_is_left_out(queue, replay, tmp_path):
    replay_successes(put(1, {"o": ("page", [0.0, 1.0])}), 1)
    replay_successes(put(2, {"p": ("page", [0.0, 0.0])}), 2)
    with open(tmp_path / FILE, "a") as file:
        file.write('{"step": 3, "uid"')
    assert [record.uid for record in read_injections(tmp_path)] == ["p"]
    assert read_injections(tmp_path / "nowhere") == []


def test_rows_stay_small_in_the_buffer(queue, replay):
    batch = put(1, {"f": ("page", [1.0, 0.0])})
    replay_successes(batch, 1)
    (row,) = fetch(["f_0_0"], "train", ["multi_modal_inputs"])
    picture = row["multi_modal_inputs"][IMAGES].numel()
    assert (
        replay.buffer.nbytes
        < picture + 5_000
        < with_pixels([row["multi_modal_inputs"]])[0]["pixel_values"].nbytes
    )


def test_what_was_injected_is_not_stored_again(queue, replay):
    replay_successes(put(1, {"g": ("page", [1.0, 0.0])}), 1)
    metrics = replay_successes(put(2, {"h": ("page", [0.0, 0.0])}), 2)
    assert (metrics["training/replay/injected"], metrics["training/replay/stored"]) == (1, 0)
    assert [s.step for s in replay.buffer.tasks["page#3"]] == [1]


def test_split_episodes_are_left_alone(queue, replay):
    replay_successes(put(1, {"i": ("page", [1.0, 0.0])}), 1)
    rows = [episode("k", session, 0.0, 2) for session in (0, 0, 1)]
    keys = ["k_0_0", "k_0_1", "k_1_0"]
    tags = [{"status": "success"} for _ in keys]
    tq.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(rows), tags=tags)
    metrics = replay_successes(KVBatchMeta(keys=keys, tags=tags, partition_id="train"), 2)
    assert metrics["training/replay/split_episodes"] == 1 and metrics["training/replay/injected"] == 0


def test_a_recorded_success_without_log_probs_has_ratio_one(queue, replay):
    recorded = episode("q", 0, 1.0, 0)
    recorded["extra_fields"][UNKNOWN_LOG_PROBS] = True
    replay.buffer.add("page#3", recorded, step=0, score=1.0)
    batch = put(2, {"r": ("page", [0.0, 0.0]), "s": ("other", [0.0, 0.0])})
    replay_successes(batch, 2)
    assert UNKNOWN_LOG_PROBS not in fetch(["r_0_0"], "train")[0]["extra_fields"]
    new = [{"old_log_probs": torch.tensor([-1.0, -2.0, -3.0])} for _ in batch.keys]
    fields = list_of_dict_to_tensordict(new)
    tq.kv_batch_put(keys=batch.keys, partition_id="train", fields=fields, tags=batch.tags)
    sampler = object.__new__(SuccessReplaySampler)
    sampler.prepare_batch(batch)
    log_probs = [
        row["rollout_log_probs"].tolist() for row in fetch(batch.keys, "train", ["rollout_log_probs"])
    ]
    assert log_probs[batch.keys.index("r_0_0")] == [-1.0, -2.0, -3.0]
    assert log_probs.count([-0.5] * 3) == 3  # sampled rows keep the engine's
    metrics = sampler.batch_metrics(batch, OmegaConf.create({"algorithm": {}}))
    assert metrics["training/replay/is_ratio_mean"] == 1.0


def test_ratios_of_replayed_rows_are_told_once_log_probs_are_there(queue, replay):
    replay_successes(put(1, {"l": ("page", [1.0, 0.0])}), 1)
    batch = put(2, {"m": ("page", [0.0, 0.0])})
    replay_successes(batch, 2)
    sampler = object.__new__(SuccessReplaySampler)
    config = OmegaConf.create(
        {"algorithm": {"rollout_correction": {"rollout_is": "token", "rollout_is_threshold": 2.0}}}
    )
    new = [{"old_log_probs": torch.tensor([0.0, 0.5, -0.5])}, {"old_log_probs": torch.full((3,), 9.0)}]
    tq.kv_batch_put(
        keys=batch.keys, partition_id="train", fields=list_of_dict_to_tensordict(new), tags=batch.tags
    )
    metrics = sampler.batch_metrics(batch, config)
    expected = torch.tensor([0.5, 1.0, 0.0]).exp()  # against the stored -0.5; the fresh row counts nowhere
    assert metrics["training/replay/is_ratio_mean"] == pytest.approx(expected.mean().item())
    assert metrics["training/replay/is_clip_fraction"] == pytest.approx(1 / 3)
    config.algorithm.rollout_correction.rollout_is_threshold = "0.5_3.0"
    assert sampler.batch_metrics(batch, config)["training/replay/is_clip_fraction"] == 0.0
    config.algorithm.rollout_correction.rollout_is = None
    assert "training/replay/is_clip_fraction" not in sampler.batch_metrics(batch, config)
    assert sampler.batch_metrics(put(3, {"n": ("page", [0.0, 0.0])}), config) == {}
