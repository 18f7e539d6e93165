"""mRoPE positions of one episode, ours against transformers and verl: ``python benchmarks/rope_index.py``.

The episode has fifteen 1920x1080 screenshots (40,365 image tokens) and some text between them. Every
implementation gets the same tensors, must give the same numbers, and runs in turn with the others, on one
thread; the table shows the median and the best of each.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace

import torch
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from verl.models.transformers.qwen2_vl import get_rope_index as verl_rope_index

from verl_gui.models.rope_index import RopeIndexBuilder, VisionTokenIds, engine_position_ids, rope_index

IDS = VisionTokenIds(image=8, video=9, vision_start=7)
NAMES = {"<|image_pad|>": IDS.image, "<|video_pad|>": IDS.video, "<|vision_start|>": IDS.vision_start}
GRID = (1, 78, 138)  # 1080p under max_pixels=2116800
IMAGE_TOKENS = 78 * 138 // 4
TURN = [*[1] * 33, IDS.vision_start, *[IDS.image] * IMAGE_TOKENS, *[2] * 32]


def implementations(turns: int) -> dict[str, Callable[[], torch.Tensor]]:
    """Name -> a call that gives the positions of an episode of ``turns`` screenshots, (3, L)."""
    ids, grids = torch.tensor(TURN * turns), torch.tensor([GRID] * turns)
    mask = torch.ones_like(ids)

    vision = SimpleNamespace(spatial_merge_size=2, tokens_per_second=2)
    model = SimpleNamespace(config=SimpleNamespace(vision_config=vision))
    model.get_vision_position_ids = functools.partial(Qwen2_5_VLModel.get_vision_position_ids, model)
    types = (ids == IDS.image).int()[None]

    processor = SimpleNamespace(
        image_processor=SimpleNamespace(merge_size=2),
        tokenizer=SimpleNamespace(convert_tokens_to_ids=NAMES.__getitem__),
    )

    def transformers() -> torch.Tensor:
        positions, _ = Qwen2_5_VLModel.get_rope_index(
            model, ids[None], types, image_grid_thw=grids, attention_mask=mask[None]
        )
        return positions[:, 0]

    def last_turn() -> torch.Tensor:
        return builder.append(ids[-len(TURN) :], grids[-1:])

    builder = RopeIndexBuilder(ids=IDS)
    return {
        "transformers 5.9.0": transformers,
        "verl 0.9.1": lambda: verl_rope_index(processor, ids, image_grid_thw=grids, attention_mask=mask),
        "verl_gui, (3, L)": lambda: rope_index(ids, grids, None, mask, ids=IDS),
        "verl_gui, (4, L) for verl": lambda: engine_position_ids(ids, grids, None, mask, ids=IDS),
        "verl_gui, one turn appended": last_turn,
    }


def milliseconds(call: Callable[[], torch.Tensor]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=50)
    options = parser.parse_args()
    torch.set_num_threads(1)
    calls = implementations(options.turns)
    expected = calls["transformers 5.9.0"]()
    for name, call in calls.items():
        if "turn" not in name and not torch.equal(call()[-3:], expected):
            raise SystemExit(f"{name} gives other positions than transformers")
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(options.repeats):
        for name, call in calls.items():
            times[name].append(milliseconds(call))
    peer = statistics.median(times["transformers 5.9.0"])
    print(f"{expected.shape[1]} tokens, {options.turns} images, all equal\n")
    print("| implementation | median ms | best ms | times faster than transformers |\n|---|---|---|---|")
    for name, values in times.items():
        median = statistics.median(values)
        print(f"| {name} | {median:.2f} | {min(values):.2f} | {peer / median:.1f} |")


if __name__ == "__main__":
    main()
