"""Random Qwen2-VL and Qwen2.5-VL models of a few thousand parameters, and rows to train them on."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from layouts import IDS, tokens
from tensordict import NonTensorStack, TensorDict
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)
from verl.utils import tensordict_utils
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from verl_gui.models.rope_index import engine_position_ids

_TEXT = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
}
_VISION = {"depth": 2, "num_heads": 2, "patch_size": 14, "spatial_merge_size": 2, "in_channels": 3}
_IDS = {
    "image_token_id": IDS.image,
    "video_token_id": IDS.video,
    "vision_start_token_id": IDS.vision_start,
    "vision_end_token_id": 102,
}


def tiny_model(name: str) -> Any:
    """The same weights every time; fp32, sdpa."""
    if name == "qwen2_vl":
        vision = {**_VISION, "embed_dim": 32, "hidden_size": 32, "mlp_ratio": 1}
        config, model_class = Qwen2VLConfig, Qwen2VLForConditionalGeneration
    else:
        vision = {
            **_VISION,
            "hidden_size": 32,
            "intermediate_size": 32,
            "out_hidden_size": 32,
            "window_size": 56,
            "fullatt_block_indexes": [1],
        }
        config, model_class = Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return model_class._from_config(
            config(text_config=_TEXT, vision_config=vision, **_IDS),
            attn_implementation="sdpa",
            dtype=torch.float32,
        )


def row(
    layout: str,
    image_grids: list[list[int]] | None = None,
    video_grids: list[list[int]] | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """One sequence as verl stores it: ids (L,), positions (4, L), multi-modal inputs (empty for text)."""
    ids = tokens(layout)
    generator = torch.Generator().manual_seed(seed)
    inputs: dict[str, torch.Tensor] = {}
    for grids, pixels, grid_name in (
        (image_grids, "pixel_values", "image_grid_thw"),
        (video_grids, "pixel_values_videos", "video_grid_thw"),
    ):
        if grids:
            grid_thw = torch.tensor(grids)
            patches = torch.randn(int(grid_thw.prod(-1).sum()), 3 * 2 * 14 * 14, generator=generator)
            inputs |= {pixels: patches, grid_name: grid_thw}
    return {
        "input_ids": ids,
        "position_ids": engine_position_ids(ids, image_grids, video_grids, ids=IDS),
        "multi_modal_inputs": inputs,
    }


ROWS = {
    "text": row("a b c d e f"),
    "image": row("a VS I*4 VE b c", [[1, 4, 4]], seed=1),
    "images": row("a VS I*6 VE b VS I*4 VE c d", [[1, 4, 6], [1, 4, 4]], seed=2),
    "short": row("c"),
    "clip": row("a VS V*8 VE b VS I*4 VE", [[1, 4, 4]], [[2, 4, 4]], seed=3),
}


def engine_inputs(names: Sequence[str]) -> dict[str, Any]:
    """What verl's engine passes to the model for :data:`ROWS` that come out of TransferQueue."""
    rows = [ROWS[name] for name in names]
    batch = TensorDict(
        {
            key: torch.nested.as_nested_tensor([row[key] for row in rows], layout=torch.jagged)
            for key in ("input_ids", "position_ids")
        }
        | {"multi_modal_inputs": NonTensorStack(*[row["multi_modal_inputs"] for row in rows])},
        batch_size=len(rows),
    )
    tensordict_utils.maybe_fix_3d_position_ids(batch)
    tensordict_utils.assign_non_tensor(batch, use_remove_padding=False, temperature=1.0)
    inputs, _ = FSDPEngineWithLMHead.prepare_model_inputs(SimpleNamespace(pad_to_length=None), batch)
    return inputs


def forward(model: Any, names: Sequence[str]) -> list[torch.Tensor]:
    """Logits (L, vocabulary) of each row of a micro-batch."""
    logits = model(**engine_inputs(names), use_cache=False).logits
    return [of_row[: len(ROWS[name]["input_ids"])] for of_row, name in zip(logits, names, strict=True)]
