"""What replay costs a training step, on rows in a real TransferQueue.

A batch is that of the ARPO recipe: 16 tasks, 8 rollouts each, 15 screenshots of 1920x1080 a rollout. In every
second step half of the groups fail as a whole; otherwise half of the rollouts succeed. Measured:

* seconds that replay adds to a step while the buffer fills, and once each failed group finds a success;
* bytes of a stored success, and of one with the fp32 pixels that public ARPO code keeps;
* seconds and bytes of a checkpoint of the full buffer (8 successes for each of 16 tasks).

    python benchmarks/replay_overhead.py [--kb 200] [--groups 16]
"""

from __future__ import annotations

import argparse
import io
import os
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from PIL import Image
from transfer_queue import KVBatchMeta
from transformers import Qwen2VLImageProcessor
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from verl_gui.config import ReplayConfig
from verl_gui.models.encoded_images import encode, with_pixels
from verl_gui.replay.run import training_replay
from verl_gui.replay.sampler import replay_successes

FULL_HD = (1920, 1080)
SETTINGS = {"min_pixels": 78400, "max_pixels": 2116800}
SCREENSHOTS, ROLLOUTS, ANSWER = 15, 8, 60
PICTURE_TOKENS = 2691  # 39 x 69, of 1092 x 1932


def png(rng: np.random.Generator, kilobytes: int) -> bytes:
    """A picture of about so many bytes: flat, with a noisy patch."""
    picture = np.zeros((FULL_HD[1], FULL_HD[0], 3), np.uint8)
    edge = int((kilobytes * 1000 / 3) ** 0.5)
    picture[:edge, :edge] = rng.integers(0, 256, (edge, edge, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(picture).save(out, "PNG", compress_level=1)
    return out.getvalue()


def rollout(uid: str, session: int, score: float, shots: list[bytes], task: str, step: int) -> dict[str, Any]:
    """A row as the agent loop worker stores it."""
    length = SCREENSHOTS * (PICTURE_TOKENS + ANSWER)
    responses = torch.randint(0, 150_000, (length,))
    inputs = encode(shots, [FULL_HD] * len(shots), OWNER, SETTINGS)
    info = {"acc": float(score >= 1), "score": score, "format": 0.0}
    return {
        "prompts": torch.randint(0, 150_000, (300,)),
        "responses": responses,
        "response_mask": (torch.arange(length) % (PICTURE_TOKENS + ANSWER) < ANSWER).long(),
        "loss_mask": torch.ones(length, dtype=torch.int64),
        "rollout_log_probs": torch.zeros(length),
        "rm_scores": torch.zeros(length),
        "input_ids": torch.randint(0, 150_000, (300 + length,)),
        "position_ids": torch.zeros(4, 300 + length, dtype=torch.int64),
        "multi_modal_inputs": inputs,
        "uid": uid,
        "session_id": session,
        "global_steps": step,
        "seed": -1,
        "extra_fields": {"task_id": task, "steps": SCREENSHOTS, "reward_extra_info": info},
    }


OWNER = SimpleNamespace(image_processor=Qwen2VLImageProcessor())


def put(step: int, groups: int, shots: list[bytes]) -> KVBatchMeta:
    """A batch in the queue. Odd steps: all groups succeed half of the time; even ones: half of them fail."""
    keys, tags = [], []
    for group in range(groups):
        uid = f"{step}g{group}"
        fails = step % 2 == 0 and group % 2 == 0
        for session in range(ROLLOUTS):
            score = 0.0 if fails else float(session % 2)
            row = rollout(uid, session, score, shots, f"task{group}", step)
            key, tag = f"{uid}_{session}_0", {"status": "success", "global_steps": step}
            tq.kv_batch_put(
                keys=[key], partition_id="train", fields=list_of_dict_to_tensordict([row]), tags=[tag]
            )
            keys.append(key)
            tags.append(tag)
    return KVBatchMeta(keys=keys, tags=tags, partition_id="train")


def main() -> None:
    """Print the numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kb", type=int, default=200, help="kilobytes of a screenshot")
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    shots = [png(rng, args.kb) for _ in range(SCREENSHOTS)]
    size = sum(map(len, shots)) / len(shots) / 1e3
    print(f"{args.groups} groups of {ROLLOUTS}, {SCREENSHOTS} screenshots of {size:.0f} kB\n")

    row = rollout("u", 0, 1.0, shots, "task", 0)
    pixels = with_pixels([row["multi_modal_inputs"]])[0]["pixel_values"].nbytes

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    replay = training_replay()
    replay.configure(ReplayConfig(enable=True))
    print(f"{'step':>5}{'seconds':>10}{'stored':>9}{'injected':>10}{'buffer, MB':>13}")
    for step in range(1, args.steps + 1):
        batch = put(step, args.groups, shots)
        began = time.perf_counter()
        metrics = replay_successes(batch, step)
        seconds = time.perf_counter() - began
        print(
            f"{step:5}{seconds:10.2f}{metrics['training/replay/stored']:9.0f}"
            f"{metrics['training/replay/injected']:10.0f}{metrics['training/replay/size_mb']:13.1f}"
        )
        tq.kv_clear(keys=batch.keys, partition_id="train")
    one = replay.buffer.nbytes / len(replay.buffer)
    print(f"\na stored success: {one / 1e6:.2f} MB; its pixels in fp32: {pixels / 1e6:.0f} MB")

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.pt"
        began = time.perf_counter()
        torch.save(replay.state_dict(), file)
        saved = time.perf_counter()
        replay.load_state_dict(torch.load(file, weights_only=True))
        loaded = time.perf_counter()
        print(
            f"a checkpoint of {len(replay.buffer)} successes: {os.path.getsize(file) / 1e6:.0f} MB, "
            f"saved in {saved - began:.2f} s, loaded in {loaded - saved:.2f} s"
        )
    tq.close()
    ray.shutdown()


if __name__ == "__main__":
    main()
