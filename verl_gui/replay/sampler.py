"""The batch sampler that stores successes and puts them into failed groups (ARPO, arXiv 2505.16282).

Chosen by ``trainer.v1.sampler.custom_sampler.path=pkg://verl_gui.replay.sampler`` and
``.name=SuccessReplaySampler`` (``SuccessReplaySamplerAsync`` for the asynchronous trainer modes), with
``gui.replay.enable=true``. Episodes of several outputs (split trajectories) are neither stored nor replaced;
``training/replay/split_episodes`` counts them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from tensordict import TensorDictBase
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from verl_gui.replay.buffer import Stored
from verl_gui.replay.injection import Group, Row, inject
from verl_gui.replay.packing import UNKNOWN_LOG_PROBS
from verl_gui.replay.ratios import ratio_metrics
from verl_gui.replay.run import training_replay
from verl_gui.report.injections import InjectionRecord, write_injections
from verl_gui.rollout.sampler import GuiSampler, GuiSamplerAsync


def plain(value: Any) -> Any:
    """A value of TransferQueue without its wrappers: tensors, lists, dicts and scalars."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, TensorDictBase):
        return {key: plain(item) for key, item in value.items()}
    if type(value).__name__ == "NonTensorData":
        return plain(value.data)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def column(values: Any) -> list[Any]:
    """The rows of one field: a tensor, a jagged one, or a stack of plain values."""
    return [plain(value) for value in (values.unbind() if isinstance(values, torch.Tensor) else values)]


def fetch(keys: list[str], partition_id: str, fields: list[str] | None = None) -> list[dict[str, Any]]:
    """Rows by key, in order; all fields unless some are named."""
    data = tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=fields)
    columns = {name: column(data[name]) for name in data.keys()}  # noqa: SIM118 (a TensorDict iterates rows)
    return [{name: rows[i] for name, rows in columns.items()} for i in range(len(keys))]


def task_key(row: Mapping[str, Any]) -> str:
    """The task with its seed, as :attr:`TaskInstance.name`."""
    seed = int(row["seed"])
    task_id = row["extra_fields"]["task_id"]
    return task_id if seed < 0 else f"{task_id}#{seed}"


def in_place_of(
    record: dict[str, Any], key: str, tag: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The stored row and its tag as they take the place of row ``key`` (``{uid}_{session}_{index}``)."""
    uid, session, _ = key.rsplit("_", 2)
    own: dict[str, Any] = {"uid": uid, "session_id": int(session), "global_steps": tag.get("global_steps")}
    row: dict[str, Any] = {name: own.get(name, value) for name, value in record.items()}
    prompt, response = len(row["prompts"]), len(row["responses"])
    return row, {**tag, "prompt_len": prompt, "response_len": response, "seq_len": prompt + response}


class _SuccessReplay:
    """What both samplers add."""

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """As :class:`GuiSampler`'s, with ``training/replay/…`` among the metrics; never in validation."""
        batch, metrics = super().sample(global_steps, partition_id, batch_size)  # type: ignore[misc]
        if partition_id == "train" and training_replay().config.enable:
            metrics.update(replay_successes(batch, global_steps))
        return batch, metrics

    def prepare_batch(self, batch: Any) -> None:
        """Take the present policy's log-probs for replayed rows that have none: their ratio is 1."""
        keys = sorted(training_replay().without_log_probs & set(batch.keys))
        if not keys:
            return
        rows = fetch(keys, batch.partition_id, ["old_log_probs"])
        tags = dict(zip(batch.keys, batch.tags, strict=True))
        tq.kv_batch_put(
            keys=keys,
            partition_id=batch.partition_id,
            fields=list_of_dict_to_tensordict([{"rollout_log_probs": row["old_log_probs"]} for row in rows]),
            tags=[tags[key] for key in keys],
        )

    def batch_metrics(self, batch: Any, config: Any) -> dict[str, float]:
        """``training/replay/is_…`` of a batch whose log-probs have been computed (see :mod:`.ratios`)."""
        keys = sorted(training_replay().injected & set(batch.keys))
        if not keys or batch.partition_id != "train":
            return {}
        fields = ["old_log_probs", "rollout_log_probs", "response_mask"]
        rows = fetch(keys, batch.partition_id, fields)
        correction = config.algorithm.get("rollout_correction") or {}
        used = correction.get("rollout_is") is not None
        threshold = correction.get("rollout_is_threshold") if used else None
        if isinstance(threshold, str):  # "lower_upper", or a number
            threshold = float(threshold.rpartition("_")[2])
        return ratio_metrics([(row[fields[0]], row[fields[1]], row[fields[2]]) for row in rows], threshold)


def replay_successes(batch: Any, step: int) -> dict[str, float]:
    """Inject into the failed groups of a batch, then store its successes; returns the metrics."""
    replay = training_replay()
    config, buffer = replay.config, replay.buffer
    outputs = Counter(key.rpartition("_")[0] for key in batch.keys)
    keys = [key for key in batch.keys if outputs[key.rpartition("_")[0]] == 1]
    rows = fetch(keys, batch.partition_id, ["extra_fields", "seed"]) if keys else []
    groups: dict[str, list[int]] = {}
    for i, key in enumerate(keys):
        groups.setdefault(key.split("_")[0], []).append(i)
    split = {key.split("_")[0] for key in batch.keys if outputs[key.rpartition("_")[0]] > 1}
    infos = [row["extra_fields"]["reward_extra_info"] for row in rows]
    plan = inject(
        [
            Group(
                uid,
                task_key(rows[members[0]]),
                [Row(float(infos[i]["score"]), float(infos[i]["format"])) for i in members],
            )
            for uid, members in groups.items()
            if uid not in split
        ],
        buffer,
        step=step,
        rng=np.random.default_rng((config.seed, step)),
        inject_below=config.inject_below,
        replaced=config.replaced,
    )
    replaced = {groups[injection.uid][injection.row]: injection.stored for injection in plan}
    replay.injected = frozenset(keys[i] for i in replaced)
    unknown = set()
    # Read before anything is written: what is injected is never stored again.
    good = [i for i in range(len(keys)) if float(infos[i]["score"]) > config.min_score and i not in replaced]
    records = fetch([keys[i] for i in good], batch.partition_id) if good else []
    for i, stored in replaced.items():
        place = batch.keys.index(keys[i])
        row, tag = in_place_of(stored.record, keys[i], batch.tags[place])
        if row["extra_fields"].pop(UNKNOWN_LOG_PROBS, False):
            unknown.add(keys[i])
        tq.kv_batch_put(
            keys=[keys[i]],
            partition_id=batch.partition_id,
            fields=list_of_dict_to_tensordict([row]),
            tags=[tag],
        )
        batch.tags[place] = tag
    replay.without_log_probs = frozenset(unknown)
    if replaced and replay.report_dir is not None:
        write_injections(
            replay.report_dir,
            [_record(keys[i], task_key(rows[i]), stored, step) for i, stored in replaced.items()],
        )
    added = 0
    for i, record in zip(good, records, strict=True):
        added += buffer.add(task_key(rows[i]), record, step=step, score=float(infos[i]["score"]))
    ages = [step - stored.step for stored in replaced.values()]
    return {
        "training/replay/size_mb": buffer.nbytes / 1e6,
        "training/replay/tasks": len(buffer.tasks),
        "training/replay/stored": added,
        "training/replay/injected": len(plan),
        "training/replay/split_episodes": sum(n > 1 for n in outputs.values()),
        **({"training/replay/age_mean": sum(ages) / len(ages)} if ages else {}),
    }


def _record(key: str, task: str, stored: Stored, step: int) -> InjectionRecord:
    uid, session, _ = key.rsplit("_", 2)
    return InjectionRecord(step, uid, int(session), task, stored.step, stored.score)


class SuccessReplaySampler(_SuccessReplay, GuiSampler):
    """For ``trainer.v1.trainer_mode=sync``."""


class SuccessReplaySamplerAsync(_SuccessReplay, GuiSamplerAsync):
    """For the asynchronous trainer modes."""
