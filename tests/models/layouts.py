"""Sequences written as layouts ("a", "VS", "I*4", "VE"), and transformers' own positions for them."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel

from verl_gui.models.rope_index import VisionTokenIds

_FILE = Path(__file__).parent / "data" / "cases.jsonl"
CASES = [json.loads(line) for line in _FILE.read_text(encoding="utf-8").splitlines()]

IDS = VisionTokenIds(image=103, video=104, vision_start=101)
_NAMED = {"VS": 101, "VE": 102, "I": 103, "V": 104}
TOKENS_PER_SECOND = 4
MODELS = ("qwen2_vl", "qwen2_5_vl")


def cases(kind: str) -> Any:
    """A parametrization over the cases of one kind."""
    chosen = [case for case in CASES if case["kind"] == kind]
    assert chosen, kind
    return pytest.mark.parametrize("case", chosen, ids=[case["id"] for case in chosen])


def tokens(layout: list[str] | str) -> torch.Tensor:
    """(L,) ids of a layout; a word that names nothing is text."""
    ids: list[int] = []
    for word in layout.split() if isinstance(layout, str) else layout:
        name, _, count = word.partition("*")
        ids += [_NAMED.get(name, 1 + sum(name.encode()) % 90)] * int(count or 1)
    return torch.tensor(ids, dtype=torch.long)


def options(model: str, **more: Any) -> dict[str, Any]:
    """Arguments of ours that mean that model."""
    return {
        "ids": IDS,
        "tokens_per_second": TOKENS_PER_SECOND if model == "qwen2_5_vl" else None,
        **more,
    }


def transformers_rope_index(
    model: str,
    input_ids: torch.Tensor,
    image_grid_thw: torch.Tensor | None = None,
    video_grid_thw: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
    second_per_grid_ts: Any = None,
) -> torch.Tensor:
    """(3, L) as transformers computes it; raises whatever it raises."""
    real = {"qwen2_vl": Qwen2VLModel, "qwen2_5_vl": Qwen2_5_VLModel}[model]
    vision = SimpleNamespace(spatial_merge_size=2, tokens_per_second=TOKENS_PER_SECOND)
    this = SimpleNamespace(config=SimpleNamespace(vision_config=vision))
    this.get_vision_position_ids = functools.partial(real.get_vision_position_ids, this)
    types = (input_ids == IDS.image).int() + 2 * (input_ids == IDS.video).int()
    positions, _ = real.get_rope_index(
        this,
        input_ids[None],
        types[None],
        image_grid_thw=image_grid_thw,
        video_grid_thw=video_grid_thw,
        second_per_grid_ts=second_per_grid_ts,
        attention_mask=None if attention_mask is None else attention_mask[None],
    )
    return positions[:, 0]
