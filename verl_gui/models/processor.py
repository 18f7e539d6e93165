"""Gives the processor that verl works with our positions, in the form of transformers' own method.

verl takes ``get_rope_index`` from the model's class, puts it on the processor and calls it for every sequence
that is stored for training.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch

from verl_gui.models.rope_index import VisionTokenIds, rope_index

PROCESSORS = ("Qwen2VLProcessor", "Qwen2_5_VLProcessor")
"""Classes of processors whose models have these positions."""


def bind_rope_index(processor: Any) -> None:
    """Replace ``processor.get_rope_index``, and let verl pass it the time between the frames of videos.

    Args:
        processor: of one of :data:`PROCESSORS`, with the model's configuration as ``processor.config`` and
            transformers' method bound to it, as verl's ``hf_processor`` leaves it.

    Raises:
        ValueError: the tokenizer and the model disagree on the id of a placeholder; no sequence with pictures
            could be trained on.
    """
    config = processor.config
    ids = VisionTokenIds(config.image_token_id, config.video_token_id, config.vision_start_token_id)
    for name in ("image_token_id", "video_token_id"):
        theirs = getattr(processor, name, None)
        if theirs is not None and theirs != getattr(config, name):
            raise ValueError(
                f"{name}: the processor writes {theirs}, the model's configuration reads "
                f"{getattr(config, name)}; use the tokenizer that belongs to the checkpoint"
            )
    # Partials can be pickled together with the processor; methods bound to it, as verl leaves them, cannot.
    vars(processor).pop("get_vision_position_ids", None)
    processor.get_rope_index = functools.partial(_get_rope_index, processor, ids)
    processor.get_rope_index_kwargs = _seconds_of_videos


def _get_rope_index(
    processor: Any, ids: VisionTokenIds, input_ids: torch.Tensor, **inputs: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """As transformers, for one sequence (1, L): (3, 1, L) positions and (1, 1) what generation adds."""
    if len(input_ids) != 1:
        raise ValueError(f"input_ids: expected one sequence (1, L), got {tuple(input_ids.shape)}")
    vision = processor.config.vision_config
    rate = getattr(vision, "tokens_per_second", None)  # Qwen2-VL has none
    mask, types = inputs.get("attention_mask"), inputs.get("mm_token_type_ids")
    positions = rope_index(
        input_ids[0],
        inputs.get("image_grid_thw"),
        inputs.get("video_grid_thw"),
        None if mask is None else mask[0],
        ids=ids,
        merge_size=vision.spatial_merge_size,
        second_per_grid_ts=None if rate is None else inputs.get("second_per_grid_ts"),
        tokens_per_second=rate,
        mm_token_type_ids=None if types is None else types[0],
    )
    valid = positions if mask is None else positions[:, mask[0].bool()]
    delta = valid.max() + 1 - valid.shape[1] if valid.numel() else torch.tensor(0)
    return positions[:, None], delta.view(1, 1)


def _seconds_of_videos(multi_modal_inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What verl passes to ``get_rope_index`` beside the grids."""
    return {"second_per_grid_ts": multi_modal_inputs.get("second_per_grid_ts")}
